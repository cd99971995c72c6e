"""Start and end of the process groups, and the group in which ranks agree on decisions."""

import os
import sys
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist

from opsctl.trainer.rank_process import RankProcess

T = TypeVar("T")


class Control:
    """A gloo group of all ranks for small decisions, separate from the traffic of training, with and without GPUs."""

    def __init__(self, process: RankProcess, *, timeout: timedelta) -> None:
        self.process = process
        self._group = dist.new_group(backend="gloo", timeout=timeout)

    def highest(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise maximum of `values` over all ranks, in log2(ranks) rounds of one message each."""
        highest = torch.tensor(values, dtype=torch.float64)
        for distance in doubling_distances(self.process.world_size):
            torch.maximum(highest, self._exchange(highest, distance), out=highest)
        return [float(value) for value in highest]

    def _exchange(self, tensor: torch.Tensor, distance: int) -> torch.Tensor:
        """Send `tensor` to the rank `distance` above, and return what the rank `distance` below has sent."""
        rank, ranks = self.process.rank, self.process.world_size
        received = torch.empty_like(tensor)
        sent = dist.isend(tensor.clone(), dst=(rank + distance) % ranks, group=self._group)
        dist.recv(received, src=(rank - distance) % ranks, group=self._group)
        sent.wait()
        return received

    def gather(self, value: T) -> list[T]:
        """Return the `value` of every rank, on every rank."""
        values: list[Any] = [None] * self.process.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def from_first(self, value: T) -> T:
        """Return the `value` of rank 0, on every rank."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def barrier(self) -> None:
        dist.barrier(group=self._group)


def doubling_distances(ranks: int) -> list[int]:
    """Return the distances 1, 2, 4 … below `ranks`: after a round at each, every rank has heard of every other.

    Gloo's all-reduce passes a ring twice: its latency grows with the number of ranks, and not with its logarithm.
    """
    return [1 << turn for turn in range((ranks - 1).bit_length())]


def choose_accelerator() -> None:
    """Choose DeepSpeed's CPU accelerator if there is no GPU. Call before the import of DeepSpeed, which else warns."""
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    # Every rank of every attempt would print these warnings about DeepSpeed's own calls.
    warnings.filterwarnings("ignore", message=r"c10d::\w+: an autograd kernel was not registered")
    warnings.filterwarnings("ignore", message=r".*(gather_into|scatter)_tensor. is deprecated", category=FutureWarning)


def connect(process: RankProcess, *, timeout_s: float) -> Control:
    """Connect to the other ranks. A collective that waits longer than `timeout_s` raises."""
    device = choose_device(process)
    timeout = timedelta(seconds=timeout_s)
    os.environ.update(RANK=str(process.rank), WORLD_SIZE=str(process.world_size))
    os.environ["LOCAL_RANK"] = str(process.local_rank if device is None else device)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0" if process.world_size == 1 else "29500")
    # DeepSpeed creates groups without a timeout; torch then uses these defaults, not the timeout of the first group.
    dist.distributed_c10d.default_pg_timeout = timeout
    dist.distributed_c10d.default_pg_nccl_timeout = timeout

    import deepspeed  # noqa: PLC0415 - not before its accelerator is chosen

    from opsctl.trainer import deepspeed_private  # noqa: PLC0415 - likewise

    deepspeed_private.keep_uncompiled()
    deepspeed.utils.logger.setLevel("WARNING")
    deepspeed.init_distributed(
        dist_backend="gloo" if device is None else "nccl", auto_mpi_discovery=False, timeout=timeout, verbose=False
    )
    return Control(process, timeout=timeout)


def choose_device(process: RankProcess) -> int | None:
    """Make one GPU the current one of this process and return its index; None without a GPU.

    Every later call, as for the memory in use, then concerns this GPU: before, every rank would open a context of some
    500 MB on GPU 0. A scheduler that shows every rank a single GPU calls it 0.
    """
    if not torch.cuda.is_available():
        return None
    device = process.local_rank % int(torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def leave(control: Control, status: int) -> NoReturn:
    """End this process together with the other ranks.

    os._exit() skips the interpreter's shutdown, in which threads of DeepSpeed and gloo sometimes abort.
    """
    control.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
