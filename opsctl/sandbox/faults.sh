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

# A signal to the programs of one rank, but not to opsctl's own processes around them. Tried again, since a busy Slurm may
# start no step; fails if there are no such programs.
signal_rank() {
    script='found=1
        for environ in $(grep -lzFx -e "TRAIN_RUN_DIR=$1" /proc/[0-9]*/environ); do
            grep -qzFx -e "TRAIN_ATTEMPT=$2" "$environ" && grep -qzFx -e "RANK=$3" "$environ" || continue
            process=${environ#/proc/}
            kill -s "$4" "${process%/environ}" && found=0
        done 2>/dev/null
        exit $found'
    for _ in 1 2 3; do
        srun --overlap --mem=0 --jobid="$JOB" --nodes=1 --ntasks=1 --nodelist="$NODE" \
            sh -c "$script" sh "$RUN" "$ATTEMPT" "$RANK" "$1" && return
    done
    return 1
}

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
