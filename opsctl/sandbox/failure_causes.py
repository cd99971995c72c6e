"""Known messages of Slurm and munge in logs: the cause why a daemon did not start, and the remedy."""

from __future__ import annotations

import re

PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (
            # Every start reports missing MPI plugins; no start fails for them.
            r"(?:[Cc]ouldn't find|[Cc]an't find|[Cc]annot (?:find|create))[^\n]{0,300}? for (?!mpi/)([a-z_]+/\w+)",
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
            r"(?:Munge (?:en|de)code failed|munge_(?:en|de)code)[^\n]{0,300}?(?:Failed to (?:access|connect)|Socket)",
            "munged does not answer on its socket; look for a cause in munged.out",
        ),
        (r"Keyfile is insecure: ([^\n]+)", "munged refuses its key: {0}"),
        (r"Socket is in(?:secure|accessible): ([^\n]+)", "munged refuses the directory of its socket: {0}"),
        (r"Failed to (?:open|find|check) keyfile ([^\n]+)", "munged cannot read its key {0}"),
        (r"(?:^|[\n:])((?=[^\n:]*/)[^\n:]++): Permission denied", "no permission: {0}"),
        (
            r"mysql_query failed: 5027 Number of columns",
            "this slurmdbd and this MariaDB client library do not work together (Debian's slurmdbd 26.05 with "
            "libmariadb of 11.8.9); do without --accounting or install other versions",
        ),
        (r"No space left on device", "no space is left on the device"),
        (r"[Tt]oo many open files", "too many open files; raise the limit: ulimit -n 65536"),
    )
)


def find_causes(text: str) -> list[str]:
    """Return the causes that a daemon's log names, without duplicates, the earliest first."""
    causes = [
        (match.start(), cause.format(*(group.strip() for group in match.groups())))
        for pattern, cause in PATTERNS
        if (match := pattern.search(text))
    ]
    return [cause for _, cause in sorted(causes)]
