"""The host copy that a save writes: the state of one moment, without unused storage."""

import os
from collections import OrderedDict, namedtuple

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opsctl.trainer.checkpoint.rank_files import HostCopies, pin  # noqa: E402 - torch may be absent
from opsctl.trainer.checkpoint.save import expected_size, shortage  # noqa: E402 - likewise

Pair = namedtuple("Pair", "left right")


class Scale:
    """An object that training changes, such as a loss scaler."""

    def __init__(self) -> None:
        self.value, self.history = 1, torch.zeros(2)


def test_copy_does_not_follow_later_training():
    state = {"weight": torch.ones(3), "groups": [{"lr": 0.1, "mean": torch.ones(2)}], "scale": Scale()}
    copied = HostCopies().copy("file", state)
    state["weight"].zero_()
    state["groups"][0]["mean"].zero_()
    state["groups"][0]["lr"] = 0.2
    state["scale"].value = 2
    state["scale"].history.fill_(7)
    assert torch.equal(copied["weight"], torch.ones(3))
    assert torch.equal(copied["groups"][0]["mean"], torch.ones(2))
    assert (copied["groups"][0]["lr"], copied["scale"].value) == (0.1, 1)
    assert torch.equal(copied["scale"].history, torch.zeros(2))


def test_view_is_copied_without_its_storage():
    flat = torch.arange(1000)
    copied = HostCopies().copy("file", {"part": flat[10:14]})
    assert copied["part"].tolist() == [10, 11, 12, 13]
    assert copied["part"].untyped_storage().nbytes() == 4 * 8


def test_memory_is_reused_for_the_same_file_only():
    copies = HostCopies()
    first = copies.copy("one", {"weight": torch.zeros(4)})
    other = copies.copy("two", {"weight": torch.ones(4)})
    again = copies.copy("one", {"weight": torch.full((4,), 2.0)})
    assert again["weight"].data_ptr() == first["weight"].data_ptr() != other["weight"].data_ptr()
    larger = copies.copy("one", {"weight": torch.zeros(9)})
    assert larger["weight"].shape == (9,)


def test_containers_and_shared_tensors_are_preserved():
    weight = torch.ones(2)
    state = OrderedDict(a=Pair(weight, (weight, None)), b=[weight], c="text")
    copied = HostCopies().copy("file", state)
    assert isinstance(copied, OrderedDict)
    assert isinstance(copied["a"], Pair)
    assert copied["a"].left is copied["b"][0] is copied["a"].right[0]
    assert copied["a"].left is not weight


def test_parameters_are_copied_without_gradients():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    copied = HostCopies().copy("file", {"p": parameter})
    assert torch.equal(copied["p"].detach(), torch.ones(2))
    assert copied["p"].grad is None


@pytest.mark.parametrize(("precision", "least"), [("bf16", 14), ("fp32", 16)])
def test_size_of_the_first_checkpoint_is_predicted(tmp_path, precision, least):
    size, files = expected_size(tmp_path, parameters=10**9, precision=precision, ranks=8)
    assert least <= size / 1e9 <= least + 1
    assert files > 8


def test_missing_bytes_and_inodes_are_reported_together(tmp_path):
    assert shortage(tmp_path, size=0, files=0) == ""
    lacking = shortage(tmp_path, size=10**18, files=10**18)
    assert f"not enough space in {tmp_path}: needs about 1000000000000.0 MB, and " in lacking
    if os.statvfs(tmp_path).f_files:  # some file systems create inodes on demand
        assert "; needs about 1000000000000000000 files, and " in lacking


class PinnedPages:
    """The calls of CUDA's runtime that lock pages; `error` is their result."""

    def __init__(self, error: int = 0) -> None:
        self.error, self.bytes = error, {}

    def cudaHostRegister(self, pointer, size, flags):
        self.bytes[pointer] = size
        return self.error

    def cudaHostUnregister(self, pointer):
        del self.bytes[pointer]


def test_pinned_memory_has_the_size_of_the_tensor():
    pages = PinnedPages()
    buffer = torch.empty(3_000_001, dtype=torch.bfloat16)
    assert pin(buffer, pages)
    assert list(pages.bytes.values()) == [6_000_002]
    del buffer
    assert not pages.bytes


def test_small_or_refused_buffers_stay_unpinned():
    assert not pin(torch.empty(100), PinnedPages())
    assert not pin(torch.empty(1_000_000), PinnedPages(error=2))
