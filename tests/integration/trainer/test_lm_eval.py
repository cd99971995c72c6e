"""The hook that evaluates a checkpoint, with the real lm-eval: a tiny Llama and a task of two questions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.trainer.conftest import ROOT, tiny

pytest.importorskip("lm_eval", reason="needs lm-eval: make integrations")
pytest.importorskip("deepspeed")

from tests.support.trainer_ranks import run_ranks

pytestmark = pytest.mark.torch

MODEL = {"family": "llama", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 80, "sequence": 64}
TASK = Path(__file__).with_name("two_questions.yaml").read_text()


def write_tokenizer(directory):
    """Write a model's directory with a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415 - may be absent

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "model_max_length": 64}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text('{"eos_token_id": 256}')


def test_hook_exports_and_evaluates_a_checkpoint(corpus, tmp_path):
    config = tiny(model=MODEL, parallel={"pipeline": 2}, data={"prefix": str(corpus)})
    run_ranks(tmp_path, 2, config, steps=2, save=True)
    write_tokenizer(tmp_path / "bytes")
    (tmp_path / "tasks").mkdir()
    questions = tmp_path / "tasks" / "questions.jsonl"
    questions.write_text('{"question": "Is it?", "answer": 0}\n{"question": "Was it?", "answer": 1}\n')
    (tmp_path / "tasks" / "two_questions.yaml").write_text(TASK.format(questions=questions))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in (("python3", ""), ("lm_eval", " -m lm_eval")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        (programs / name).chmod(0o755)
    env = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "cache"),
        "TRAIN_CHECKPOINT": str(tmp_path / "checkpoints" / "step-0000002"),
        "TRAIN_STEP": "2",
        "TRAIN_RUN_DIR": str(tmp_path),
        "TOKENIZER": str(tmp_path / "bytes"),
    }
    words = ["--tasks", "two_questions", "--include_path", str(tmp_path / "tasks"), "--device", "cpu"]
    argv = ["bash", str(ROOT / "examples" / "evaluate-checkpoint.sh"), *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = (tmp_path / "evaluations" / "step-2").rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["two_questions"]["acc,none"] in (0.0, 0.5, 1.0)
    assert not (tmp_path / "evaluations" / "step-2" / "model").exists()
