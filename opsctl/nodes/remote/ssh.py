"""By ssh: host keys checked, keys and agent, one jump host, a limit to everything."""

from __future__ import annotations

import getpass
import logging
import os
import re
import select
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import paramiko
from paramiko import Channel, SSHClient, SSHException, Transport
from paramiko.config import SSHConfig
from paramiko.ssh_exception import AuthenticationException, ConfigParseError, NoValidConnectionsError

from opsctl.nodes.remote.known_hosts import HostKeyChanged, HostUnknown, KnownHosts
from opsctl.nodesets import NODE_NAME
from opsctl.ports import Answer, Clock
from opsctl.settings.health import RemoteSettings

CHUNK = 1 << 16
JUMP = re.compile(r"(?:(?P<user>[^@,\s]+)@)?(?P<host>[^@:,/\s]+)(?::(?P<port>\d{1,5}))?", re.ASCII)
logging.getLogger("paramiko").addHandler(logging.NullHandler())  # it prints tracebacks of what we answer in words
MOST_OUTPUT = 16 << 20
"""Bytes of one answer that are buffer: a command that prints for ever must not eat our memory."""


class NotReached(Exception):
    """No command was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTarget:
    """Where a node is, by the site's settings and ssh's own."""

    host: str
    port: int
    user: str
    keys: tuple[str, ...] = ()
    jump: str = ""

    @property
    def known_as(self) -> str:
        """As known_hosts writes it."""
        return self.host if self.port == 22 else f"[{self.host}]:{self.port}"


@dataclass(slots=True)
class Ssh:
    """Runs commands by ssh. One object serves many threads."""

    settings: RemoteSettings
    known: KnownHosts
    config: SSHConfig
    clock: Clock
    name: ClassVar[str] = "ssh"

    @classmethod
    def of(cls, settings: RemoteSettings, clock: Clock) -> Ssh:
        """With the files that `settings` names; one that is missing or broken is as if it were empty."""
        config = SSHConfig()
        with suppress(OSError, ConfigParseError, UnicodeDecodeError):
            config = SSHConfig.from_path(str(Path(settings.ssh_config).expanduser()))
        files = [Path(file).expanduser() for file in settings.known_hosts]
        return cls(settings, KnownHosts(files, settings.accept_new), config, clock)

    def reaches(self, node: str) -> bool:  # noqa: ARG002 (whether a node answers ssh shows when it is asked)
        return True

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        until = self.clock.monotonic() + timeout
        if not NODE_NAME.fullmatch(node):  # `Match exec` of ssh_config runs a shell command with the name
            return Answer(node=node, by=self.name, problem=f"ssh: {node!r:.80} is no node name", may_have_run=False)
        try:
            with self._connected(self.place(node)) as client, _session(client, timeout) as channel:
                return self._talk(node, channel, argv, stdin, until)
        except NotReached as error:
            return Answer(node=node, by=self.name, problem=str(error), may_have_run=False)
        except (SSHException, OSError, EOFError) as error:
            return Answer(node=node, by=self.name, problem=f"ssh: {_words(error)}")

    def place(self, node: str, *, jumps: bool = True) -> SshTarget:
        """Where `node` is."""
        sshconfig_dict = self.config.lookup(node)
        port = sshconfig_dict.get("port", "22")
        jump = sshconfig_dict.get("proxyjump", self.settings.jump) if jumps else ""
        return SshTarget(
            host=sshconfig_dict.get("hostname", node),
            port=int(port) if port.isascii() and port.isdigit() else 22,
            user=self.settings.user or sshconfig_dict.get("user") or getpass.getuser(),
            keys=tuple(sshconfig_dict.get("identityfile", ())),
            jump="" if jump.lower() == "none" else jump,
        )

    @contextmanager
    def _connected(self, place: SshTarget) -> Iterator[SSHClient]:
        """A client that is logged in. Raises NotReached."""
        if not place.jump:
            with self._open(place, sock=None) as client:
                yield client
            return
        with self._open(self._first(place.jump), sock=None) as jump:
            transport = jump.get_transport()
            try:
                assert transport is not None, "it is connected"
                through = transport.open_channel(
                    "direct-tcpip", (place.host, place.port), ("127.0.0.1", 0), timeout=self.settings.connect_seconds
                )
            except (SSHException, OSError, EOFError) as error:
                raise NotReached(f"ssh: {place.jump} does not lead to {place.host}: {_words(error)}") from error
            with self._open(place, sock=through) as client:
                yield client

    def _first(self, jump: str) -> SshTarget:
        """The host to go through, `[user@]host[:port]`. Raises NotReached for what names none, or several."""
        match = JUMP.fullmatch(jump)
        if match is None:
            raise NotReached(f"ssh: {jump!r:.80} is not a [user@]host[:port] to go through")
        ssh_target = self.place(match["host"], jumps=False)
        return SshTarget(
            host=ssh_target.host,
            port=int(match["port"] or ssh_target.port),
            user=match["user"] or ssh_target.user,
            keys=ssh_target.keys,
        )

    @contextmanager
    def _open(self, place: SshTarget, *, sock: Channel | None) -> Iterator[SSHClient]:
        try:
            client = self._connect(place, sock)
        except (AuthenticationException, HostKeyChanged, HostUnknown, OSError) as error:
            raise NotReached(f"ssh as {place.user}: {_words(error)}") from error
        except (SSHException, EOFError, ValueError) as first:
            # A daemon that has too many others at its door hangs up on some.
            if sock is not None:
                raise NotReached(f"ssh as {place.user}: {_words(first)}") from first
            try:
                client = self._connect(place, None)
            except (SSHException, OSError, EOFError, HostKeyChanged, HostUnknown, ValueError) as error:
                raise NotReached(f"ssh as {place.user}: {_words(error)}") from error
        try:
            yield client
        finally:
            client.close()

    def _connect(self, place: SshTarget, sock: Channel | None) -> SSHClient:
        client = SSHClient()
        client.set_missing_host_key_policy(_HostKeyPolicy(self.known, place))
        seconds, kinds = self.settings.connect_seconds, self.known.kinds(place.known_as)
        keys: Any = list(place.keys) or None
        try:
            client.connect(
                place.host, port=place.port, username=place.user, key_filename=keys, timeout=seconds,
                banner_timeout=seconds, auth_timeout=seconds, channel_timeout=seconds, sock=sock,
                transport_factory=lambda *args, **more: _prefer(kinds, *args, **more),
            )  # fmt: skip
        except BaseException:
            client.close()
            raise
        return client

    def _talk(self, node: str, channel: Channel, argv: Sequence[str], stdin: str, until: float) -> Answer:
        channel.exec_command(os.fsencode(shlex.join(argv)))
        out, err, written = bytearray(), bytearray(), memoryview(stdin.encode(errors="surrogateescape"))
        while True:
            if self.clock.monotonic() > until:
                return Answer(node=node, by=self.name, problem="ssh: did not end in time", out=_text(out),
                              err=_text(err))  # fmt: skip
            select.select([channel], [], [], 0.05)
            written = _write(channel, written)
            # A connection that breaks closes the channel without an end of file.
            if (
                not _read(channel, out, err)
                and (channel.eof_received or channel.closed)
                and channel.exit_status_ready()
            ):
                break
        code = channel.recv_exit_status()
        if code < 0:
            return Answer(node=node, by=self.name, problem="ssh: the connection ended first", out=_text(out),
                          err=_text(err))  # fmt: skip
        return Answer(node=node, by=self.name, code=code, out=_text(out), err=_text(err))


class _HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """paramiko knows no host by itself, so every key comes here."""

    def __init__(self, known: KnownHosts, place: SshTarget) -> None:
        self.known, self.place = known, place

    def missing_host_key(self, client: SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002 (paramiko's signature)
        self.known.check(self.place.known_as, key)


def _prefer(kinds: Sequence[str], *args: Any, **more: Any) -> Transport:
    """A transport that asks the host for a key of a kind that we know of it: it may have several."""
    transport = Transport(*args, **more)
    options = transport.get_security_options()
    wanted = [signature for kind in kinds for signature in _signatures(kind) if signature in options.key_types]
    options.key_types = [*dict.fromkeys(wanted), *(kind for kind in options.key_types if kind not in wanted)]
    return transport


def _signatures(kind: str) -> tuple[str, ...]:
    return ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa") if kind == "ssh-rsa" else (kind,)


@contextmanager
def _session(client: SSHClient, seconds: float) -> Iterator[Channel]:
    transport = client.get_transport()
    assert transport is not None, "it is connected"
    try:
        channel = transport.open_session(timeout=seconds)
    except (SSHException, EOFError) as error:
        raise NotReached(f"ssh: no session: {_words(error)}") from error
    channel.setblocking(0)
    try:
        yield channel
    finally:
        channel.close()


def _write(channel: Channel, rest: memoryview) -> memoryview:
    """What is left to write; the end of stdin is told when nothing is."""
    if channel.closed or getattr(channel, "eof_sent", False):
        return rest
    if not rest:
        channel.shutdown_write()
        return rest
    with suppress(OSError):
        return rest[channel.send(bytes(rest[:CHUNK])) :]
    return rest


def _read(channel: Channel, out: bytearray, err: bytearray) -> bool:
    read = False
    for ready, take, buffer in ((channel.recv_ready, channel.recv, out),
                              (channel.recv_stderr_ready, channel.recv_stderr, err)):  # fmt: skip
        if ready():
            chunk = take(CHUNK)
            buffer.extend(chunk[: max(0, MOST_OUTPUT - len(buffer))])
            read = read or bool(chunk)
    return read


def _text(data: bytearray) -> str:
    return data.decode(errors="replace")


def _words(error: BaseException) -> str:
    if isinstance(error, AuthenticationException):
        return f"login refused: {error}"
    if isinstance(error, NoValidConnectionsError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    return str(error) or type(error).__name__
