#!/bin/sh
# Stands in for Python below gpu_proof.py, on a GPU of 80 GiB: writes figures without measuring them. The processes of
# the proof $PROOF fail by $FAILURE.
run_dir=${4%/trainer.json}
speed='{"seconds": {"written": 0.5, "compiled": 0.4, "plain": 0.39}, "teraflop": 200, "peak_tflops": 989,
  "matmul_tflops": 700, "uncompiled_because": "", "reserved": 9, "estimate": 10}'
case "$*" in
  *torch.version*) echo "13.0 True"; exit ;;
  *" losses "*) proof=precision figures='{"losses": [2.5, 2.4]}' ;;
  *" loss "*) proof=loss figures='{"chunked": {"loss": 2, "s": 1, "bytes": 1}, "whole": {"loss": 2, "s": 1, "bytes": 2}}' ;;
  *" saving "*) proof=saving figures='{"share": 0.05, "stall_s": 0.1}' ;;
  *mem_get_info* | *'"recompute": true'*) proof=largest figures=$speed ;;
  *'"family": "bloom"'*) proof=speed-bloom figures=$speed ;;
  *'"hidden": 2048'*) proof=speed-1.3b figures=$speed ;;
  *" speed "*) proof=speed-125m figures=$speed ;;
  */resume/*) proof=resume ;;
  */nan/*) proof=guards-nan ;;
  */memory/*) proof=guards-memory ;;
  *) proof=torchtitan ;;
esac
if [ "$proof" = "$PROOF" ]; then
  case $FAILURE in
    "out of memory") echo "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"; exit 1 ;;
    killed) kill -KILL $$ ;;
    crash) kill -SEGV $$ ;;
    error) echo "ValueError: bad shape"; exit 1 ;;
    "missing file") case "$*" in *mem_get_info*) ;; *) exit ;; esac ;;
    hang) sleep 600 & kill -ALRM $PPID; wait ;; # its limit of time is over at once
  esac
fi
case $proof in
  torchtitan) echo "step: 20 mfu: 41.50%" ;;
  guards-*)
    echo '{"reason": "'"${proof#guards-}"'", "detail": "began in layer 2"}' >"$TRAIN_STOP_REASON"
    exit 1 ;;
  resume)
    steps=$([ -e "$run_dir/metrics" ] && seq 5 8 || seq 8)
    mkdir -p "$run_dir/metrics" "$run_dir/checkpoints/step-8"
    for step in $steps; do echo '{"step": '"$step"', "loss": 2, "grad_norm": 1}'; done >>"$run_dir/metrics/metrics.jsonl"
    echo '{"files": {"layer_0": {"sha256": "a"}}}' >"$run_dir/checkpoints/step-8/manifest.json" ;;
  *)
    case "$*" in
      *mem_get_info*) echo 85899345920 ;;
      *) echo "$figures" >"$4/$3.json" ;;
    esac ;;
esac
