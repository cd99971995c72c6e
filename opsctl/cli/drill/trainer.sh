# The trainer of `opsctl drill`: steps of a fifth of a second, ranks that wait for each other, a checkpoint every ten
# steps, a stop on request. Argument: the last step. Files in `faults/` of the run directory break it:
#   crash, crash-NODE, crash-save  the exception that ends a step, a step on this node (its first line is the driver's), a save
#   pause, pause-save              seconds by which the last rank is late in every step, or a save takes longer
#   loss, clock                    the loss, and by how much the stamps of the log are wrong
faults=$TRAIN_RUN_DIR/faults last=$1
saves=$TRAIN_CHECKPOINT_DIR meet=$TRAIN_RUN_DIR/meet/$TRAIN_ATTEMPT
mkdir -p "$saves" "$meet"

fail() {
    printf 'Traceback (most recent call last):\n  File "train.py", line %d, in %s\n    %s\n%s\n' "$1" "$2" "$3" "$4" >&2
    exit 1
}

save() {
    local target=$saves/.new-$step
    mkdir -p "$target"
    [[ ! -e $faults/pause-save ]] || sleep "$(<"$faults/pause-save")"
    [[ ! -e $faults/crash-save ]] || fail 120 save 'torch.save(state, path)' "$(<"$faults/crash-save")"
    printf 'state of step %d, which is complete\n' "$step" >"$target/state.pt"
    mv -T "$target" "$saves/$step"
}

step=0
for path in "$saves"/[0-9]*; do
    number=${path##*/}
    [[ -e $path ]] && ((number > step)) && step=$number
done
if ((step)) && [[ $(<"$saves/$step/state.pt") != "state of step $step, which is complete" ]]; then
    fail 41 load 'state = torch.load(path)' \
        'RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory'
fi

# One step together: rank 0 hears of every other rank, and tells it to go on or to leave. Waiting ranks use no CPU.
meet_peers() {
    local peer word=go
    if ((RANK)); then
        echo "$step" >"$meet/up-$RANK"
        read -r word <"$meet/down-$RANK"
    else
        for ((peer = 1; peer < WORLD_SIZE; peer++)); do read -r _ <"$meet/up-$peer"; done
        [[ ! -e $TRAIN_STOP_REQUEST ]] || word=leave
        for ((peer = 1; peer < WORLD_SIZE; peer++)); do echo "$word" >"$meet/down-$peer"; done
    fi
    [[ $word == go ]]
}

for ((peer = 1; peer < WORLD_SIZE; peer++)); do
    mkfifo "$meet/up-$peer" "$meet/down-$peer" 2>/dev/null
done
while ((step < last)); do
    ((++step))
    sleep 0.2
    [[ ! -e $faults/crash ]] || fail 88 step 'batch = next(batches)' "$(<"$faults/crash")"
    if [[ -e $faults/crash-$TRAIN_NODE ]]; then
        { read -r line && echo "$line" && fail 90 step 'loss.backward()' "$(cat)"; } <"$faults/crash-$TRAIN_NODE"
    fi
    [[ ! -e $faults/pause ]] || ((RANK < WORLD_SIZE - 1)) || sleep "$(<"$faults/pause")"
    meet_peers || break
    ((RANK == 0)) || continue
    [[ -e $faults/loss ]] && loss=$(<"$faults/loss") || loss=2.$((100000 - step))
    [[ -e $faults/clock ]] && stamp=$(date --date "$(<"$faults/clock")" '+[%F %T]') || stamp=
    [[ -e $faults/pause ]] && took=$((200 + 1000 * $(<"$faults/pause"))) || took=200
    printf '%s iteration %8d/%8d | elapsed time per iteration (ms): %d.0 | lm loss: %s |\n' \
        "$stamp" "$step" "$last" "$took" "$loss"
    ((step % 10)) || save
done
((RANK)) || [[ -e $saves/$step ]] || save
