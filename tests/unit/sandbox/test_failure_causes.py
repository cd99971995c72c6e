"""Causes found in messages of Slurm and munge, and sockets parsed from /proc."""

from __future__ import annotations

import pytest

from opsctl.sandbox.failure_causes import find_causes
from opsctl.sandbox.sockets import parse_row

ROW = "  0: {} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("error: Couldn't find the specified plugin name for auth/munge looking", "plugin auth/munge is missing"),
        ("fatal: Can't find plugin for select/cons_tres", "plugin select/cons_tres is missing"),
        ("fatal: cannot find auth plugin for auth/munge", "plugin auth/munge is missing"),
        ("error: cannot create cred context for cred/munge", "plugin cred/munge is missing"),
        ("error: Error binding slurm stream socket: Address already in use", "another process has taken the port"),
        ('error: slurm_set_addr: Unable to resolve "here"', "the host name here does not resolve"),
        ("error: This host (b/b.c) not a valid controller", "the host name changed to b/b.c"),
        ("fatal: mkdir(/home/me/state): Permission denied", "no permission: "),
        ('munged: Error: Keyfile is insecure: "/k" should not be readable', "munged refuses its key: "),
        ("error: mysql_query failed: 5027 Number of columns in result (=1)", "do not work together"),
        ("error: write: No space left on device", "no space is left on the device"),
        (
            'error: If munged is up, restart\nerror: Munge encode failed: Failed to connect to "/s": x',
            "munged does not answer on its socket",
        ),
    ],
)
def test_cause_is_read_from_a_log(line: str, cause: str) -> None:
    (actual,) = find_causes(f"[2026-11-22] slurmctld version 22.05 started\n{line}\n")
    assert cause in actual


def test_causes_have_the_order_of_the_log() -> None:
    text = "No space left on device\nerror: cannot find auth plugin for auth/x\nNo space left on device\n"
    first, second = find_causes(text)
    assert "no space" in first
    assert "auth/x" in second
    assert find_causes("error: Couldn't find the specified plugin name for mpi/pmix_v4 looking at all files") == []


@pytest.mark.parametrize(
    ("address", "text", "is_loopback"),
    [
        ("0100007F:5208", "127.0.0.1:21000", True),
        ("0101007F:5208", "127.0.1.1:21000", True),
        ("00000000:5208", "0.0.0.0:21000", False),
        ("0708090A:5208", "10.9.8.7:21000", False),
        ("00000000000000000000000001000000:5208", "[::1]:21000", True),
        ("0000000000000000FFFF00000100007F:5208", "[::ffff:7f00:1]:21000", True),
        ("00000000000000000000000000000000:5208", "[::]:21000", False),
    ],
)
def test_listening_socket_is_read_from_proc(address: str, text: str, is_loopback: bool) -> None:
    row = ROW.format(address)
    listening_socket = parse_row(row)
    assert listening_socket is not None
    assert (str(listening_socket).replace("127.0.0.1]", "7f00:1]"), listening_socket.inode) == (text, 4711)
    assert listening_socket.is_loopback == is_loopback
    assert parse_row(row.replace(" 0A ", " 01 ")) is None


def test_wildcard_socket_accepts_every_address() -> None:
    listening_socket = parse_row(ROW.format("00000000:5208"))
    assert listening_socket is not None
    assert listening_socket.accepts("127.0.0.1")
