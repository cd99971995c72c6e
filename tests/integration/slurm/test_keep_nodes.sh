hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
echo $NODE_RANK $SLURM_NODEID $WORLD_SIZE $NNODES $MASTER_ADDR $hosts >{place}/env-$RANK
step=$(cat {place}/step 2>/dev/null || echo 0)
while [ "$step" -lt {last} ]; do
    step=$((step + 1))
    if [ "$SLURM_PROCID" = 0 ]; then
        echo " iteration $step/ {last} | lm loss: 2.5 |"
        echo "$step" >{place}/step.new && mv {place}/step.new {place}/step  # other ranks may be reading it
    fi
    [ "$step" -ge 5 ] && {{ {before}; mkdir {place}/failed-$SLURM_PROCID 2>/dev/null && {{ {at_step_5}; }}; }}
    sleep 0.1
done
