"""Inputs on which parsers failed, took seconds, or answered with the whole input."""

import time

import pytest

from opsctl.base.capabilities import parse_version
from opsctl.base.errors import InputError, RunDirError, SlurmError
from opsctl.base.ports import Completed
from opsctl.base.web import parse_address as parse_web_address
from opsctl.checkpoints.trainer_command.shell import find_numbers
from opsctl.cron.crontab import parse_when
from opsctl.diagnosis.stack_dumps import parse as parse_stacks
from opsctl.launch.revisions import read_files
from opsctl.metrics.prometheus import parse_address
from opsctl.nodes.remote.fanout import merge_objects
from opsctl.preflight.corpus_files import tokenizer_size
from opsctl.sandbox.record import read_record
from opsctl.sandbox.start_failures import find_causes
from opsctl.slurm.field_values import parse_job_number, parse_tasks
from opsctl.slurm.slurm_errors import raise_for_error
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.disk_usage import MeasurementFailed, find_largest, read_pattern
from opsctl.telemetry.progress.last_lines import find_usage

DIGITS = "9" * 5000
DEEP = "[" * 200_000


def test_huge_numbers_are_no_numbers():
    assert parse_version(f"slurm {DIGITS}.{DIGITS}") == (9999, 9999)
    stacks = parse_stacks(f"Process {DIGITS}: x\nThread {DIGITS} (idle)\n    f (a.py:{DIGITS})\n".encode())
    assert [frame.line for stack in stacks for frame in stack.frames] == [0]
    assert find_numbers(f"N={DIGITS}", "N") == []
    with pytest.raises(InputError):
        parse_address(f"127.0.0.1:{DIGITS}")


def test_huge_count_of_du_is_skipped(tmp_path):
    (tmp_path / "du").write_text(f"B {DIGITS}\t/x/a\nB ²\t/x/b\nB 5\t/x/c\n")
    assert [user.size for user in find_largest(tmp_path / "du", "/x")] == [5]


def test_deep_json_is_no_output(tmp_path):
    assert merge_objects(f'{DEEP}\n{{"a": 1}}\n') == {"a": 1}
    for content in (DEEP, '{"model": {"vocab": {"a": 1e999}}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        assert tokenizer_size(tmp_path) is None


def test_messages_are_short():
    with pytest.raises(ValueError, match="is not a job id") as refused:
        parse_job_number("x" * 10_000)
    assert len(str(refused.value)) < 100
    for fields in ("x " * 9000, "* * * * " + "x" * 9000, "@" + "x" * 9000, f"*/5 9-{DIGITS} * * *"):
        with pytest.raises(ValueError, match="longer than") as refused:
            parse_when(fields, None)  # type: ignore[arg-type]  # refused before the zone is used
        assert len(str(refused.value)) < 200
    with pytest.raises(SlurmError) as failed:
        raise_for_error(Completed(argv=("sbatch",), code=1, out="", err="x" * 9000))
    assert len(str(failed.value)) < 2100


@pytest.mark.parametrize("line", ["x" * 50_000, "/" * 50_000, "Munge encode failed" * 2_500, "/a " * 15_000])
def test_log_of_a_daemon_is_read_in_linear_time(line):
    began = time.process_time()
    assert find_causes(f"{line}\nerror: open /run/x.key: Permission denied\n") == ["no permission: open /run/x.key"]
    assert time.process_time() - began < 2


@pytest.mark.parametrize("text", ["\n" * 8_000, " " * 8_000, " \n" * 4_000, "usage:" + "\n" * 8_000 + "1"])
def test_help_text_is_searched_in_linear_time(tmp_path, text):
    (tmp_path / "log").write_text(text)
    began = time.process_time()
    find_usage(tmp_path / "log", 0)
    assert time.process_time() - began < 0.5


def test_file_that_is_not_text_is_reported(tmp_path):
    run = RunDir(tmp_path / "tr11")
    run.create()
    run.config.write_bytes(b"\xff")
    with pytest.raises(RunDirError, match=r"train\.toml: .*can't decode"):
        read_files(run)


def test_quota_of_many_words_fails_shortly():
    with pytest.raises(MeasurementFailed) as failed:
        read_pattern("x" * 9000, "(?P<used>[0-9]+)")
    assert len(str(failed.value)) < 300


def test_array_of_millions_is_not_expanded():
    assert parse_tasks("0-3991844") == ()
    assert parse_tasks("7,0-99999,5-6") == (5, 6, 7)
    assert len(parse_tasks("1-100000")) == 100_000


def test_place_with_nul_has_no_owner(tmp_path):
    (tmp_path / "du").write_text("B 5\t/x/a\0b\n")
    assert [user.name for user in find_largest(tmp_path / "du", "/x")] == ["?"]


def test_deep_record_of_a_sandbox_is_invalid(tmp_path):
    (tmp_path / "sandbox.json").write_text(DEEP)
    assert read_record(tmp_path) is None


def test_address_with_a_long_port_is_not_quoted():
    with pytest.raises(ValueError, match="port of the address") as caught:
        parse_web_address(f"https://example.org:{DIGITS}/")
    assert len(str(caught.value)) < 100
