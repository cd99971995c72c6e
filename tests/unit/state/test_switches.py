"""Switches and requests: existence asks, content is never believed."""

import os

import pytest

from opsctl.host.system import user_name
from opsctl.state import switches
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import RequestKind, Switch


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "gpt")
    run.create()
    return run


def test_a_switch_that_is_armed_says_why_and_by_whom(run):
    assert switches.arm(run, Switch.KILL, why="bad loss")
    armed = switches.read(run, Switch.KILL)
    assert (armed.switch, armed.why) == (Switch.KILL, "bad loss")
    assert armed.by == user_name(switches.path_of(run, Switch.KILL).stat().st_uid)


def test_a_switch_that_is_armed_is_left_as_it_is(run):
    switches.arm(run, Switch.KILL, why="first")
    assert not switches.arm(run, Switch.KILL, why="second")
    assert switches.read(run, Switch.KILL).why == "first"


def test_disarming_says_whether_there_was_anything(run):
    switches.arm(run, Switch.SAVE, why="")
    assert [switches.disarm(run, Switch.SAVE), switches.disarm(run, Switch.SAVE)] == [True, False]


@pytest.mark.parametrize(
    "content", [b"", b"touched", b"[]", b'{"why": 3}', b'{"by": "root"}', b"\xff" * 20_000, b"[" * 9_000]
)
def test_a_file_with_anything_in_it_is_a_switch(run, content):
    switches.path_of(run, Switch.PAUSE).write_bytes(content)
    assert switches.read(run, Switch.PAUSE) is not None


def test_who_armed_it_is_the_files_owner_and_not_its_text(run):
    switches.path_of(run, Switch.KILL).write_text('{"by": "somebody-else", "why": "x"}')
    assert switches.read(run, Switch.KILL).by != "somebody-else"


def test_a_dangling_link_a_pipe_and_a_directory_are_switches_that_are_not_followed(run, tmp_path):
    (tmp_path / "secret").write_text('{"why": "secret"}')
    switches.path_of(run, Switch.KILL).symlink_to(tmp_path / "secret")
    os.mkfifo(switches.path_of(run, Switch.PAUSE))
    switches.path_of(run, Switch.SAVE).mkdir()
    says = "a directory in place of the switch; disarming removes it"
    assert [armed.why for armed in switches.find_armed(run)] == ["", "", says]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_cannot_be_looked_at_is_not_taken_for_not_armed(run):
    run.switches.chmod(0)
    with pytest.raises(PermissionError):
        switches.read(run, Switch.KILL)


def test_all_that_is_armed_comes_with_the_strongest_first(run):
    for switch in (Switch.SAVE, Switch.PAUSE, Switch.KILL):
        switches.arm(run, switch, why="")
    assert [armed.switch for armed in switches.find_armed(run)] == [Switch.KILL, Switch.PAUSE, Switch.SAVE]


def test_requests_come_the_oldest_first(run):
    first = switches.request(run, RequestKind.RELEASE, exclude="node001")
    second = switches.request(run, RequestKind.RELEASE)
    os.utime(first, (2, 2))
    os.utime(second, (1, 1))
    assert [(request.exclude, request.path) for request in switches.list_requests(run)] == [
        ("", second),
        ("node001", first),
    ]


@pytest.mark.parametrize("content", ["", "[]", '{"verb": "rm -rf"}', '{"verb": ["release"]}', '{"verb": {}}'])
def test_a_request_that_cannot_be_understood_is_passed_over(run, content):
    (run.requests / "x.json").write_text(content)
    assert switches.list_requests(run) == []
