#!/bin/sh
# slurm.conf: Prolog=/etc/slurm/opsctl/prolog.sh with PrologFlags=Alloc. A failing Prolog drains the node with the reason
# "Prolog error" and requeues the job; the evidence is in the system's log.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
here=${0%/*}
failures=$("$here/node-local.sh" --only-faulty) && exit 0
printf '%s\n' "$failures" | logger -t opsctl-prolog
exit 1
