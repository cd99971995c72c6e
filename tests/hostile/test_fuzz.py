"""A few inputs for every parser and file format. A million: tests/endurance/test_fuzz.py."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.base.errors import InputError
from opsctl.trainer.errors import Refused
from tests.hostile.fuzz import CORPUS, FuzzTarget, TooSlow, bounded_memory, bounded_time, find_failure, make_case
from tests.hostile.fuzz_all import TARGETS


@pytest.mark.attack("hostile input of a parser")
@pytest.mark.parametrize("name", TARGETS)
def test_parser_raises_only_documented_errors(name: str) -> None:
    target = TARGETS[name]
    samples = target.samples()

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(random=st.randoms(use_true_random=False), seed=st.integers(0, 2**32))
    def check(random: Random, seed: int) -> None:
        data = make_case(samples, Random(seed))
        assert find_failure(target, data) == "", data[:300]

    with bounded_time(), bounded_memory():
        check()


@pytest.mark.attack("an input on which a parser has failed before")
@pytest.mark.parametrize("path", sorted(CORPUS.glob("crashes/*.bin")), ids=lambda path: path.stem)
def test_crash_is_repaired(path: Path) -> None:
    targets = {name.replace(" ", "-").replace(",", ""): target for name, target in TARGETS.items()}
    with bounded_time(), bounded_memory():
        assert find_failure(targets[path.stem.rpartition("-")[0]], path.read_bytes()) == ""


def loop(_: bytes) -> None:
    while True:
        pass


def refuse(_: bytes) -> None:
    raise Refused("x" * 9000)


def test_guards_of_the_fuzzer_hold(monkeypatch):
    monkeypatch.setattr("tests.hostile.fuzz.MAX_CASE_S", 0.05)
    with bounded_time(), bounded_memory(50 << 20):
        assert find_failure(FuzzTarget(loop), b"") == "more than 0.05 s"
        assert find_failure(FuzzTarget(lambda _: bytes(100 << 20)), b"").startswith("more than 200 MB")
        assert find_failure(FuzzTarget(int), b"x").startswith("ValueError: ")
        assert find_failure(FuzzTarget(int, errors=(ValueError,)), b"x") == ""
        assert find_failure(FuzzTarget(refuse, errors=(Refused,)), b"x") == "a message of 9000 characters"
        assert len(str(InputError("x" * 9000))) < 8100
    assert issubclass(TooSlow, BaseException)
