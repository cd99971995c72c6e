"""Rendered bodies, run by bash."""

import sys

import pytest

from tests.support.hostile_words import HOSTILE_WORDS


@pytest.mark.parametrize("code", [0, 1, 85])
def test_body_has_the_exit_code_of_the_trainer(bench, code):
    assert bench.run(bench.script(["dump"]), CODE=str(code), V="").returncode == code


@pytest.mark.parametrize("code", [0, 1, 85])
def test_exit_code_passes_through_the_real_shim(bench, code):
    script = bench.script(["dump"], python=sys.executable)
    assert bench.run(script, CODE=str(code), V="", SLURM_PROCID="0").returncode == code


def test_hostile_text_arrives_unchanged_and_runs_nothing(bench):
    done = bench.run(bench.script(["dump", *HOSTILE_WORDS], environment={"V": "".join(HOSTILE_WORDS)}))
    assert done.returncode == 0, done.stderr
    assert bench.dumped == ["".join(HOSTILE_WORDS), *HOSTILE_WORDS]
    assert not (bench.place / "pwned").exists()


def test_placeholder_is_filled_from_the_attempt(bench):
    script = bench.script(["dump", "--stop={{ stop_request }}", "{{ nodes }}x{{ world_size }}", "{{ master_addr }}"])
    bench.run(script, TRAIN_STOP_REQUEST="/a b/$(id)", V="")
    assert bench.dumped[1:] == ["--stop=/a b/$(id)", "2x4", "10.0.0.7"]


def test_placeholder_is_empty_without_a_guard(bench):
    assert bench.run(bench.script(["dump", "{{ stop_request }}"]), V="").returncode == 0
    assert bench.dumped[1:] == [""]


def test_setup_lines_override_the_environment(bench):
    bench.run(bench.script(["dump"], environment={"V": "config"}), V="outer")
    assert bench.dumped == ["config"]
    bench.run(bench.script(["dump"], environment={"V": "config"}, setup={"lines": ["V=line"]}))
    assert bench.dumped == ["line"]


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


def test_failing_pipe_in_a_setup_line_ends_the_body(bench):
    assert bench.run(bench.script(["dump"], setup={"lines": ["(exit 7) | cat"]})).returncode == 7


def test_setup_line_may_read_an_unset_variable(bench):
    done = bench.run(bench.script(["dump"], setup={"lines": ['[ -z "$NOT_SET" ]']}), V="")
    assert done.returncode == 0, done.stderr


def test_setup_line_may_leave_strict_mode(bench):
    done = bench.run(bench.script(["dump"], setup={"lines": ["set +e +o pipefail", "false"]}), V="", CODE="85")
    assert done.returncode == 85, done.stderr


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


def test_code_of_the_first_failed_rank_wins_over_srun(bench):
    # srun exits with 143 when it had to end the other ranks.
    script = bench.script(["bash", "-c", 'echo 85 >"$TRAIN_ATTEMPT_LOGS/first-exit"; exit 143'])
    assert bench.run(script).returncode == 85


def test_exit_code_of_an_earlier_attempt_is_ignored(bench):
    logs = bench.place / "left"
    logs.mkdir()
    (logs / "first-exit").write_text("85\n")
    assert bench.run(bench.script(["dump"]), V="", CODE="3", TRAIN_ATTEMPT_LOGS=str(logs)).returncode == 3
