"""Run commands by ssh: with checked host keys, keys and agent, an optional jump host, and limits on time and output."""

import getpass
import logging
import os
import re
import select
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Self

import paramiko
from paramiko import Channel, PKey, SSHClient, SSHException, Transport
from paramiko.config import SSHConfig
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey
from paramiko.ssh_exception import AuthenticationException, ConfigParseError, NoValidConnectionsError

from opsctl.base.nodesets import NODE_NAME
from opsctl.base.ports import Answer, Clock
from opsctl.settings.health import RemoteSettings


class HostKeyChanged(Exception):
    """The host's key differs from the known key, or is revoked."""


class HostUnknown(Exception):
    """No known_hosts file has a key of this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHostLine:
    patterns: tuple[str, ...]
    key: PKey | None
    """None for a key that cannot be read: no other one is accepted for the host."""
    is_revoked: bool


@dataclass(slots=True)
class KnownHosts:
    """The lines of all files. New lines are written to the first file. Safe to use from many threads."""

    files: Sequence[Path]
    accept_new: bool = False
    """Whether to trust, and add, the key of a host that no file names."""
    _lines: list[KnownHostLine] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for file in self.files:
            try:
                text = file.read_text(errors="replace")
            except FileNotFoundError:
                continue
            except OSError:
                text = "\0"
            self._lines += parse(text)
            self.accept_new &= "\0" not in text  # a file that cannot be read, or not in full, may name any host

    def list_key_types(self, host: str) -> list[str]:
        """Return the types of a host's known keys, so that the host can be asked for a key of these types."""
        with self._lock:
            keys = [line.key for line in self._find(host) if line.key and not line.is_revoked]
        return list(dict.fromkeys(key.get_name() for key in keys))

    def check(self, host: str, key: PKey) -> None:
        """Check a host's key; add the key of a new host if `accept_new`. Raises HostKeyChanged, HostUnknown."""
        with self._lock:
            lines = self._find(host)
            same = [line for line in lines if line.key == key]
            if any(line.is_revoked for line in same):
                raise HostKeyChanged("the host key is revoked in known_hosts")
            if same:
                return
            if lines:
                raise HostKeyChanged(f"the host key differs from known_hosts: {key.fingerprint}")
            if not self.accept_new:
                raise HostUnknown("the host key is in no known_hosts file")
            self._add(host, key)

    def _find(self, host: str) -> list[KnownHostLine]:
        return [line for line in self._lines if _matches(line.patterns, host)]

    def _add(self, host: str, key: PKey) -> None:
        self._lines.append(KnownHostLine(patterns=(host,), key=key, is_revoked=False))
        path = self.files[0]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            # Appending to a last line without a newline would destroy both lines.
            is_terminated = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
            newline = "" if is_terminated else "\n"
            file.write(f"{newline}{host} {key.get_name()} {key.get_base64()}\n".encode())


def parse(text: str) -> list[KnownHostLine]:
    """Return the lines. Certificate authorities are left out: paramiko cannot check certificates."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        marker, _, rest = line.strip().partition(" ")
        is_revoked = marker == "@revoked"
        if marker == "@cert-authority":
            continue
        known, key = (rest if is_revoked else line).strip(), None
        with suppress(InvalidHostKey, SSHException, ValueError, TypeError, IndexError):
            entry = HostKeyEntry.from_line(known, number)
            key = entry.key if entry else None
        if known and not known.startswith("#"):
            patterns = tuple(known.split()[0].split(","))
            lines.append(KnownHostLine(patterns=patterns, key=key, is_revoked=is_revoked))
    return lines


def _matches(patterns: Sequence[str], host: str) -> bool:
    """Return whether any pattern matches the host and no negated pattern does."""
    is_match = False
    for pattern in patterns:
        if pattern.startswith("|1|"):
            is_match = is_match or HostKeys.hash_host(host, pattern) == pattern
        elif pattern.startswith("!"):
            if fnmatchcase(host, _escape_brackets(pattern[1:])):
                return False
        else:
            is_match = is_match or pattern == host or fnmatchcase(host, _escape_brackets(pattern))
    return is_match


def _escape_brackets(pattern: str) -> str:
    """Return a glob for fnmatch. In OpenSSH only `*` and `?` are special; `[host]:port` is literal."""
    return pattern.replace("[", "[[]")


SSH_PORT = 22
CHUNK_BYTES = 1 << 16
MAX_OUTPUT_BYTES = 16 << 20
"""Bytes of stdout, and of stderr, that are stored. Further output is read and dropped."""
POLL_S = 0.05
JUMP = re.compile(r"(?:(?P<user>[^@,\s]+)@)?(?P<host>[^@:,/\s]+)(?::(?P<port>\d{1,5}))?", re.ASCII)
logging.getLogger("paramiko").addHandler(logging.NullHandler())  # paramiko prints errors that the answer contains


class NotReached(Exception):
    """The command was not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTarget:
    """The address and the login of a node, from the site's settings and ssh's configuration."""

    host: str
    port: int
    user: str
    keys: tuple[str, ...] = ()
    """Paths of private keys; empty for ssh's default keys."""
    jump: str = ""

    @property
    def known_as(self) -> str:
        """Return the host's name in known_hosts."""
        return self.host if self.port == SSH_PORT else f"[{self.host}]:{self.port}"


