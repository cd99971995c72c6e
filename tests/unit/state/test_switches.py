"""Switches and requests: the file's existence counts, its content is not trusted."""

import os

import pytest

from opsctl.host.system import user_name
from opsctl.state import switches
from opsctl.state.requests import read_requests
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import RequestKind, Switch


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "gpt")
    run.create()
    return run


def test_armed_switch_has_reason_and_user(run):
    assert switches.arm(run, Switch.KILL, why="bad loss")
    armed = switches.read(run, Switch.KILL)
    assert (armed.switch, armed.why) == (Switch.KILL, "bad loss")
    assert armed.by == user_name(switches.path_of(run, Switch.KILL).stat().st_uid)


def test_armed_switch_is_not_overwritten(run):
    switches.arm(run, Switch.KILL, why="first")
    assert not switches.arm(run, Switch.KILL, why="second")
    assert switches.read(run, Switch.KILL).why == "first"


def test_disarm_returns_whether_the_switch_was_armed(run):
    switches.arm(run, Switch.SAVE, why="")
    assert [switches.disarm(run, Switch.SAVE), switches.disarm(run, Switch.SAVE)] == [True, False]


@pytest.mark.parametrize(
    "content", [b"", b"touched", b"[]", b'{"why": 3}', b'{"by": "root"}', b"\xff" * 20_000, b"[" * 9_000]
)
def test_any_file_is_an_armed_switch(run, content):
    switches.path_of(run, Switch.PAUSE).write_bytes(content)
    assert switches.read(run, Switch.PAUSE) is not None


def test_user_of_a_switch_is_the_owner_of_its_file(run):
    switches.path_of(run, Switch.KILL).write_text('{"by": "somebody-else", "why": "x"}')
    assert switches.read(run, Switch.KILL).by != "somebody-else"


def test_link_pipe_and_directory_are_armed_but_not_read(run, tmp_path):
    (tmp_path / "secret").write_text('{"why": "secret"}')
    switches.path_of(run, Switch.KILL).symlink_to(tmp_path / "secret")
    os.mkfifo(switches.path_of(run, Switch.PAUSE))
    switches.path_of(run, Switch.SAVE).mkdir()
    says = "a directory in place of the switch; disarming removes it"
    assert [armed.why for armed in switches.find_armed(run)] == ["", "", says]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_switch_raises(run):
    run.switches.chmod(0)
    with pytest.raises(PermissionError):
        switches.read(run, Switch.KILL)


def test_armed_switches_are_sorted_by_strength(run):
    for switch in (Switch.SAVE, Switch.PAUSE, Switch.KILL):
        switches.arm(run, switch, why="")
    assert [armed.switch for armed in switches.find_armed(run)] == [Switch.KILL, Switch.PAUSE, Switch.SAVE]


def test_requests_are_sorted_by_age(run):
    first = switches.request(run, RequestKind.RELEASE, exclude="node001")
    second = switches.request(run, RequestKind.RELEASE)
    moment_ns = second.stat().st_mtime_ns
    os.utime(second, ns=(moment_ns, moment_ns - 10**9))
    os.utime(first, ns=(moment_ns, moment_ns))
    assert [(request.exclude, request.path) for request in read_requests(run)[0]] == [
        ("", second),
        ("node001", first),
    ]


@pytest.mark.parametrize("content", ["", "[]", '{"verb": "rm -rf"}', '{"verb": ["release"]}', '{"verb": {}}'])
def test_invalid_request_is_ignored(run, content):
    (run.requests / "x.json").write_text(content)
    assert read_requests(run)[0] == []
