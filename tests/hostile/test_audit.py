"""`opsctl audit`: no act and no attempt goes without a trace, and no text of a stranger forges one."""

import json
import os
import subprocess

import pytest

from opsctl.host.system import SystemClock
from opsctl.state.events import HoldReleased, RequestRefused, SwitchArmed, SwitchDisarmed
from opsctl.state.journal import Journal, actor
from opsctl.state.site_dir import SiteDir
from tests.hostile.conftest import Site
from tests.support.cases import read_cases

NOW = SystemClock().now().isoformat()


def write_line(site: Site, line: str, at: str = NOW) -> None:
    place = SiteDir.of(site.root)
    place.create()
    with (place.alerts / "journal-login1-0.jsonl").open("a") as file:
        file.write(line.replace("{", f'{{"at": "{at}", ', 1) + "\n")


@pytest.mark.attack("an act on alerts leaves no trace, or another's")
@pytest.mark.parametrize(*read_cases(__file__, "lines"))
def test_act_on_alerts_is_shown(site: Site, line: str, row: list[str] | None, is_damaged: bool | None) -> None:
    write_line(site, line)
    write_line(site, line, "2020-01-01T00:00:00+00:00")
    result = site.opsctl("audit", "--json")
    entries = json.loads(result.stdout)
    shown = [[entry["by"], entry["channel"], entry["text"][: len(row[2])]] for entry in entries if row]
    assert shown == ([row] if row else [])
    assert (result.return_value, "2 lines cannot be read" in result.stderr) == ((1, True) if is_damaged else (0, False))
    assert not {"\x1b", "\ny"} & set(site.opsctl("audit").output)


@pytest.mark.attack("a steered train shows no trace of who did it")
def test_decision_about_a_train_is_shown(site: Site) -> None:
    journal = Journal(site.train(), SystemClock())
    journal.append(SwitchArmed(switch="kill", by="mallory", why="for fun"))
    journal.append(SwitchDisarmed(switch="kill", by="ann", why="a joke"))
    journal.append(RequestRefused(verb="release", by="mallory", why="not in the group"))
    journal.append(HoldReleased(jobs=("12",)))
    entries = json.loads(site.opsctl("audit", "--json").output)
    rows = [(entry["key"], entry["by"], entry["channel"].partition(" ")[0], entry["text"]) for entry in entries]
    assert rows == [
        ("tr11", actor(), "opsctl", "launched"),
        ("tr11", "mallory", "switch", "kill switch armed: for fun"),
        ("tr11", "ann", "switch", "kill switch disarmed: a joke"),
        ("tr11", "mallory", "request", "request refused: release: not in the group"),
        ("tr11", actor(), "opsctl", "released"),
    ]
    assert json.loads(site.opsctl("audit", "--since", "2026-12-31", "--json").output) == []


@pytest.mark.attack("a source that cannot be read is left out without a word")
@pytest.mark.parametrize(*read_cases(__file__, "unreadable"))
def test_unreadable_source_is_reported(site: Site, words: str, path: str, change: str) -> None:
    site.train()
    write_line(site, '{"kind": "ack", "actor": "ann@h", "by": "ann", "key": "hang/tr11", "reason": "x"}')
    place = next(site.root.glob(path), site.root / path)
    place.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["bash", "-ec", change], env={**os.environ, "path": str(place)}, check=True)
    result = site.opsctl(*words.split())
    assert str(place) in result.output + getattr(result.exception, "message", "")
    assert result.return_value == 1 or result.exception or words == "digest"
