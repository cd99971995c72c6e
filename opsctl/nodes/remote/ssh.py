"""Run commands on nodes by the system's ssh: with the user's keys, agent and configuration, and checked host keys."""

import math
import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from opsctl.base.nodesets import NODE_NAME
from opsctl.base.ports import Answer, Runner, run_here
from opsctl.settings.health import RemoteSettings

SSH_FAILED = 255
"""Exit code of ssh itself, which a command can have as well."""
MARK = "opsctl-ssh-mark"
"""Printed on the node before the command, and on stderr after a command with the exit code of ssh itself."""
REMOTE_SCRIPT = f'echo "$0"; "$@"; code=$?; [ $code != {SSH_FAILED} ] || echo "$0" >&2; exit $code'
MAX_PROBLEM_LINES = 2
"""Last lines of ssh's own errors, which say why a node was not reached."""
JUMP = re.compile(r"(?:[^@,\s]+@)?(?P<host>[^@:,/\s]+)(?::\d{1,5})?", re.ASCII)
DROPPED = re.compile("exchange_identification: .*(?:reset|closed)", re.IGNORECASE)
"""ssh's words for a connection that an sshd with too many unauthenticated connections (MaxStartups) dropped."""
FIXED_OPTIONS = (
    "BatchMode yes",
    "LogLevel ERROR",
    "ClearAllForwardings yes",
    "ForwardAgent no",
    "ForwardX11 no",
    "RequestTTY no",
    "PermitLocalCommand no",
    "CheckHostIP no",
    "UpdateHostKeys no",
    "GlobalKnownHostsFile /dev/null",
    "ControlMaster no",
    "ControlPath none",
)
"""Options before those of the user. A shared connection would keep stderr open after the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """Runs commands by ssh. One object serves many threads."""

    settings: RemoteSettings
    runner: Runner
    name: ClassVar[str] = "ssh"

    def reaches(self, node: str) -> bool:  # noqa: ARG002 (only a connection shows whether a node is reachable)
        return True

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        problem = self._refuse(node)
        if problem:
            return Answer(node=node, by=self.name, problem=problem, may_have_run=False)
        command = shlex.join(["exec", "/bin/sh", "-c", REMOTE_SCRIPT, MARK, *argv])
        with tempfile.NamedTemporaryFile("w", prefix="opsctl-ssh-") as config:
            config.write(self.render_config(node))
            config.flush()
            words = ["ssh", "-T", "-F", config.name, "--", node, command]
            answer = run_here(self.runner, node, words, by=self.name, timeout=timeout, stdin=stdin)
            if answer.code == SSH_FAILED and DROPPED.search(answer.err):
                answer = run_here(self.runner, node, words, by=self.name, timeout=timeout, stdin=stdin)
        return _read_answer(answer)

    def _refuse(self, node: str) -> str:
        """Return why ssh is not started; empty if it may be."""
        if not NODE_NAME.fullmatch(node):  # `Match exec` of ssh_config runs a shell command with the name
            return f"ssh: {node!r:.80} is no node name"
        if self.settings.jump and not JUMP.fullmatch(self.settings.jump):
            return f"ssh: jump host {self.settings.jump!r:.80} is not of the form [user@]host[:port]"
        return ""

    def render_config(self, node: str) -> str:
        """Return the configuration for ssh, and for the ssh that it starts for a jump host: the first value holds."""
        site = self.settings
        files = " ".join(f'"{Path(file).expanduser()}"' for file in site.known_hosts)
        lines = [
            *FIXED_OPTIONS,
            f"UserKnownHostsFile {files}",
            f"StrictHostKeyChecking {'accept-new' if site.accept_new else 'yes'}",
            f"ConnectTimeout {math.ceil(site.connect_seconds)}",
            *([f"User {site.user}"] if site.user else []),
            f'Include "{Path(site.ssh_config).expanduser().absolute()}"',
        ]
        jump = JUMP.fullmatch(site.jump)
        if jump and jump["host"] != node:
            lines += [f"Host {node}", f"ProxyJump {site.jump}"]
        return "\n".join(lines) + "\n"


def _read_answer(answer: Answer) -> Answer:
    """Return the answer of the command itself; of ssh alone, why there is none and whether the command may have run."""
    _, mark, out = answer.out.partition(f"{MARK}\n")
    err = answer.err.removesuffix(f"{MARK}\n")
    if answer.code is None:
        return replace(answer, problem=f"ssh: {answer.problem}")
    if answer.code == SSH_FAILED and err == answer.err:
        lines = [line.removeprefix("ssh: ") for line in err.replace("@", "").splitlines() if line.strip()]
        problem = "; ".join(lines[-MAX_PROBLEM_LINES:]) or "the connection broke before the command ended"
        return replace(answer, code=None, out=out, problem=f"ssh: {problem}", may_have_run=bool(mark))
    return replace(answer, out=out, err=err)
