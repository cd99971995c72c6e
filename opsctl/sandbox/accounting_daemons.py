"""slurmdbd and its database. The database is created once per user and version and copied for later sandboxes."""

import hashlib
import secrets
import shutil
import signal
from pathlib import Path

from opsctl.base.errors import SandboxError
from opsctl.base.tables import read_package_table
from opsctl.sandbox.daemons import Tools, run_in_sandbox, start_recorded, wait_for, wait_listening
from opsctl.sandbox.members import wait_ended
from opsctl.sandbox.record import DATABASE, SLURMDBD, SandboxRecord
from opsctl.sandbox.slurm_conf import ACCOUNT, CLUSTER
from opsctl.sandbox.start_failures import make_error

OPTIONS: dict[str, list[str]] = read_package_table("sandbox/mariadb.toml")


def start_accounting(record: SandboxRecord, tools: Tools) -> SandboxRecord:
    """Start the database and slurmdbd, with an account for this user. Raises SandboxError."""
    data = record.site.home / "mysql"
    template = template_path(record, tools)
    if not template.is_dir():
        make_template(record, tools, data, template)
    else:
        shutil.copytree(template, data)
    return start_both(record, tools, data)


def template_path(record: SandboxRecord, tools: Tools) -> Path:
    """Return the path of the template for this user and these versions: other versions may use another format."""
    text = tools.runner.run([tools.programs["mariadbd"], "--version"], timeout=10).out
    key = f"{text}|{record.site.version}|{record.site.user}|{OPTIONS['size']}"
    return tools.places.cache / f"accounting-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def make_template(record: SandboxRecord, tools: Tools, data: Path, template: Path) -> None:
    """Create the database in `data` with slurmdbd's tables, stop both daemons, and store a copy as template."""
    install(record, tools, data)
    running = start_both(record, tools, data)
    for words in (("cluster", CLUSTER), ("account", ACCOUNT), ("user", record.site.user, f"account={ACCOUNT}")):
        completed = run_in_sandbox(record, tools.runner, "sacctmgr", "--immediate", "add", *words)
        if completed.code != 0:
            raise SandboxError(f"sacctmgr add {' '.join(words)}: {completed.err.strip() or completed.out.strip()}")
    for name in (SLURMDBD, DATABASE):
        stop(running, tools, name)
    tools.places.cache.mkdir(parents=True, exist_ok=True)
    copy = template.with_name(f".{template.name}.{secrets.token_hex(4)}")
    shutil.copytree(data, copy)
    try:
        copy.rename(template)
    except OSError:
        shutil.rmtree(copy)  # another sandbox has just stored the same template


def install(record: SandboxRecord, tools: Tools, data: Path) -> None:
    options = (option.format(user=record.site.user, data=data) for option in OPTIONS["install"])
    argv = [tools.programs["mariadb-install-db"], *options, *OPTIONS["size"]]
    completed = tools.runner.run(argv, timeout=120)
    if completed.code != 0:
        raise SandboxError(f"mariadb-install-db failed: {(completed.err or completed.out).strip()[-500:]}")


def start_both(record: SandboxRecord, tools: Tools, data: Path) -> SandboxRecord:
    socket = record.site.home / "mysql.socket"
    options = (option.format(site=record.site, data=data) for option in OPTIONS["serve"])
    argv = (tools.programs["mariadbd"], *options, *OPTIONS["size"], *OPTIONS["speed"])
    record = start_recorded(record, DATABASE, argv)
    wait_for(record, tools.clock, socket.exists, DATABASE, limit_s=60, failure="mariadbd has no socket")
    record = start_recorded(record, SLURMDBD, (tools.programs["slurmdbd"], "-D"))
    wait_listening(record, tools.clock, SLURMDBD, record.site.dbd_port)
    return record


def stop(record: SandboxRecord, tools: Tools, name: str) -> None:
    daemon = record.daemon(name)
    assert daemon is not None
    daemon.process.send(signal.SIGTERM)
    if not wait_ended({daemon.process: name}, tools.clock, until=tools.clock.monotonic() + 30):
        raise make_error(record, f"{name} did not end within 30 s", name)
