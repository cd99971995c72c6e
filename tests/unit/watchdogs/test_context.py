"""What watchdogs keep between two looks, also while the disk that they keep it on does not take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.watchdogs.context import WatchdogMemory


@pytest.fixture
def memory(tmp_path: Path) -> WatchdogMemory:
    return WatchdogMemory(tmp_path / "site", spare=tmp_path / "spare")


def block(memory: WatchdogMemory) -> Path:
    """Nothing can be written where it should be: a file is in the way."""
    memory.directory.parent.mkdir(exist_ok=True)
    aside = memory.directory.with_name("aside")
    if memory.directory.exists():
        memory.directory.rename(aside)
    memory.directory.write_text("")
    return aside


def test_what_is_kept_is_read_again(memory: WatchdogMemory) -> None:
    memory.write("hang", "gpt/1", {"step": 1})
    assert memory.read("hang", "gpt/1") == {"step": 1}
    assert not memory.spare.exists()


def test_what_cannot_be_kept_in_its_place_is_kept_in_the_spare_one_and_said(memory: WatchdogMemory) -> None:
    memory.write("hang", "gpt", {"step": 1})
    block(memory)
    memory.write("hang", "gpt", {"step": 2})
    assert memory.read("hang", "gpt") == {"step": 2}
    assert len(memory.problems) == 1


def test_the_spare_one_is_gone_when_its_place_takes_it_again(memory: WatchdogMemory) -> None:
    memory.write("hang", "gpt", {"step": 1})
    aside = block(memory)
    memory.write("hang", "gpt", {"step": 2})
    memory.directory.unlink()
    aside.rename(memory.directory)
    assert memory.read("hang", "gpt") == {"step": 2}  # the spare one is the newer
    memory.write("hang", "gpt", {"step": 3})
    assert memory.read("hang", "gpt") == {"step": 3}
    assert not [path for path in memory.spare.rglob("*") if path.is_file()]


def test_also_nothing_is_newer_than_what_was_kept_before(memory: WatchdogMemory) -> None:
    memory.write("hang", "gpt", {"step": 1})
    aside = block(memory)
    memory.write("hang", "gpt", {})
    memory.directory.unlink()
    aside.rename(memory.directory)
    assert memory.read("hang", "gpt") == {}


def test_what_nobody_can_read_is_forgotten(memory: WatchdogMemory) -> None:
    memory.write("hang", "gpt", {"step": 1})
    next(memory.directory.rglob("*.json")).write_text("[")
    assert memory.read("hang", "gpt") == {}
