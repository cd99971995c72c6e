cd {place}
step=$(cat step 2>/dev/null || echo 0)
while [ "$step" -lt {last} ]; do
    echo "$TRAIN_ATTEMPT $SLURM_PROCID $EPOCHREALTIME" >>beats
    [ -e "fails-$TRAIN_ATTEMPT" ] && exit 7
    sleep 0.1
    step=$(cat step 2>/dev/null || echo 0)
    [ "$SLURM_PROCID" = 0 ] || continue
    step=$((step + 1))
    echo "$step" >.step && mv .step step
    echo " iteration $step/ {last} | lm loss: 2.5 |"
    [ $((step % 4)) = 0 ] && mkdir -p "$TRAIN_CHECKPOINT_DIR/global_step$step"
done
exit 0
