#!/bin/bash
# The body of train pyxis, which every task runs. `opsctl edit` changes the body for the next task.
set -euo pipefail
trap 'echo "opsctl: body.sh line $LINENO ended with $?: $BASH_COMMAND" >&2' ERR

export TRAIN_RUN_DIR=/scratch/trains/pyxis
# The guard exports the log directory of the attempt. Without the guard, the body derives the same path.
attempt=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}.0
export TRAIN_ATTEMPT_LOGS="${TRAIN_ATTEMPT_LOGS:-$TRAIN_RUN_DIR/logs/$attempt}"
[[ -d $TRAIN_ATTEMPT_LOGS ]] || mkdir -p -- "$TRAIN_ATTEMPT_LOGS"

# srun ignores --cpus-per-task of sbatch unless this variable repeats the value.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
export NNODES="$SLURM_NNODES"

# The address of a node may differ from its name; Slurm knows the address.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${nodes%%$'\n'*}
facts=$(timeout 20 scontrol --oneliner show node "$first" || true)
[[ $facts =~ (^|[[:space:]])NodeAddr=([^[:space:]]+) ]] && MASTER_ADDR=${BASH_REMATCH[2]} || MASTER_ADDR=$first
# The guard has found a free port already. Without the guard, the body finds one.
MASTER_PORT=${TRAIN_FREE_PORT:-$(/opt/opsctl/bin/python -P -m opsctl.guard.rank --free-port)}
export MASTER_ADDR MASTER_PORT

export PYTHONUNBUFFERED=1
export A='x y'
cd -- '/work/my code'

trap - ERR
rm -f -- "$TRAIN_ATTEMPT_LOGS"/{first-exit,quiet/*}
code=0
# No limit: rank 0 may save, evaluate or upload long after the other ranks have ended.
# The guard names the nodes of a start that does not use all nodes of the job. Slurm may still count resources of the
# step before it, which waits for a lost node: hence --overlap. A host file keeps the order of the ranks where a spare
# node has taken the place of another: --nodelist would outweigh it, and srun of Slurm 24.11 refuses --nodes beside it.
nodelist=${TRAIN_NODES:-}
if [[ -n ${TRAIN_HOST_FILE:-} ]]; then
    export SLURM_HOSTFILE=$TRAIN_HOST_FILE
    nodelist=
fi
# The Python of a node, if it has a new one, starts the ranks without a search on the shared file system.
srun --kill-on-bad-exit=1 --wait=0 ${TRAIN_NODES:+--overlap} ${nodelist:+--nodes="$NNODES" --nodelist="$nodelist"} '--container-image=/images/it'"'"'s $(id).sqsh' '--container-mounts=/scratch/trains/pyxis:/scratch/trains/pyxis,/work/my code:/work/my code,/opt/opsctl/lib/opsctl:/opt/opsctl-rank-wrapper/opsctl:ro,/data:/da ta:ro' --container-workdir="$PWD" '--env=X=$(id)"$PWD"' --nv python3 -I -S -c 'import sys; file, package = sys.argv[1:3]; sys.path.append(package + "/.."); exec("try: source = open(file).read()\nexcept OSError: source = \"from opsctl.guard.rank import main\""); exec(source); sys.exit(main(sys.argv[3:]))' /scratch/trains/pyxis/rank_wrapper.py /opt/opsctl-rank-wrapper/opsctl --logs "$TRAIN_ATTEMPT_LOGS" -- \
    python train.py python3 'it'"'"'s' || code=$?
# When a rank fails, srun ends the others and returns 143; the exit code of the first failed rank is in first-exit.
[[ $code -ne 0 && -s $TRAIN_ATTEMPT_LOGS/first-exit ]] && read -r code <"$TRAIN_ATTEMPT_LOGS/first-exit"
exit "$code"
