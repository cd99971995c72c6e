"""Causes found in messages of Slurm and munge, and the sockets of this machine."""

from __future__ import annotations

import os
import socket

import pytest

from opsctl.sandbox.start_failures import ListeningSocket, find_causes, list_listening_sockets
from tests.support.cases import read_cases


@pytest.mark.parametrize(*read_cases(__file__, "cause_is_read_from_a_log"))
def test_cause_is_read_from_a_log(line: str, cause: str) -> None:
    (actual,) = find_causes(f"[2026-11-22] slurmctld version 22.05 started\n{line}\n")
    assert cause in actual


def test_causes_have_the_order_of_the_log() -> None:
    text = "No space left on device\nerror: cannot find auth plugin for auth/x\nNo space left on device\n"
    first, second = find_causes(text)
    assert "no space" in first
    assert "auth/x" in second
    assert find_causes("error: Couldn't find the specified plugin name for mpi/pmix_v4 looking at all files") == []


@pytest.mark.parametrize(*read_cases(__file__, "address_of_a_listening_socket_is_judged"))
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
