#!/bin/sh
# slurm.conf: Epilog=/etc/slurm/opsctl/epilog.sh. A failing Epilog drains the node with the reason "Epilog error"; the
# evidence is in the system's log. On nodes that jobs share, leave --idle out.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
here=${0%/*}
failures=$("$here/node-local.sh" --idle) && exit 0
printf '%s\n' "$failures" | logger -t opsctl-epilog
exit 1
