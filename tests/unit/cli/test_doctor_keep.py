"""`opsctl doctor --keep`: what every kind of files takes, and what bounds it."""

import json
from pathlib import Path

from click.testing import CliRunner

from opsctl.cli import cli
from tests.support.finalized_trains import make_train


def test_every_kind_of_files_has_its_size_and_bound(tmp_path: Path) -> None:
    train = make_train(tmp_path)
    for path in (train.run.logs / "12_1.0" / "node001-0.log", train.run.main_log):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 3000)
    (train.run.path / "code").symlink_to("/etc")
    site = tmp_path / "site.toml"
    site.write_text(f'root = "{tmp_path}"\ntrust_parents = true\n')
    words = ["--site", str(site), "doctor", "--keep", "--json"]
    rows = {row["check"]: row for row in json.loads(CliRunner(catch_exceptions=False).invoke(cli, words).stdout)}
    assert rows["gpt: logs of ranks"]["result"] == "2.93 KiB in 2 files"
    assert rows["gpt: main_log"]["result"] == "2.93 KiB in 1 files"
    assert rows["gpt: code"]["result"] == "0 B in 0 files"  # a link is not followed
    assert rows["site: debug logs"]["result"] == "0 B in 0 files"
    assert all(row["advice"] for row in rows.values())
