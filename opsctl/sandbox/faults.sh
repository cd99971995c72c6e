# How faults begin and end: the functions of fault_table.toml. Variables: TRAIN, RUN (its directory), ATTEMPT, JOB, RANK (the
# last one) and its NODE, OPSCTL (how opsctl is called), SANDBOX (its name). Files in FAULTS break a trainer made for drills.
set -eu
FAULTS=$RUN/faults

# A file for a trainer made for drills, whole from its first moment: name, and lines.
plant() {
    mkdir -p "$FAULTS"
    name=$1
    shift
    printf '%s\n' "$@" >"$FAULTS/.new-$name"
    mv -- "$FAULTS/.new-$name" "$FAULTS/$name"
}

clear() { rm -f -- "$FAULTS/$1"; }

break_daemon() { $OPSCTL sandbox fault "$1" "$2" --name "$SANDBOX"; }

SIGNAL_PROCESSES='found=1
    for environ in $(grep -lzFx -e "TRAIN_RUN_DIR=$1" /proc/[0-9]*/environ); do
        grep -qzFx -e "TRAIN_ATTEMPT=$2" "$environ" && grep -qzFx -e "RANK=$3" "$environ" || continue
        process=${environ#/proc/}
        kill -s "$4" "${process%/environ}" && found=0
    done 2>/dev/null
    exit $found'

# A signal to the programs of one rank, but not to opsctl's own processes around them. Tried again, since a busy Slurm may
# start no step; fails if there are no such programs.
signal_rank() {
    for _ in 1 2 3; do
        srun --overlap --mem=0 --jobid="$JOB" --nodes=1 --ntasks=1 --nodelist="$NODE" \
            sh -c "$SIGNAL_PROCESSES" sh "$RUN" "$ATTEMPT" "$RANK" "$1" && return
    done
    return 1
}

# The same on the sandbox, without Slurm's help.
signal_rank_here() { sh -c "$SIGNAL_PROCESSES" sh "$RUN" "$ATTEMPT" "$RANK" "$1"; }

# A signal to all processes of the task on the sandbox: ranks, srun, and opsctl's guard.
signal_task() {
    grep -lzFx -e "SLURM_JOB_ID=$JOB" /proc/[0-9]*/environ 2>/dev/null | sed 's:/proc/::; s:/environ::' | xargs -r kill -s "$1" || true
}

# Lines of this file that go on after the fault has begun, until end_background.
background() {
    mkdir -p "$FAULTS"
    setsid bash -c ". \"\$0\"; $1" "$0" </dev/null >"$FAULTS/background.txt" 2>&1 &
    echo $! >"$FAULTS/background"
}

end_background() { kill -- "-$(cat "$FAULTS/background")" 2>/dev/null || true; }

# Slurm answers after 15 to 30 seconds.
slow_controller() {
    while break_daemon controller stop; do
        sleep $((15 + RANDOM % 16))
        break_daemon controller resume
        sleep 2
    done
}

# Whoever touches a file waits for 20 seconds, again and again.
slow_files() {
    while :; do
        signal_task STOP
        sleep 20
        signal_task CONT
        sleep 4
    done
}

# What happens on a cluster in an hour without a fault.
be_odd() {
    while :; do
        write_odd_lines && sleep 290
        break_daemon "$NODE" restart && sleep 290
        plant pause-save 15 && sleep 40 && clear pause-save && sleep 250
        plant clock '+3 days' && sleep 10 && clear clock && sleep 280
        break_daemon controller stop && sleep 20 && break_daemon controller resume && sleep 270
    done
}

# What nvidia-smi says on the node: a recorded output with one counter changed, or a recorded message.
break_ecc() { sed 's:<sram_uncorrectable>0<:<sram_uncorrectable>14<:' "$(dirname "$0")/nvidia_smi.xml" >"$RUN/../../nvidia-smi-$NODE"; }

lose_gpu() {
    echo 'Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU' \
        >"$RUN/../../nvidia-smi-$NODE"
}

repair_gpu() { rm -f -- "$RUN/../../nvidia-smi-$NODE"; }

# The largest file of the newest checkpoint keeps its first bytes only.
cut_checkpoint() {
    newest=$(ls -td -- "$RUN"/checkpoints/*/ | head -n 1)
    file=$(find "$newest" -type f -printf '%s %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-)
    truncate --size 16 -- "$file"
}

# What a trainer leaves that ended within its save.
leave_half_checkpoint() {
    mkdir -- "$RUN/checkpoints/.new-half"
    printf 'state of st' >"$RUN/checkpoints/.new-half/state.pt"
}

# The mail program of the drill's site fails: down (for now) or expired (for good; another channel works).
break_mail() { : >"$RUN/../../mail-$1"; }

repair_mail() { rm -f -- "$RUN/../../mail-$1"; }

# The watch beside the drill.
signal_watch() { kill -s "$1" "$(cat "$RUN/../../watch.pid")"; }

fill_disk() { cat /dev/zero >"$1/filler" || true; }

write_odd_lines() {
    printf '\000\377 rubbish \033[31m\n iteration 9999999/ 3 | lm lo\n0 uncorrectable ECC errors\n' >>"$RUN/logs/main_log.txt"
}
