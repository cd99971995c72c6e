#!/bin/sh
# Run opsctl's health checks on this node without Slurm, network or packages. The scripts beside this one start it.
# Exit 0: healthy or unknown. Exit 1: evidence against the node, one line each.
#
# Edit these lines, or set the variables in node-local.conf beside this file:
OPSCTL_PATH=/opt/opsctl             # directory that contains the package opsctl, on a local disk
OPSCTL_PYTHON=/usr/bin/python3      # Python 3.11 or newer; no packages are needed
OPSCTL_SITE=/etc/opsctl/site.toml   # its table [health] has the thresholds; may be missing
OPSCTL_CLEARED=/run/opsctl-cleared  # touch it after a repair: older kernel lines no longer count
OPSCTL_OPTIONS="--timeout 5"
# Slurm starts Prolog and Epilog without PATH.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
here=${0%/*}
# shellcheck source=/dev/null
[ ! -r "$here/node-local.conf" ] || . "$here/node-local.conf"
set -- "$@" --cleared "$OPSCTL_CLEARED"
[ ! -r "$OPSCTL_SITE" ] || set -- "$@" --settings "$OPSCTL_SITE"
# shellcheck disable=SC2086 # several options
output=$(PYTHONPATH=$OPSCTL_PATH "$OPSCTL_PYTHON" -P -S -B -m opsctl.nodes.health.node_local $OPSCTL_OPTIONS "$@")
code=$?
[ -z "$output" ] || printf '%s\n' "$output"
# Wrong settings, an old Python or an error of the program are no evidence against the node.
[ "$code" -eq 1 ] && [ -n "$output" ] && exit 1
[ "$code" -eq 0 ] || echo "opsctl: the node was not checked (exit code $code)" >&2
exit 0
