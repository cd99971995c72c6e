"""Why a daemon of a sandbox did not start: known messages of Slurm and munge, and what to do about each."""

from __future__ import annotations

import re

PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (
            # Plugins of MPI that are not there are reported on every start, and are no reason for anything.
            r"(?:[Cc]ouldn't find|[Cc]an't find|[Cc]annot find|[Cc]annot create)[^\n]*? for (?!mpi/)([a-z_]+/\w+)",
            "Slurm's plugin {0} is missing; install it: apt-get install slurm-wlm-basic-plugins (Debian, Ubuntu), "
            "dnf install slurm (RHEL, Fedora)",
        ),
        (
            r"Error binding slurm stream socket: Address already in use",
            "another process has taken the port; repeat the command, which chooses other ports",
        ),
        (
            r"Error binding slurm stream socket: Cannot assign requested address",
            "the loopback interface has no such address; type: ip link set lo up",
        ),
        (r"[Uu]nable to resolve \"([^\"]+)\"", "the host name {0} does not resolve; add it to /etc/hosts on 127.0.0.1"),
        (r"This host \(([^)]+)\) not a valid controller", "the host name changed to {0} while the sandbox started"),
        (
            r"(?:Munge (?:en|de)code failed|munge_(?:en|de)code)[^\n]*?(?:Failed to (?:access|connect)|Socket)[^\n]*",
            "munged does not answer on its socket; look for a cause in munged.out",
        ),
        (r"Keyfile is insecure: ([^\n]+)", "munged refuses its key: {0}"),
        (r"Socket is in(?:secure|accessible): ([^\n]+)", "munged refuses the directory of its socket: {0}"),
        (r"Failed to (?:open|find|check) keyfile ([^\n]+)", "munged cannot read its key {0}"),
        (r"([^\n:]*(?:/[^\n:]+)): Permission denied", "no permission: {0}"),
        (r"No space left on device", "no space is left on the device"),
        (r"[Tt]oo many open files", "too many open files; raise the limit: ulimit -n 65536"),
    )
)


def causes_in_log(text: str) -> list[str]:
    """The causes that a daemon's log names, the earliest first, each once."""
    found = [
        (match.start(), cause.format(*(group.strip() for group in match.groups())))
        for pattern, cause in PATTERNS
        if (match := pattern.search(text))
    ]
    return [cause for _, cause in sorted(found)]
