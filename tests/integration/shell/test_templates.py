"""Rendered bodies, executed."""

import sys

import pytest

HOSTILE = [
    "sp ace",
    "it's",
    '"',
    "$(touch pwned)",
    "`touch pwned`",
    "new\nline",
    "x" * 300,
    "ünïcödé ☃",
    "%j%%",
    "{{",
    "{% x %}",
    "-n",
    "--help",
    "",
    "*",
    "~",
    "\\",
    "$HOME",
    "; touch pwned",
    "#",
    "!!",
    "\t",
    "\r",
]


@pytest.mark.parametrize("code", [0, 1, 85])
def test_the_exit_code_of_the_trainer_is_the_bodys(bench, code):
    assert bench.run(bench.script(["dump"]), CODE=str(code), V="").returncode == code


@pytest.mark.parametrize("code", [0, 1, 85])
def test_the_exit_code_comes_through_the_real_shim_too(bench, code):
    script = bench.script(["dump"], python=sys.executable)
    assert bench.run(script, CODE=str(code), V="", SLURM_PROCID="0").returncode == code


def test_hostile_words_and_values_arrive_word_for_word_and_run_nothing(bench):
    done = bench.run(bench.script(["dump", *HOSTILE], environment={"V": "".join(HOSTILE)}))
    assert done.returncode == 0, done.stderr
    assert bench.dumped == ["".join(HOSTILE), *HOSTILE]
    assert not (bench.place / "pwned").exists()


def test_a_placeholder_is_filled_from_the_attempt(bench):
    script = bench.script(["dump", "--stop={{ stop_request }}", "{{ nodes }}x{{ world_size }}", "{{ master_addr }}"])
    bench.run(script, TRAIN_STOP_REQUEST="/a b/$(id)", V="")
    assert bench.dumped[1:] == ["--stop=/a b/$(id)", "2x4", "10.0.0.7"]


def test_without_a_guard_a_placeholder_is_empty_and_the_body_still_runs(bench):
    assert bench.run(bench.script(["dump", "{{ stop_request }}"]), V="").returncode == 0
    assert bench.dumped[1:] == [""]


def test_the_environment_goes_before_what_was_there_and_setup_lines_have_the_last_word(bench):
    bench.run(bench.script(["dump"], environment={"V": "config"}), V="outer")
    assert bench.dumped == ["config"]
    bench.run(bench.script(["dump"], environment={"V": "config"}, setup={"lines": ["V=line"]}))
    assert bench.dumped == ["line"]


def test_a_setup_line_that_fails_ends_the_body_and_is_named(bench):
    done = bench.run(bench.script(["dump"], setup={"lines": ["false"]}))
    assert done.returncode == 1
    assert done.stderr.startswith("opsctl: body.sh line ")
    assert done.stderr.endswith("ended with 1: false\n")


def test_the_trainer_starts_in_the_directory_that_is_asked_for(bench, tmp_path):
    (odd := tmp_path / "-my $code").mkdir()
    done = bench.run(bench.script(["pwd"], setup={"directory": str(odd), "lines": ["pwd"]}))
    assert [line.rpartition("/")[2] for line in done.stdout.splitlines()] == ["-my $code"] * 2, done


def test_a_directory_that_is_gone_ends_the_body_and_is_named(bench):
    done = bench.run(bench.script(["dump"], setup={"directory": "/gone"}))
    assert (done.returncode, "/gone: No such file or directory" in done.stderr) == (1, True)


def test_a_setup_line_that_fails_in_a_pipe_ends_the_body(bench):
    assert bench.run(bench.script(["dump"], setup={"lines": ["(exit 7) | cat"]})).returncode == 7


def test_a_setup_line_may_read_what_is_not_set(bench):
    done = bench.run(bench.script(["dump"], setup={"lines": ['[ -z "$NOT_SET" ]']}), V="")
    assert done.returncode == 0, done.stderr


def test_a_setup_line_that_is_no_longer_strict_leaves_the_rest_strict(bench):
    done = bench.run(bench.script(["dump"], setup={"lines": ["set +e +o pipefail", "false"]}), V="", CODE="85")
    assert done.returncode == 85, done.stderr


def test_modules_are_loaded_by_whatever_the_site_calls_module(bench):
    lines = ['module() { V="$*"; }']
    script = bench.script(["dump"], setup={"modules": ["cuda/12.4", "nccl;x"]}).replace(
        "\nset +u\n", f"\n{lines[0]}\nset +u\n", 1
    )
    bench.run(script, V="")
    assert bench.dumped == ["load cuda/12.4 nccl;x"]


def test_a_node_whose_address_slurm_does_not_tell_is_reached_by_its_name(bench):
    script = bench.script(["dump", "{{ master_addr }}"]).replace("timeout 20 scontrol", "timeout 20 false")
    assert bench.run(script, V="").returncode == 0
    assert bench.dumped[1:] == ["node001"]


def test_where_the_shim_cannot_start_the_body_ends_and_says_so(bench):
    done = bench.run(bench.script(["dump"], python=str(bench.place / "none")), V="")
    assert done.returncode == 127


def test_the_code_of_the_rank_that_failed_first_goes_before_what_srun_says(bench):
    # srun says 143 for all as soon as it had to end the other ranks.
    script = bench.script(["bash", "-c", 'echo 85 >"$TRAIN_ATTEMPT_LOGS/first-exit"; exit 143'])
    assert bench.run(script).returncode == 85


def test_what_an_earlier_attempt_left_is_not_taken_for_this_ones(bench):
    logs = bench.place / "left"
    logs.mkdir()
    (logs / "first-exit").write_text("85\n")
    assert bench.run(bench.script(["dump"]), V="", CODE="3", TRAIN_ATTEMPT_LOGS=str(logs)).returncode == 3
