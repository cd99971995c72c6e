"""The memory of watchdogs between two cycles, with and without a writable disk."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from opsctl.watchdogs.context import WatchdogMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    step: int = 0


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
    memory.remember("hang", "gpt/1", StepMemory(step=1))
    assert memory.recall(StepMemory, "hang", "gpt/1").step == 1
    assert not memory.spare.exists()


def test_unwritable_memory_uses_the_spare_and_reports(memory: WatchdogMemory) -> None:
    memory.remember("hang", "gpt", StepMemory(step=1))
    block(memory)
    memory.remember("hang", "gpt", StepMemory(step=2))
    assert memory.recall(StepMemory, "hang", "gpt").step == 2
    assert len(memory.problems) == 1


def test_spare_is_removed_when_the_memory_is_writable(memory: WatchdogMemory) -> None:
    memory.remember("hang", "gpt", StepMemory(step=1))
    aside = block(memory)
    memory.remember("hang", "gpt", StepMemory(step=2))
    memory.directory.unlink()
    aside.rename(memory.directory)
    assert memory.recall(StepMemory, "hang", "gpt").step == 2  # the spare is newer
    memory.remember("hang", "gpt", StepMemory(step=3))
    assert memory.recall(StepMemory, "hang", "gpt").step == 3
    assert not [path for path in memory.spare.rglob("*") if path.is_file()]


def test_empty_spare_overrides_an_older_memory(memory: WatchdogMemory) -> None:
    memory.remember("hang", "gpt", StepMemory(step=1))
    aside = block(memory)
    memory.remember("hang", "gpt", StepMemory())
    memory.directory.unlink()
    aside.rename(memory.directory)
    assert memory.recall(StepMemory, "hang", "gpt").step == 0


def test_unreadable_memory_is_empty(memory: WatchdogMemory) -> None:
    memory.remember("hang", "gpt", StepMemory(step=1))
    next(memory.directory.rglob("*.json")).write_text("[")
    assert memory.find(StepMemory, "hang", "gpt") is None
