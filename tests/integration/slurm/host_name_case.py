"""Start a sandbox as user `argv[1]` with its files below `argv[2]`, run a job, and print the results as JSON.

A test runs this program in new namespaces with host name `argv[3]`. An optional `argv[4]` turns accounting on.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec
from tests.support.slurms import wait_until

SRUN = ("srun", "--nodes=2", "sh", "-c", "echo $SLURMD_NODENAME $(id -un) ${LD_PRELOAD-none}")


def become(user: str) -> None:
    row = pwd.getpwnam(user)
    if row.pw_uid != os.geteuid():
        os.setgroups([])
        os.setgid(row.pw_gid)
        os.setuid(row.pw_uid)


def list_listening_addresses() -> list[str]:
    """Return the listening TCP addresses of this network namespace, in which only the sandbox runs."""
    addresses = []
    for name in ("tcp", "tcp6"):
        for row in Path("/proc/net", name).read_text().splitlines()[1:]:
            address, state = row.split()[1].partition(":")[0], row.split()[3]
            if state == "0A":
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
                addresses.append(socket.inet_ntop(family, b"".join(words)))
    return sorted(addresses)


def main() -> None:
    user, root, host, *extra = sys.argv[1:]
    socket.sethostname(host)
    become(user)
    os.chdir(root)
    places = Places(state=Path(root, "state"), cache=Path(root, "cache"), run=Path(root))
    sandbox = Sandbox.up(
        SandboxSpec(nodes=2, fast=True, accounting=bool(extra)),
        places=places,
        clock=SystemClock(),
        runner=SystemRunner(),
    )
    try:
        fields = {"listening": list_listening_addresses(), "address": sandbox.record.site.network.address}
        env = {**os.environ, **sandbox.env()}
        done = subprocess.run(SRUN, env=env, capture_output=True, text=True, timeout=250, check=False)
        wrap = "srun --nodes=2 printenv SLURMD_NODENAME"
        job = ("sbatch", "--nodes=2", f"--output={root}/out", f"--wrap={wrap} && touch {root}/done")
        batch = subprocess.run(job, env=env, capture_output=True, text=True, timeout=250, check=False)
        wait_until(Path(root, "done").exists, 250)
        out = Path(root, "out").read_text()
        fields |= {
            "srun": sorted(done.stdout.splitlines()),
            "errors": done.stderr + batch.stderr,
            "batch": sorted(out.split()),
        }
    finally:
        ended = sandbox.down(grace=0.2)
    sys.stdout.write(json.dumps({**fields, "ended": ended.count}))


main()
