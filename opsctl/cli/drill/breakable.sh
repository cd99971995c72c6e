# Makes any trainer one that the files in `faults/` break, as trainer.sh explains them. Sourced by a line of [setup], it
# starts every rank below itself; a fault of a save comes at once, since only a trainer knows when it saves.
if [[ ${BASH_SOURCE[0]} != "$0" ]]; then
    BREAKABLE=${BASH_SOURCE[0]}
    srun() {
        local words=()
        while [[ $1 != -- ]]; do
            words+=("$1")
            shift
        done
        command srun "${words[@]}" -- bash "$BREAKABLE" "${@:2}"
    }
    return
fi

faults=$TRAIN_RUN_DIR/faults

# The log with another loss or another date.
change_lines() {
    local line
    trap '' TERM USR1 USR2
    while IFS= read -r line; do
        if [[ -e $faults/loss && $line =~ ^(.*(lm\ loss|\'loss\')[^0-9a-z]+)[-+.0-9a-zE]+(.*)$ ]]; then
            line=${BASH_REMATCH[1]}$(<"$faults/loss")${BASH_REMATCH[3]}
        fi
        [[ ! -e $faults/clock ]] || line=$(date --date "$(<"$faults/clock")" '+[%F %T]')$line
        printf '%s\n' "$line"
    done
}

# The exception of a file; in the file of a node, the line of the driver stands first.
crash() {
    kill -s KILL "$child"
    {
        [[ $1 != */crash-?*[0-9] ]] || { read -r line && echo "$line"; }
        printf 'Traceback (most recent call last):\n  File "train.py", line 88, in step\n    train(batch)\n%s\n' "$(cat)" >&2
    } <"$1"
    exit 1
}

# The rank stands still for so many seconds, or until the file is gone.
stand_still() {
    kill -s STOP "$child"
    for ((tenths = 0; tenths < 10 * $(<"$1"); tenths++)); do
        [[ -e $1 ]] || break
        sleep 0.1
    done
    kill -s CONT "$child"
}

"$@" > >(change_lines) &
child=$!
for name in TERM INT HUP USR1 USR2; do
    trap "kill -s $name $child" "$name"
done
slept=0
while kill -0 "$child" 2>/dev/null; do
    for name in crash "crash-$TRAIN_NODE" crash-save; do
        [[ ! -e $faults/$name ]] || crash "$faults/$name"
    done
    [[ ! -e $faults/pause ]] || ((RANK < WORLD_SIZE - 1)) || stand_still "$faults/pause"
    if [[ -e $faults/pause-save ]] && ((SECONDS > slept + 25)); then
        stand_still "$faults/pause-save"
        slept=$SECONDS
    fi
    sleep 0.2
done
wait "$child"
code=$?
if ((code > 128)); then
    trap - TERM INT HUP USR1 USR2
    kill -s $((code - 128)) $$
fi
exit "$code"
