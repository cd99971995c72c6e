"""Rendered bodies, run by bash."""

import sys

import pytest

from tests.support.cases import read_cases
from tests.support.hostile_words import HOSTILE_WORDS


@pytest.mark.parametrize(*read_cases(__file__, "body_runs"))
def test_body_runs(bench, words, settings, variables, expected):
    done = bench.run(bench.script(words, **(settings or {})), **(variables or {}))
    assert done.returncode == expected.get("code", 0), done.stderr
    assert "dumped" not in expected or bench.dumped == expected["dumped"]


@pytest.mark.parametrize("code", [0, 1, 85])
def test_exit_code_passes_through_the_real_shim(bench, code):
    script = bench.script(["dump"], python=sys.executable)
    assert bench.run(script, CODE=str(code), V="", SLURM_PROCID="0").returncode == code


def test_hostile_text_arrives_unchanged_and_runs_nothing(bench):
    done = bench.run(bench.script(["dump", *HOSTILE_WORDS], environment={"V": "".join(HOSTILE_WORDS)}))
    assert done.returncode == 0, done.stderr
    assert bench.dumped == ["".join(HOSTILE_WORDS), *HOSTILE_WORDS]
    assert not (bench.place / "pwned").exists()


def test_failing_setup_line_ends_the_body_and_is_named(bench):
    done = bench.run(bench.script(["dump"], setup={"lines": ["false"]}))
    assert done.returncode == 1
    assert done.stderr.startswith("opsctl: body.sh line ")
    assert done.stderr.endswith("ended with 1: false\n")


def test_trainer_starts_in_the_configured_directory(bench, tmp_path):
    directory = tmp_path / "-my $code"
    directory.mkdir()
    done = bench.run(bench.script(["pwd"], setup={"directory": str(directory), "lines": ["pwd"]}))
    assert [line.rpartition("/")[2] for line in done.stdout.splitlines()] == ["-my $code"] * 2, done


def test_missing_directory_ends_the_body_and_is_named(bench):
    done = bench.run(bench.script(["dump"], setup={"directory": "/gone"}))
    assert (done.returncode, "/gone: No such file or directory" in done.stderr) == (1, True)


def test_modules_are_loaded_by_the_module_function(bench):
    lines = ['module() { V="$*"; }']
    script = bench.script(["dump"], setup={"modules": ["cuda/12.4", "nccl;x"]}).replace(
        "\nset +u\n", f"\n{lines[0]}\nset +u\n", 1
    )
    bench.run(script, V="")
    assert bench.dumped == ["load cuda/12.4 nccl;x"]


def test_node_without_an_address_is_reached_by_name(bench):
    script = bench.script(["dump", "{{ master_addr }}"]).replace("timeout 20 scontrol", "timeout 20 false")
    assert bench.run(script, V="").returncode == 0
    assert bench.dumped[1:] == ["node001"]


def test_body_ends_where_the_shim_cannot_start(bench):
    done = bench.run(bench.script(["dump"], python=str(bench.place / "none")), V="")
    assert done.returncode == 127


def test_exit_code_of_an_earlier_attempt_is_ignored(bench):
    logs = bench.place / "left"
    logs.mkdir()
    (logs / "first-exit").write_text("85\n")
    (logs / "quiet").mkdir()
    (logs / "quiet" / "node009").touch()
    assert bench.run(bench.script(["dump"]), V="", CODE="3", TRAIN_ATTEMPT_LOGS=str(logs)).returncode == 3
    assert list((logs / "quiet").iterdir()) == []