@dataclass(slots=True)
class Ssh:
    """Runs commands by ssh. One object serves many threads."""

    settings: RemoteSettings
    known: KnownHosts
    config: SSHConfig
    clock: Clock
    name: ClassVar[str] = "ssh"

    @classmethod
    def from_settings(cls, settings: RemoteSettings, clock: Clock) -> Self:
        """Read the files that `settings` names. A missing or broken file counts as empty."""
        config = SSHConfig()
        with suppress(OSError, ConfigParseError, UnicodeDecodeError):
            config = SSHConfig.from_path(str(Path(settings.ssh_config).expanduser()))
        files = [Path(file).expanduser() for file in settings.known_hosts]
        return cls(settings, KnownHosts(files, settings.accept_new), config, clock)

    def reaches(self, node: str) -> bool:  # noqa: ARG002 (only a connection shows whether a node is reachable)
        return True

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        deadline = self.clock.monotonic() + timeout
        if not NODE_NAME.fullmatch(node):  # `Match exec` of ssh_config runs a shell command with the name
            return Answer(node=node, by=self.name, problem=f"ssh: {node!r:.80} is no node name", may_have_run=False)
        try:
            with self._connect(self.find_target(node)) as client, _open_session(client, timeout) as channel:
                return self._run_command(node, channel, argv, stdin, deadline)
        except NotReached as error:
            return Answer(node=node, by=self.name, problem=str(error), may_have_run=False)
        except (SSHException, OSError, EOFError) as error:
            return Answer(node=node, by=self.name, problem=f"ssh: {_describe(error)}")

    def find_target(self, node: str, *, with_jump: bool = True) -> SshTarget:
        """Return the target of a node, or of a jump host without a jump of its own."""
        options = self.config.lookup(node)
        port = options.get("port", str(SSH_PORT))
        jump = options.get("proxyjump", self.settings.jump) if with_jump else ""
        return SshTarget(
            host=options.get("hostname", node),
            port=int(port) if port.isascii() and port.isdigit() else SSH_PORT,
            user=self.settings.user or options.get("user") or getpass.getuser(),
            keys=tuple(options.get("identityfile", ())),
            jump="" if jump.lower() == "none" else jump,
        )

    @contextmanager
    def _connect(self, target: SshTarget) -> Iterator[SSHClient]:
        """Yield a client that is logged in, through the jump host if the target has one. Raises NotReached."""
        if not target.jump:
            with self._log_in(target, sock=None) as client:
                yield client
            return
        with self._log_in(self._parse_jump(target.jump), sock=None) as jump:
            transport = jump.get_transport()
            try:
                assert transport is not None, "a client that is logged in has a transport"
                tunnel = transport.open_channel(
                    "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=self.settings.connect_seconds
                )
            except (SSHException, OSError, EOFError) as error:
                raise NotReached(f"ssh: {target.jump} cannot reach {target.host}: {_describe(error)}") from error
            with self._log_in(target, sock=tunnel) as client:
                yield client

    def _parse_jump(self, jump: str) -> SshTarget:
        """Parse one jump host `[user@]host[:port]`. Raises NotReached for other text, such as several hosts."""
        match = JUMP.fullmatch(jump)
        if match is None:
            raise NotReached(f"ssh: jump host {jump!r:.80} is not of the form [user@]host[:port]")
        target = self.find_target(match["host"], with_jump=False)
        return SshTarget(
            host=target.host,
            port=int(match["port"] or target.port),
            user=match["user"] or target.user,
            keys=target.keys,
        )

    @contextmanager
    def _log_in(self, target: SshTarget, *, sock: Channel | None) -> Iterator[SSHClient]:
        """Yield a client that is logged in, over `sock` or a new connection. Raises NotReached."""
        try:
            client = self._create_client(target, sock)
        except (AuthenticationException, HostKeyChanged, HostUnknown, OSError) as error:
            raise NotReached(f"ssh as {target.user}: {_describe(error)}") from error
        except (SSHException, EOFError, ValueError) as first_error:
            # An sshd with too many unauthenticated connections (MaxStartups) drops some of them: try again once.
            if sock is not None:
                raise NotReached(f"ssh as {target.user}: {_describe(first_error)}") from first_error
            try:
                client = self._create_client(target, None)
            except (SSHException, OSError, EOFError, HostKeyChanged, HostUnknown, ValueError) as error:
                raise NotReached(f"ssh as {target.user}: {_describe(error)}") from error
        try:
            yield client
        finally:
            client.close()

    def _create_client(self, target: SshTarget, sock: Channel | None) -> SSHClient:
        client = SSHClient()
        client.set_missing_host_key_policy(_HostKeyPolicy(self.known, target))
        timeout = self.settings.connect_seconds
        key_types = self.known.list_key_types(target.known_as)
        key_filename: Any = list(target.keys) or None
        try:
            client.connect(
                target.host,
                port=target.port,
                username=target.user,
                key_filename=key_filename,
                timeout=timeout,
                banner_timeout=timeout,
                auth_timeout=timeout,
                channel_timeout=timeout,
                sock=sock,
                transport_factory=lambda *args, **options: _create_transport(key_types, *args, **options),
            )
        except BaseException:
            client.close()
            raise
        return client

    def _run_command(self, node: str, channel: Channel, argv: Sequence[str], stdin: str, deadline: float) -> Answer:
        """Run the command, write stdin and read the output until the command ends, or until `deadline`."""
        channel.exec_command(os.fsencode(shlex.join(argv)))  # quoted by shlex  # nosec B601
        out, err = bytearray(), bytearray()
        unwritten = memoryview(stdin.encode(errors="surrogateescape"))
        problem = ""
        while True:
            if self.clock.monotonic() > deadline:
                problem = "ssh: the command did not end in time"
                break
            select.select([channel], [], [], POLL_S)
            unwritten = _write(channel, unwritten)
            has_read = _read(channel, out, err)
            # A broken connection closes the channel without an end of file.
            is_ended = channel.eof_received or channel.closed
            if not has_read and is_ended and channel.exit_status_ready():
                break
        code = None if problem else channel.recv_exit_status()
        if code is not None and code < 0:
            code, problem = None, "ssh: the connection broke before the command ended"
        return Answer(node=node, by=self.name, code=code, problem=problem, out=_decode(out), err=_decode(err))


