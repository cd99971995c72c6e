"""The security checks: the site file, secrets, the root, the site directory, trains, the environment and sandboxes.

Trusted are root and the user who runs the check; everybody else is other people.
"""

import grp
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from opsctl.alerts.channel_secrets import list_secret_files
from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.host.system import user_name
from opsctl.preflight.security.permissions import (
    MAX_ENTRIES,
    READABLE,
    SecurityFinding,
    as_owner,
    as_root,
    find_offence,
    find_offences,
    find_offences_below,
    label,
    ok,
    quote,
    unknown,
    unsafe,
)
from opsctl.sandbox.record import Places, read_record
from opsctl.state.files import MAX_RECORD_BYTES, list_entries, read_text
from opsctl.state.run_dir import SHARED, RunDir, all_trains, may_act
from opsctl.state.site_dir import SiteDir, find_uid
from opsctl.state.trust import WRITABLE, find_other_writers, read_trusted

PATH_VARIABLES = dict.fromkeys(("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_AUDIT"), ":") | {"LD_PRELOAD": ": "}
PATH_VARIABLES |= dict.fromkeys(
    ("BASH_ENV", "ENV", "SLURM_CONF", "GIT_CONFIG_GLOBAL", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR"), ""
)
"""Variables that name programs, libraries or settings to load, with the characters that separate the paths."""


def list_trusted() -> frozenset[int]:
    return frozenset({0, os.geteuid()})


def check_security(app: App) -> list[SecurityFinding]:
    """Return the findings of all checks, in the order of `CHECKS`. A check that cannot read is unknown."""
    findings: list[SecurityFinding] = []
    for name, check in CHECKS.items():
        try:
            findings += check(app)
        except (OSError, OpsctlError) as error:
            findings.append(unknown(name, f"cannot be checked: {error}"))
    return findings


def _report(check: str, offences: Collection[SecurityFinding], good: str) -> Iterator[SecurityFinding]:
    """Yield a finding for each offence; without any, that all is `good`."""
    yield from (label(check, offence) for offence in offences)
    if not offences:
        yield ok(check, good)


def _check_site_file(app: App) -> Iterator[SecurityFinding]:
    path = app.site_path
    if path is None:
        yield ok("site file", "none: built-in settings")
        return
    good = f"{path}: only you and root can change the file, which names programs that run as you"
    yield from _report("site file", find_offences(path, list_trusted()), good)


def _check_umask(_: App) -> Iterator[SecurityFinding]:
    umask = read_umask(Path("/proc/self/status"))
    repair = "umask 022; echo 'umask 022' >>~/.profile"
    if umask is None:
        yield unknown("umask", "this kernel does not show the umask", repair)
    elif not umask & stat.S_IWOTH:
        yield unsafe("umask", f"{umask:03o}: everybody can write new files", repair)
    elif not umask & stat.S_IWGRP and _group_name(os.getegid()) != user_name(os.geteuid()):  # not this user's alone
        yield unsafe("umask", f"{umask:03o}: the group {_group_name(os.getegid())} can write new files", repair)
    else:
        yield ok("umask", f"{umask:03o}")


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _check_trust_parents(app: App) -> Iterator[SecurityFinding]:
    if not app.site.trust_parents:
        yield ok("trust_parents", "false: a root below directories that others can write is refused")
        return
    expression = "s/^[[:blank:]]*trust_parents[[:blank:]]*=.*/trust_parents = false/"
    path = app.site_path
    yield unsafe(
        "trust_parents",
        "true: everybody who can write a parent of the root can run code as you",
        quote("sed", "-i", expression, path) if path else "",
    )


def _check_root(app: App) -> Iterator[SecurityFinding]:
    root = app.root
    # The root may be shared: the sticky bit keeps its users apart. So may the directory to which a link leads.
    shared = root.resolve() if root.exists() else root
    offences = find_offences(root, list_trusted(), shared=shared)
    yield from _report("root", offences, f"{root}: no other user can replace the root, a parent or a link on the way")


def _check_site_directory(app: App) -> Iterator[SecurityFinding]:
    path = SiteDir.of(app.root).path
    try:
        root, status = app.root.stat(), path.lstat()
    except FileNotFoundError:
        if app.root.exists() and app.root.stat().st_mode & WRITABLE:
            why = f"{path}: does not exist; whoever makes it sends the alerts of all users"
            yield unsafe("site directory", why, quote("mkdir", "-m", "755", path))
        else:
            yield ok("site directory", f"{path}: none yet")
        return
    if not stat.S_ISDIR(status.st_mode):
        yield unsafe("site directory", f"{path}: not a directory", as_owner(status, "rm", path))
        return
    owner = find_uid(app.site.site_owner)
    trusted = list_trusted() | {root.st_uid} | ({owner} if owner is not None else set())
    good = f"{path}: belongs to {user_name(status.st_uid)}, who sends the alerts"
    yield from _report("site directory", find_offences_below(path, trusted), good)


def _check_secrets(app: App) -> Iterator[SecurityFinding]:
    alerts = app.site.alerts
    for channel, table in (*alerts.channels.items(), ("ping", alerts)):
        for field, path in list_secret_files(table):
            yield from _check_secret(f"{channel} {field}", path)


def _check_secret(field: str, path: Path) -> Iterator[SecurityFinding]:
    offences = find_offences(path, list_trusted())
    yield from (label("secret", offence, what=field) for offence in offences)
    try:
        status = path.stat()
    except FileNotFoundError:
        yield unknown("secret", f"{field}: {path}: no such file")
        return
    except OSError as error:
        yield unknown("secret", f"{field}: {path}: cannot be checked: {error.strerror}")
        return
    if status.st_mode & READABLE:
        mode = stat.S_IMODE(status.st_mode)
        yield unsafe(
            "secret", f"{field}: {path}: mode {mode:04o} lets others read", as_owner(status, "chmod", "600", path)
        )
    elif not offences:
        yield ok("secret", f"{field}: {path}: only {user_name(status.st_uid)} can read the file")


def _check_environment(_: App) -> Iterator[SecurityFinding]:
    """Check the programs, libraries and settings that variables name, and the Python that runs opsctl."""
    is_safe = True
    for variable, separators in PATH_VARIABLES.items():
        value = os.environ.get(variable, "")
        for finding in _check_variable(variable, value, separators, list_trusted()):
            is_safe = False
            yield finding
    if is_safe:
        yield ok("environment", f"{', '.join(PATH_VARIABLES)}: only directories and files of yours and root's")
    found: list[SecurityFinding] = []
    for place in (sys.executable, os.path.realpath(sys.executable), *sys.path):
        found += find_offences(Path(place), list_trusted())
    yield from _report(
        "python", dict.fromkeys(found), f"{sys.executable}: no other user can replace Python or a package"
    )


def _check_variable(variable: str, value: str, separators: str, trusted: frozenset[int]) -> Iterator[SecurityFinding]:
    names = re.split(f"[{separators}]", value) if value and separators else [value]
    safe = [name for name in names if Path(name).is_absolute() and not find_offences(Path(name), trusted)]
    repair = quote("export", f"{variable}={separators[:1].join(safe)}") if safe else quote("unset", variable)
    for name in names if value else []:
        if "/" not in name and variable == "LD_PRELOAD" and name:
            continue  # found in the directories of libraries
        if not Path(name).is_absolute():
            shown = name or "an empty entry"
            yield unsafe("environment", f"{variable}: {shown} depends on the working directory", repair)
            continue
        for offence in find_offences(Path(name), trusted):
            yield label("environment", offence, what=variable)


def _check_sandboxes(_: App) -> Iterator[SecurityFinding]:
    for name in Places.default().names():
        findings = list(_check_sandbox(Places.default().home(name), name))
        yield from findings or [ok("sandbox", f"{name}: closed to other users")]


def _check_sandbox(home: Path, name: str) -> Iterator[SecurityFinding]:
    record = read_record(home)
    if record is None:
        yield unknown("sandbox", f"{name}: the record {home / 'sandbox.json'} cannot be read")
        return
    for path, is_private in ((home, True), (record.site.run, not record.site.shared), (home / "munge.key", True)):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid not in (0, os.geteuid()):
            command = as_root("rm", "-r", path)
            yield unsafe("sandbox", f"{name}: {path}: belongs to {user_name(status.st_uid)}", command)
        elif is_private and mode & 0o077:
            command = as_owner(status, "chmod", "go-rwx", path)
            yield unsafe("sandbox", f"{name}: {path}: mode {mode:04o} lets others use the sandbox as you", command)
    if record.site.shared and record.site.run.exists():
        yield unsafe(
            "sandbox",
            f"{name}: every user of this machine can submit jobs to this sandbox, whose daemons run as root",
            quote("opsctl", "sandbox", "down", "--name", name),
        )


def _check_trains(app: App) -> Iterator[SecurityFinding]:
    """Check the trains of this user. Those of others are their owners' to check."""
    own = [run for run in all_trains(app.root) if may_act(run)]
    unsafe_trains = 0
    for run in own:
        findings = list(_check_train(run, app.site.group, list_trusted()))
        unsafe_trains += bool(findings)
        yield from findings
    if not unsafe_trains:
        yield ok("trains", f"{len(own)} of yours: code, journals and logs are writable by you alone")


def _check_train(run: RunDir, group: str, trusted: frozenset[int]) -> Iterator[SecurityFinding]:
    if offence := find_offence(run.path, trusted):
        yield label("trains", offence)
    for path in sorted(run.path.iterdir()):
        if path.name in SHARED:
            yield from _check_shared(path, group)
        else:
            yield from (label("trains", offence) for offence in find_offences_below(path, trusted))


def _check_places(app: App) -> Iterator[SecurityFinding]:
    """Check the files that --trust obeys, and where the site's [publish] puts the copies of this user's trains."""
    places = [("trusted file", Path(name)) for name in read_trusted()]
    table = app.site.publish
    web = Path(os.path.expandvars(table.path)).expanduser()
    for run in all_trains(app.root) if table.to == "path" else ():
        places += [("publication", web / run.name)] * may_act(run)
    for check, place in places:
        yield from (label(check, offence) for offence in find_offences(place, list_trusted()))


def _check_kernel(_: App) -> Iterator[SecurityFinding]:
    for name in ("protected_hardlinks", "protected_symlinks"):
        if read_text(Path("/proc/sys/fs", name), MAX_RECORD_BYTES).strip() == "0":
            yield unsafe(
                "kernel", f"fs.{name} is 0: others can lead you astray", as_root("sysctl", "-w", f"fs.{name}=1")
            )


def _check_shared(path: Path, group: str) -> Iterator[SecurityFinding]:
    """Check switches/ or requests/: members of the site's group, and nobody else, make entries there."""
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        yield unsafe("trains", f"{path}: not a directory", as_owner(status, "rm", path))
    elif mode & stat.S_IWOTH:
        why = f"{path}: mode {mode:04o} lets everybody stop, save and release the train"
        yield unsafe("trains", why, as_owner(status, "chmod", "o-w" if group else "go-w", path))
    elif mode & stat.S_IWGRP and not group:
        why = f"{path}: mode {mode:04o} lets a group write, and site.toml names no group"
        yield unsafe("trains", why, as_owner(status, "chmod", "g-w", path))
    elif mode & stat.S_IWGRP:
        yield from _check_group(path, status.st_gid, group)
    for entry in list_entries(path, max_entries=MAX_ENTRIES) if stat.S_ISDIR(status.st_mode) else ():
        if entry.is_file(follow_symlinks=False) and (why := find_other_writers(entry.stat(follow_symlinks=False))):
            yield unsafe("trains", f"{entry.path}: {why}: nobody's word", as_owner(status, "rm", entry.path))


def _check_group(path: Path, gid: int, group: str) -> Iterator[SecurityFinding]:
    try:
        expected = grp.getgrnam(group).gr_gid
    except KeyError:
        yield unknown("trains", f"{path}: the group {group!r} of site.toml does not exist on this machine")
        return
    if gid != expected:
        why = f"{path}: another group than {group}, which site.toml names, can write"
        yield unsafe("trains", why, as_owner(path.lstat(), "chgrp", group, path))


CHECKS: dict[str, Callable[[App], Iterator[SecurityFinding]]] = {
    "site file": _check_site_file,
    "secret": _check_secrets,
    "umask": _check_umask,
    "trust_parents": _check_trust_parents,
    "root": _check_root,
    "site directory": _check_site_directory,
    "trains": _check_trains,
    "places": _check_places,
    "kernel": _check_kernel,
    "environment": _check_environment,
    "sandbox": _check_sandboxes,
}
"""The checks, in this order."""


def read_umask(status: Path) -> int | None:
    """Return the umask that the kernel shows in /proc/self/status; None if unknown."""
    try:
        match = re.search(r"^Umask:\s*([0-7]+)$", read_text(status, MAX_RECORD_BYTES), re.MULTILINE)
    except OSError:
        return None
    return int(match[1], 8) if match else None
