"""slurmdbd and its database: made once for each user and version, then copied."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import signal
from pathlib import Path

from opsctl.errors import SandboxError
from opsctl.sandbox.daemons import Tools, ask, started, wait_for, wait_listening
from opsctl.sandbox.failures import failed
from opsctl.sandbox.members import wait_ended
from opsctl.sandbox.record import DATABASE, SLURMDBD, SandboxRecord
from opsctl.sandbox.slurm_conf import ACCOUNT, CLUSTER

SMALL = (
    "--innodb-log-file-size=4M",
    "--innodb-data-file-path=ibdata1:4M:autoextend",
    "--innodb-autoextend-increment=4",
)
"""A database of a few megabytes, quick to copy. Must be the same whenever its files are used."""
QUICK = (
    "--skip-networking", "--skip-log-bin", "--performance-schema=OFF", "--innodb-buffer-pool-size=32M",
    "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF", "--innodb-lock-wait-timeout=900",
    "--innodb-temp-data-file-path=ibtmp1:1M:autoextend", "--key-buffer-size=1M", "--aria-pagecache-buffer-size=1M",
)  # fmt: skip
"""What a database may leave out that nobody would miss after a power cut."""


def start_accounting(record: SandboxRecord, tools: Tools) -> SandboxRecord:
    """The database and slurmdbd, with this user's account in it."""
    data = record.site.home / "mysql"
    template = template_path(record, tools)
    if not template.is_dir():
        make_template(record, tools, data, template)
    else:
        shutil.copytree(template, data)
    return start_both(record, tools, data)


def template_path(record: SandboxRecord, tools: Tools) -> Path:
    """One for each user and each pair of versions: neither reads the other's files for certain."""
    text = tools.runner.run([tools.programs["mariadbd"], "--version"], timeout=10).out
    key = f"{text}|{record.site.version}|{record.site.user}|{SMALL}"
    return tools.places.cache / f"accounting-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def make_template(record: SandboxRecord, tools: Tools, data: Path, template: Path) -> None:
    """Fill `data`, let slurmdbd make its tables in it, shut both down, and keep a copy for the next time."""
    install(record, tools, data)
    running = start_both(record, tools, data)
    for words in (("cluster", CLUSTER), ("account", ACCOUNT), ("user", record.site.user, f"account={ACCOUNT}")):
        done = ask(record, tools.runner, "sacctmgr", "--immediate", "add", *words)
        if done.code != 0:
            raise SandboxError(f"sacctmgr add {' '.join(words)}: {done.err.strip() or done.out.strip()}")
    for name in (SLURMDBD, DATABASE):
        stop(running, tools, name)
    tools.places.cache.mkdir(parents=True, exist_ok=True)
    beside = template.with_name(f".{template.name}.{secrets.token_hex(4)}")
    shutil.copytree(data, beside)
    try:
        beside.rename(template)
    except OSError:
        shutil.rmtree(beside)  # another sandbox was quicker, and its template is as good


def install(record: SandboxRecord, tools: Tools, data: Path) -> None:
    argv = [
        tools.programs["mariadb-install-db"], "--no-defaults", "--auth-root-authentication-method=normal",
        "--skip-test-db", f"--user={record.site.user}", f"--datadir={data}", *SMALL,
    ]  # fmt: skip
    done = tools.runner.run(argv, timeout=120)
    if done.code != 0:
        raise SandboxError(f"mariadb-install-db failed: {(done.err or done.out).strip()[-500:]}")


def start_both(record: SandboxRecord, tools: Tools, data: Path) -> SandboxRecord:
    home = record.site.home
    socket = home / "mysql.socket"
    argv = (
        tools.programs["mariadbd"], "--no-defaults", f"--user={record.site.user}", f"--datadir={data}",
        f"--socket={socket}", f"--pid-file={home}/mariadbd.pid", *SMALL, *QUICK,
    )  # fmt: skip
    record = started(record, DATABASE, argv)
    wait_for(record, tools.clock, socket.exists, DATABASE, limit=60, what="mariadbd has no socket")
    record = started(record, SLURMDBD, (tools.programs["slurmdbd"], "-D"))
    wait_listening(record, tools.clock, SLURMDBD, record.site.dbd_port)
    return record


def stop(record: SandboxRecord, tools: Tools, name: str) -> None:
    daemon = record.daemon(name)
    assert daemon is not None
    daemon.process.send(signal.SIGTERM)
    if not wait_ended({daemon.process: name}, tools.clock, until=tools.clock.monotonic() + 30):
        raise failed(record, f"{name} did not end within 30 s", name)