class _HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Checks every host key: paramiko itself loads no known hosts."""

    def __init__(self, known: KnownHosts, target: SshTarget) -> None:
        self.known, self.target = known, target

    def missing_host_key(self, client: SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002 (paramiko's signature)
        self.known.check(self.target.known_as, key)


def _create_transport(key_types: Sequence[str], *args: Any, **options: Any) -> Transport:
    """Return a transport that prefers the known types of host keys: a host may have keys of several types."""
    transport = Transport(*args, **options)
    security = transport.get_security_options()
    preferred: list[str] = []
    for key_type in key_types:
        signatures = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa") if key_type == "ssh-rsa" else (key_type,)
        preferred += [name for name in signatures if name in security.key_types]
    others = [name for name in security.key_types if name not in preferred]
    security.key_types = [*dict.fromkeys(preferred), *others]
    return transport


@contextmanager
def _open_session(client: SSHClient, timeout: float) -> Iterator[Channel]:
    transport = client.get_transport()
    assert transport is not None, "a client that is logged in has a transport"
    try:
        channel = transport.open_session(timeout=timeout)
    except (SSHException, EOFError) as error:
        raise NotReached(f"ssh: no session: {_describe(error)}") from error
    channel.setblocking(0)
    try:
        yield channel
    finally:
        channel.close()


def _write(channel: Channel, data: memoryview) -> memoryview:
    """Write some of `data` and return the rest. Close the command's stdin once nothing is left."""
    if channel.closed or getattr(channel, "eof_sent", False):
        return data
    if not data:
        channel.shutdown_write()
        return data
    with suppress(OSError):
        return data[channel.send(bytes(data[:CHUNK_BYTES])) :]
    return data


def _read(channel: Channel, out: bytearray, err: bytearray) -> bool:
    """Read a chunk of stdout and of stderr. Return whether either had data."""
    has_out = _read_stream(channel.recv_ready, channel.recv, out)
    has_err = _read_stream(channel.recv_stderr_ready, channel.recv_stderr, err)
    return has_out or has_err


def _read_stream(is_ready: Callable[[], bool], receive: Callable[[int], bytes], buffer: bytearray) -> bool:
    if not is_ready():
        return False
    chunk = receive(CHUNK_BYTES)
    buffer.extend(chunk[: max(0, MAX_OUTPUT_BYTES - len(buffer))])
    return bool(chunk)


def _decode(data: bytearray) -> str:
    return data.decode(errors="replace")


def _describe(error: BaseException) -> str:
    if isinstance(error, AuthenticationException):
        return f"login refused: {error}"
    if isinstance(error, NoValidConnectionsError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    return str(error) or type(error).__name__
