"""Memory usage of node, job and GPU; the fullest rank decides."""

import os

import pytest

pytest.importorskip("deepspeed")

from opsctl.trainer import memory_usage, process_groups
from opsctl.trainer.contract import TrainerStop
from opsctl.trainer.loop import Hooks
from opsctl.trainer.memory_usage import MemoryUsage, host_percent
from opsctl.trainer.rank_process import RankProcess
from opsctl.trainer.run_state import RunState
from tests.integration.trainer.conftest import tiny
from tests.support.cases import read_cases

pytestmark = pytest.mark.torch


class Ranks:
    """A group whose other ranks measured `others`."""

    def __init__(self, *others, names=()):
        self.others, self.names = others, names

    def highest(self, values):
        flags = values[:-2]
        return [*flags, *(max(column) for column in zip(values[-2:], *self.others, strict=True))]

    def gather(self, value):
        return [value, *self.names]


def make_hooks(**limits):
    return Hooks({}, polls=True, margin_s=0, memory=MemoryUsage(where="n1-0", **limits))


def test_memory_of_the_node_is_measured_in_percent():
    measured = host_percent()
    assert 0.5 < measured <= 100.0
    free = os.sysconf("SC_AVPHYS_PAGES") / os.sysconf("SC_PHYS_PAGES")
    assert measured <= 100.0 - 100.0 * free + 60  # reclaimable caches do not count


def test_caches_do_not_count(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 600 kB\n")
    assert host_percent(meminfo=tmp_path / "meminfo", cgroup=tmp_path / "gone") == 40.0


def test_unreadable_memory_figures_do_not_stop(tmp_path):
    assert host_percent(meminfo=tmp_path / "gone", cgroup=tmp_path / "gone") == 0.0


@pytest.mark.parametrize(*read_cases(__file__, "memory_limit_of_the_job_counts_if_lower"))
def test_memory_limit_of_the_job_counts_if_lower(tmp_path, monkeypatch, line, files):
    monkeypatch.setattr(memory_usage, "_ROOT", tmp_path / "cgroup")
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name("memory.stat").write_text("anon 800\ninactive_file 100\nactive_file 50\n")
    (tmp_path / "self").write_text(f"1:cpu:/x\n{line}\n")
    assert host_percent(meminfo=tmp_path / "gone", cgroup=tmp_path / "self") == 80.0


def test_fullest_node_decides_and_is_named():
    hooks = make_hooks(host_limit=99.9)
    decision = hooks.agree(Ranks((99.95, 0.0), (3.0, 0.0), names=("", "n7-0")), RunState())
    assert decision.stop is TrainerStop.MEMORY
    assert hooks.detail == "host memory is 100.0 % full, and the limit is 99.9 % (n7-0)"


def test_full_gpu_stops_too():
    hooks = make_hooks(gpu_limit=90.0)
    assert hooks.agree(Ranks((0.0, 91.0)), RunState()).stop is TrainerStop.MEMORY
    assert hooks.detail.startswith("GPU memory is 91.0 % full, and the limit is 90 %")


def test_limit_is_compared_in_percent():
    """Memory that is 1 % or 94 % full is below a limit of 95."""
    for full in (1.0, 94.0):
        assert make_hooks(gpu_limit=95.0).agree(Ranks((0.0, full)), RunState()).stop is None


def test_without_a_limit_nothing_is_measured():
    assert MemoryUsage().measure() == (0.0, 0.0)
    assert make_hooks().agree(Ranks((100.0, 100.0)), RunState()).stop is None


def test_every_rank_opens_a_context_on_its_gpu_only(monkeypatch):
    """The first look at the memory of the GPU comes before DeepSpeed chooses a device."""
    contexts, current = [], [0]
    fake = {
        "is_available": lambda: True,
        "device_count": lambda: 4,
        "set_device": current.append,
        "mem_get_info": lambda: contexts.append(current[-1]) or (90, 100),
        "memory_reserved": lambda: 0,
        "memory_allocated": lambda: 0,
    }
    for name, function in fake.items():
        monkeypatch.setattr(memory_usage.torch.cuda, name, function)
    joined = []
    monkeypatch.setattr("deepspeed.init_distributed", lambda **how: joined.append(how["dist_backend"]))
    monkeypatch.setattr(
        process_groups.dist, "new_group", lambda **_: joined.append(MemoryUsage(gpu_limit=90).measure())
    )
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(process_groups.dist.distributed_c10d, "default_pg_timeout", None)
    monkeypatch.setattr(process_groups.dist.distributed_c10d, "default_pg_nccl_timeout", None)
    process_groups.connect(RankProcess(rank=6, world_size=8, local_rank=2, node="n1"), timeout_s=9.0)
    assert joined == ["nccl", (0.0, 10.0)]
    assert contexts == [2]
    assert os.environ["LOCAL_RANK"] == "2"


def test_run_on_a_full_node_stops_with_the_reason(train):
    """The first check comes before the model is built, so there is nothing to save."""
    run = train(**tiny(limits={"host_memory_percent": 0.01}))
    attempt = run.start(world=2)
    assert attempt.finish() == [1, 1], attempt.log
    assert attempt.stop_reason.reason is TrainerStop.MEMORY
    assert "% full, and the limit is 0.01 % (node0-0, node0-1)" in attempt.stop_reason.detail
