"""docs/reference/diagnosis.md holds every cause of the catalogue, and every key of `opsctl why --json`."""

import json
import re
from pathlib import Path

from click.testing import CliRunner

from opsctl.cli.why import JSON_FORMAT, why
from opsctl.diagnosis.causes import UNEXPLAINED, Cause, CauseKind, causes, read_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "diagnosis.md"
TEXT = PAGE.read_text()
TITLE = "## Causes\n"
ALL = [*causes(), UNEXPLAINED]


def render_causes() -> str:
    rows = ["| cause | class | how sure | meaning | what to do |", "|---|---|---|---|---|"]
    rows += [
        f"| [`{cause.name}`]({cause.link}) | {cause.kind.value} | {cause.sure.value} | {cause.says} | {cause.advice} |"
        for cause in ALL
    ]
    return "\n".join(rows) + "\n"


def test_page_holds_the_catalogue() -> None:
    """Run `python -m tests.rules.test_causes_reference` after a change to write the page again."""
    assert TEXT.partition(TITLE)[2].strip() == render_causes().strip()


def has_advice_and_link(cause: Cause) -> bool:
    is_advice = len(cause.advice) > 20 and cause.advice.endswith((".", ")"))
    return is_advice and len(cause.says) > 10 and bool(re.fullmatch(r"https://[a-z0-9.-]+/\S*", cause.link))


def test_causes_have_advice_and_link() -> None:
    assert [cause.name for cause in ALL if not has_advice_and_link(cause)] == []
    assert {cause.kind.value for cause in ALL} <= set(read_table("proofs"))


def test_names_of_causes_are_unique() -> None:
    names = [cause.name for cause in ALL]
    assert len(set(names)) == len(names)


def test_page_names_every_class() -> None:
    documented = re.search(r"\| `kind` \| (.*) \|", TEXT)
    assert documented
    words = documented[1].replace("`time limit`", "`time_limit`")
    assert {kind.value.replace(" ", "_") for kind in CauseKind} <= set(re.findall(r"[a-z_]+", words))


def test_page_names_every_json_key(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    fields = json.loads(CliRunner().invoke(why, ["--log", str(log), "--json"]).stdout)
    table = TEXT.partition("## Keys of")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert set(fields) == documented
    assert fields["format"] == JSON_FORMAT
    assert fields["sure"] == "certain"


if __name__ == "__main__":
    PAGE.write_text(TEXT.partition(TITLE)[0] + TITLE + "\n" + render_causes())
