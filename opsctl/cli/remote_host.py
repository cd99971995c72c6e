"""`opsctl --host HOST …`: run a command of opsctl on another machine, by the user's own ssh."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from opsctl.base.errors import HostUnreachable, InputError, OpsctlError
from opsctl.base.ports import TimedOut
from opsctl.host.system import SystemRunner, run_attached
from opsctl.state.trust import check_trusted

SSH_FAILED = 255
"""The exit code of ssh itself."""
NOT_FOUND = (126, 127)
"""Exit codes of a shell for a program that is missing or not executable. opsctl has no such exit codes."""
CONTROL_PERSIST_S = 600
MAX_SOCKET_CHARS = 104
"""The shortest limit of the systems for the path of a socket, with the null character at its end."""
HASH_CHARS = 40 + 17
"""Of `%C`, and of the suffix that ssh gives a socket until it is ready."""
LOOK_UP_S = 5.0
COMPLETION_S = 5.0


def remote_command(params: Mapping[str, object], words: Sequence[str]) -> click.Command:
    """Return the command that runs `words` on the host of the group's options `params`, without looking at them."""
    options = [f"--{name.replace('_', '-')}={params[name]}" for name in ("site", "log_level") if params.get(name)]
    options += [f"--{name}" for name in ("trust", "verbose") if params.get(name)]

    def run() -> int:
        return run_on_host(str(params["host"]), str(params["host_command"]), [*options, *words])

    return click.Command("remote", callback=run, add_help_option=False)


def run_on_host(host: str, program: str, words: Sequence[str]) -> int:
    """Run `program`, which is shell text, with `words` on the host, on this terminal; return the exit code.

    Raises HostUnreachable, OpsctlError.
    """
    argv = ["ssh", _choose_terminal(), *ssh_options(host), "--", host, command_text(program, words)]
    code = run_attached(argv, env=os.environ)
    if code == SSH_FAILED:
        raise HostUnreachable(
            f"{host}: ssh could not run the command and printed the reason",
            hint=f"try: ssh {shlex.quote(host)} true",
        )
    if code in NOT_FOUND:
        raise OpsctlError(
            f"{host}: {program!r} does not start there (exit {code})",
            hint="name the program: --host-command '~/venv/bin/opsctl', or set OPSCTL_HOST_COMMAND",
        )
    return code


def command_text(program: str, words: Sequence[str]) -> str:
    """Return the text for the shell on the host. Every word arrives unchanged; `program` is shell text of the user."""
    colour = "env NO_COLOR=1 " if os.environ.get("NO_COLOR") else ""
    return f"{colour}{program} {shlex.join(words)}".rstrip()


def _choose_terminal() -> str:
    """Return the option of ssh that makes a terminal there if there is one here: colours, and Ctrl-C."""
    if not sys.stdout.isatty():
        return "-T"
    return "-t" if sys.stdin.isatty() else "-tt"


def ssh_options(host: str) -> list[str]:
    """Return options of ssh where the user's settings have none: keep the connection open for later commands, and do
    not report its end after each command.

    Raises InputError for a host that ssh would take for an option.
    """
    if host.startswith("-") or not host.strip():
        raise InputError(f"--host {host!r:.60} is not the name of a host")
    chosen, place = _read_settings(host), _find_socket_directory()
    settings = {}
    if chosen.get("loglevel") == "INFO":
        settings["LogLevel"] = "ERROR"
    is_shared = chosen.get("controlmaster", "false") != "false" or chosen.get("controlpath", "none") != "none"
    if chosen and place and not is_shared:
        persist = str(CONTROL_PERSIST_S)
        settings |= {"ControlMaster": "auto", "ControlPath": f"{place}/opsctl-%C", "ControlPersist": persist}
    options = []
    for name, value in settings.items():
        options += ["-o", f"{name}={value}"]
    return options


def _read_settings(host: str) -> dict[str, str]:
    """Return the user's settings for the host, as ssh prints them; empty if ssh cannot."""
    try:
        done = SystemRunner().run(["ssh", "-G", "--", host], timeout=LOOK_UP_S)
    except (OpsctlError, TimedOut):
        return {}
    return dict(line.partition(" ")[::2] for line in done.out.splitlines()) if done.code == 0 else {}


def _find_socket_directory() -> Path | None:
    """Return a directory of the user alone for sockets; None without one whose path is short enough."""
    candidates = [os.environ.get("XDG_RUNTIME_DIR", ""), str(Path.home() / ".ssh")]
    for candidate in filter(None, candidates):
        place = Path(candidate)
        try:
            check_trusted([place])
            is_private = place.stat().st_uid == os.geteuid() and place.is_dir()
        except (OSError, OpsctlError):
            continue
        is_plain = place.is_absolute() and "%" not in candidate and not any(sign.isspace() for sign in candidate)
        if is_private and is_plain and len(f"{place}/opsctl-") + HASH_CHARS < MAX_SOCKET_CHARS:
            return place
    return None


def complete_on_host(host: str, program: str, begun: str) -> list[str]:
    """Return the trains on the host whose names start with `begun`; none if the host does not answer at once."""
    words = f"opsctl status {shlex.quote(begun)}"
    text = f"env _OPSCTL_COMPLETE=bash_complete COMP_CWORD=2 COMP_WORDS={shlex.quote(words)} {program}"
    try:
        quick = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=2", *ssh_options(host)]
        done = SystemRunner().run(["ssh", *quick, "--", host, text], timeout=COMPLETION_S)
    except (OpsctlError, TimedOut):
        return []
    names = [line.removeprefix("plain,") for line in done.out.splitlines() if line.startswith("plain,")]
    return [name for name in names if name.startswith(begun) and name.isprintable()]
