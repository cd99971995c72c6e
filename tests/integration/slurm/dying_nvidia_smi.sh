#!/bin/sh
case $SLURMD_NODENAME in
node001) # goes down: its end of the connection vanishes
    pid=$$
    until grep -q ^sshd "/proc/$pid/comm"; do pid=$(sed -n "s/^PPid:[[:space:]]*//p" "/proc/$pid/status"); done
    kill -9 "$pid" ;;
node005) echo "<nvidia_smi_log><gpu>"; kill -9 $$ ;;
*) exec cat "$(dirname "$0")/smi" ;;
esac
