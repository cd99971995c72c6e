#!/bin/sh
# slurm.conf: HealthCheckProgram=/etc/slurm/opsctl/health-check-program.sh, HealthCheckInterval=600,
# HealthCheckNodeState=ANY. Drains the node with the evidence as the reason. A node that is out of service is left alone,
# and nothing is put back into service: that is for `opsctl undrain-good-nodes`, or for a person.
PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
here=${0%/*}
failure=$("$here/node-local.sh" 2>/dev/null) && exit 0
reason=$(printf '%s\n' "$failure" | sed -n 's/^ERROR:  opsctl:  Health check failed:  //p' | head -n 1 | tr -d '"' | cut -c1-180)
export PATH
node=${SLURMD_NODENAME:-$(uname -n | cut -d. -f1)}
state=$(scontrol --oneliner show node "$node" | sed -n 's/.* State=\([^ ]*\).*/\1/p')
case $state in
    *DRAIN* | *DOWN* | *FAIL* | "") exit 0 ;;
esac
exec scontrol update "NodeName=$node" State=DRAIN "Reason=node-local: ${reason:-failed without evidence}"
