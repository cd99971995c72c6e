"""The memory of watchdogs between two cycles, with and without a writable disk."""

from pathlib import Path

import pytest

from opsctl.watchdogs.context import WatchdogMemory


@pytest.fixture
def memory(tmp_path: Path) -> WatchdogMemory:
    return WatchdogMemory(tmp_path / "site", spare=tmp_path / "spare")


def block(memory: WatchdogMemory) -> Path:
    """Put a file where the directory of the memory should be, so that nothing can be written."""
    memory.directory.parent.mkdir(exist_ok=True)
    aside = memory.directory.with_name("aside")
    if memory.directory.exists():
        memory.directory.rename(aside)
    memory.directory.write_text("")
    return aside


def test_memory_is_read_back(memory: WatchdogMemory) -> None:
    memory.write("hang", "gpt/1", {"step": 1})
    assert memory.read("hang", "gpt/1") == {"step": 1}
    assert not memory.spare.exists()


def test_unwritable_memory_uses_the_spare_and_reports(memory: WatchdogMemory) -> None:
    memory.write("hang", "gpt", {"step": 1})
    block(memory)
    memory.write("hang", "gpt", {"step": 2})
    assert memory.read("hang", "gpt") == {"step": 2}
    assert len(memory.problems) == 1


def test_spare_is_removed_when_the_memory_is_writable(memory: WatchdogMemory) -> None:
    memory.write("hang", "gpt", {"step": 1})
    aside = block(memory)
    memory.write("hang", "gpt", {"step": 2})
    memory.directory.unlink()
    aside.rename(memory.directory)
    assert memory.read("hang", "gpt") == {"step": 2}  # the spare is newer
    memory.write("hang", "gpt", {"step": 3})
    assert memory.read("hang", "gpt") == {"step": 3}
    assert not [path for path in memory.spare.rglob("*") if path.is_file()]


def test_empty_spare_overrides_an_older_memory(memory: WatchdogMemory) -> None:
    memory.write("hang", "gpt", {"step": 1})
    aside = block(memory)
    memory.write("hang", "gpt", {})
    memory.directory.unlink()
    aside.rename(memory.directory)
    assert memory.read("hang", "gpt") == {}


def test_unreadable_memory_is_empty(memory: WatchdogMemory) -> None:
    memory.write("hang", "gpt", {"step": 1})
    next(memory.directory.rglob("*.json")).write_text("[")
    assert memory.read("hang", "gpt") == {}
