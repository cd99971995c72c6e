"""Causes found in messages of Slurm and munge, and the sockets of this machine."""

from __future__ import annotations

import os
import socket

import pytest

from opsctl.sandbox.start_failures import ListeningSocket, find_causes, list_listening_sockets


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
        ("127.0.0.1", "127.0.0.1:21000", True),
        ("127.0.1.1", "127.0.1.1:21000", True),
        ("0.0.0.0", "0.0.0.0:21000", False),
        ("10.9.8.7", "10.9.8.7:21000", False),
        ("::1", "[::1]:21000", True),
        ("::ffff:127.0.0.1", "[::ffff:127.0.0.1]:21000", True),
        ("::", "[::]:21000", False),
    ],
)
def test_address_of_a_listening_socket_is_judged(address: str, text: str, is_loopback: bool) -> None:
    listening = ListeningSocket(address=address, port=21000, pid=None)
    assert (str(listening), listening.is_loopback) == (text, is_loopback)
    assert listening.accepts("127.0.0.1") == (address in {"127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "::"})


def test_only_listening_sockets_are_listed_with_their_process() -> None:
    with socket.socket() as silent, socket.create_server(("127.0.0.1", 0)) as server:
        silent.bind(("127.0.0.1", 0))
        ports = {row.port: row for row in list_listening_sockets()}
        assert ports[server.getsockname()[1]].pid == os.getpid()
        assert silent.getsockname()[1] not in ports
