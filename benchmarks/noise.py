"""How often one harmless message in a whole log is taken for the cause of its end.

Every message of tests/corpus/failures/noise.txt stands at the start, in the middle and at the end of logs of many
formats, the known ones and three that nothing knows, each with a real failure of the tuning sets behind its last step.
`python -P benchmarks/noise.py` prints the share of diagnoses that are the same as without the message, by position;
`--cases` prints the others. `--only-noise` prints how many messages alone explain the end of a training that stands.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from opsctl.diagnosis.diagnose_attempt import diagnose_logs
from opsctl.diagnosis.root_cause import Diagnosis

sys.path.insert(0, str(Path(__file__).parent))
from diagnosis import CORPUS, TUNING, judge, read_cases

STEPS = 30
FORMATS = {
    "megatron": " iteration {n:8d}/  1000 | elapsed time per iteration (ms): 900.1 | lm loss: 2.1E+00 |",
    "transformers": "{{'loss': 2.{n}, 'grad_norm': 0.7, 'learning_rate': 4e-05, 'epoch': 0.{n}}}",
    "bar": " {n}%|###       | {n}/100 [00:{n:02d}<01:10,  1.01it/s]",
    "lightning": "Epoch 0:  {n}%|##   | {n}/100 [00:{n:02d}<01:10,  1.01it/s, v_num=1, train_loss=2.1]",
    "torchtitan": "[rank0]:[titan] 2024-03-01 10:00:{n:02d},000 - root - INFO - step: {n}  loss:  8.1  grad_norm:  1.2",
    "nanogpt": "iter {n}: loss 3.2, time 300.10ms, mfu 30.10%",
    "nemo": "Training epoch 0, iteration {n}/999 | lr: 1e-05 | global_step: {n} | reduced_train_loss: 9.1",
    "olmo": "2024-03-01 10:00:{n:02d}.000 node1:0 olmo.train:966 INFO [step={n}/1000,epoch=0]",
    "fairseq": "2024-03-01 10:00:{n:02d} | INFO | train_inner | epoch 001: {n} / 400 loss=9.1, num_updates={n}",
    "deepspeed": "[2024-03-01 10:00:{n:02d},000] [INFO] [logging.py:96] [Rank 0] step={n}, skipped=0, lr=[1e-05]",
    "epochs": "[GPU0] Epoch {n} | Batchsize: 32 | Steps: 64",
    "saves": "Epoch {n} | Training snapshot saved at snapshot.pt",
    "checkpoints": "2024-03-01 10:00:{n:02d} saved checkpoint to /data/ckpt/step_{n}.pt",
    "unknown loss": "[10:00:{n:02d}] 0{n} 2.{n}1 0.0{n}",
    "unknown words": "done with shard {n}, mean reward -0.{n}",
    "nothing known": "rollout of {n} games took 3.{n} s",
}
START = ["loading the data", "4 ranks on node1", "model with 1.2e9 parameters", "starting the training"]


def read_noise() -> list[list[str]]:
    return [block.splitlines() for block in (CORPUS / "noise.txt").read_text().split("\n\n")]


def read_failures() -> list[dict[str, object]]:
    """Return every sixth tuning case that the lines alone establish, and that is right alone."""
    cases = [case for half in TUNING for case in read_cases(half) if case["basis"] == "lines"]
    return [
        case for case in cases[:: 30 if "--quick" in sys.argv else 6] if judge(case, diagnose(case["lines"])) == "right"
    ]


def place(noise: list[str], steps: list[str], failure: list[str]) -> Iterator[tuple[str, list[str]]]:
    yield "start", [*START, *noise, *steps, *failure]
    yield "middle", [*START, *steps[:15], *noise, *steps[15:], *failure]
    yield "end", [*START, *steps, *noise, *failure]


def diagnose(lines: list[str]) -> Diagnosis:
    with tempfile.TemporaryDirectory() as name:
        log = Path(name, "main_log.txt")
        log.write_text("\n".join(lines) + "\n")
        return diagnose_logs([log])


def main() -> None:
    scores: Counter[tuple[str, bool]] = Counter()
    by_noise: Counter[str] = Counter()
    for name, line in FORMATS.items():
        steps = [line.format(n=n) for n in range(10, 10 + STEPS)]
        for case in read_failures():
            alone = diagnose([*START, *steps, *case["lines"]])
            for noise in read_noise():
                for position, lines in place(noise, steps, case["lines"]):
                    diagnosis = diagnose(lines)
                    is_same = (diagnosis.kind, diagnosis.cause) == (alone.kind, alone.cause)
                    scores[position, is_same] += 1
                    by_noise[noise[0][:80]] += not is_same
                    if not is_same and "--cases" in sys.argv:
                        print(f"{position}, {name}: {case['id']} {alone.cause} as {diagnosis.cause}: {noise[0][:90]}")
    for position in ("start", "middle", "end"):
        right, wrong = scores[position, True], scores[position, False]
        print(f"{position}: {right} of {right + wrong} the same ({100 * right / (right + wrong):.1f} %)")
    for noise, wrong in by_noise.most_common(12):
        print(f"  {wrong} others: {noise}")
    print_noise_alone()


def print_noise_alone() -> None:
    """Print which messages explain the end of a training that still stands, with more than `possible`."""
    named = []
    for line in FORMATS.values():
        steps = [line.format(n=n) for n in range(10, 10 + STEPS)]
        for noise in read_noise():
            diagnosis = diagnose([*START, *noise, *steps])
            named += [f"{diagnosis.cause}: {noise[0][:80]}"] if diagnosis.sure != "possible" else []
    print(f"noise alone, then steps: {len(named)} of {len(FORMATS) * len(read_noise())} get a likely or certain cause")
    print("\n".join(f"  {count} {text}" for text, count in Counter(named).most_common(8)))


if __name__ == "__main__":
    main()
