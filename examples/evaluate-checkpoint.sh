#!/bin/bash
# Export a checkpoint for transformers and evaluate it with lm-eval, in a job of its own. In TRAIN.toml:
#   [hooks]
#   on_checkpoint = 'sbatch /home/me/code/evaluate-checkpoint.sh --tasks lambada_openai,hellaswag'
# sbatch hands on the variables of the hook. TOKENIZER names a model of transformers that has the tokenizer.
# Checkpoints that [trainer.checkpoint] keep_last removes before this job starts are not evaluated.
#SBATCH --job-name=evaluate
#SBATCH --nodes=1
#SBATCH --time=60
set -euo pipefail
results=$TRAIN_RUN_DIR/evaluations/step-$TRAIN_STEP
mkdir -p "$results"
rm -rf "$results/model" # of an evaluation that was interrupted
python3 -P -m opsctl.trainer.checkpoint export "$TRAIN_CHECKPOINT" "$results/model" ${TOKENIZER:+--tokenizer "$TOKENIZER"}
lm_eval --model hf --model_args "pretrained=$results/model" --output_path "$results" "$@"
rm -r "$results/model"
