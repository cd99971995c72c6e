"""Logs made of real lines: the lines of one rank among the lines of all other ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

CORPUS = Path(__file__).parents[2] / "corpus" / "diagnosis"
LOST = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
    "remote process exited or there was a network error, NCCL version 2.21.5"
)
TIMEOUT = (
    "[E ProcessGroupNCCL.cpp:737] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out."
)
ITERATION = (
    " iteration {:8d}/  311541 | consumed samples: 1024 | elapsed time per iteration (ms): 22306.6 | lm loss: 2.7E+00 |"
)


@dataclass
class Log:
    """A main log of 64 nodes with 8 ranks each."""

    path: Path
    ranks: int = 512
    lines: list[str] = field(default_factory=list)

    def node(self, rank: int) -> str:
        return f"r10i{rank // 64}n{rank // 8 % 8}"

    def add(self, rank: int, text: str) -> Log:
        self.lines += [f"[{self.node(rank)}:{rank}]: {line}" for line in text.splitlines()]
        return self

    def add_all(self, text: str, *, except_ranks: tuple[int, ...] = ()) -> Log:
        for rank in range(self.ranks):
            if rank not in except_ranks:
                self.add(rank, text.format(rank=rank))
        return self

    def add_steps(self, *steps: int) -> Log:
        for step in steps:
            self.add(self.ranks - 1, ITERATION.format(step))
        return self

    def add_plain(self, text: str) -> Log:
        self.lines += text.splitlines()
        return self

    def write(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("\n".join(self.lines) + "\n")
        return self.path


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "main_log.txt")


def read_corpus(name: str) -> str:
    return (CORPUS / name).read_text()
