"""What only a GPU can prove of the trainer, as one table, on one GPU in less than ten minutes.

Every row is printed, and appended to --output, as soon as it is known: a proof that fails, crashes or hangs costs its
own rows only.

python -P benchmarks/gpu_proof.py                       exits 0 with a reason where there is no GPU
python -P benchmarks/gpu_proof.py --device cpu --tiny   the same way through, small: proves the script, not the GPU
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shlex
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from gpu_proof_rows import (
    Failed,
    NotMeasured,
    OutOfTime,
    Row,
    Table,
    ask_gpu_memory,
    last_line,
    missing_gpu,
    refuse_lack_of_memory,
    run_group,
    within,
)
from model_shapes import GIB, GPT_1_3B, GPT_125M, LARGE, SMALL, TINY
from trainer_corpus import write_corpus

RANK = Path(__file__).with_name("gpu_proof_rank.py")
BUDGET_S = 570.0
"""Of the default; a machine with other work needs more."""
PROOF_LIMIT_S = 150.0
"""Longest time of one proof, so that one that hangs leaves time for the others."""
OUTPUT = Path(__file__).parents[1] / "build" / "gpu-proof.jsonl"


class Place:
    """The directory of the proofs, and the processes that they start."""

    def __init__(
        self, directory: Path, *, tiny: bool, device: str, budget_s: float = BUDGET_S, torchtitan: str = ""
    ) -> None:
        self.directory, self.tiny, self.device, self.torchtitan = directory, tiny, device, torchtitan
        self._budget_s, self._end = budget_s, time.monotonic() + budget_s

    def size(self, shape: Mapping[str, Any]) -> dict[str, Any]:
        """Return `shape`, or its tiny likeness of the same family."""
        if not self.tiny:
            return dict(shape)
        return TINY | ({"family": shape["family"]} if "family" in shape else {})

    def measure(self, what: str, shape: Mapping[str, Any], *, micro: int, batch: int, **plan: Any) -> dict[str, Any]:
        """Return the figures of one measurement in a process of its own."""
        batches = {"micro_batch": 2, "global_batch": 4} if self.tiny else {"micro_batch": micro, "global_batch": batch}
        defaults = {"precision": "bf16", "recompute": False, "rounds": 1 if self.tiny else 5}
        fields = defaults | {"shape": self.size(shape), "batch": batches} | plan
        found = self.directory / f"{what}.json"
        found.unlink(missing_ok=True)  # of another model
        status, log = self._run([sys.executable, "-P", str(RANK), what, str(self.directory), json.dumps(fields)])
        if status:
            raise Failed(last_line(log))
        figures: dict[str, Any] = json.loads(found.read_text())
        return figures

    def train(self, name: str, **changes: Any) -> tuple[int, str]:
        """Run the trainer as the guard would; return its exit code and its log."""
        run_dir = self.directory / name
        run_dir.mkdir(exist_ok=True)
        shape = self.size(SMALL) | changes.pop("model", {})
        fields = {
            "steps": 8,
            "seed": 1,
            "model": shape,
            "data": {"prefix": str(self.directory / "corpus")},
            "checkpoint": {"directory": str(run_dir / "checkpoints"), "every": 4},
            "log": {"directory": str(run_dir / "metrics")},
        }
        (run_dir / "trainer.json").write_text(json.dumps(fields | changes))
        argv = [sys.executable, "-P", "-m", "opsctl.trainer", str(run_dir / "trainer.json")]
        return self._run(argv, TRAIN_STOP_REASON=str(run_dir / "stop.json"))

    def read_stop_reason(self, name: str) -> dict[str, Any]:
        """Return why the trainer says that it stopped; empty if it does not."""
        try:
            reason = json.loads((self.directory / name / "stop.json").read_text())
        except (OSError, ValueError):
            return {}
        return reason if isinstance(reason, dict) else {}

    def _run(self, argv: Sequence[str], **environ: str) -> tuple[int, str]:
        """Run a program as the only rank; return its exit code and its log. Raises NotMeasured."""
        left = self._end - time.monotonic()
        if left < 20:
            raise OutOfTime(f"no time left of {self._budget_s:.0f} s")
        if not (self.directory / "corpus.idx").exists():
            write_corpus(self.directory)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = {**os.environ, **rank, **environ}
        if self.device == "cpu":
            env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        code, log = run_group(argv, env, self.directory / "log", timeout_s=left)
        refuse_lack_of_memory(code, log)
        return code, log


Proof = Callable[[Place], Iterator[Row]]


def prove_precision(place: Place) -> Iterator[Row]:
    steps = 3 if place.tiny else 40
    losses = {
        precision: place.measure("losses", SMALL, micro=8, batch=16, precision=precision, steps=steps)["losses"]
        for precision in ("bf16", "fp32")
    }
    apart = max(abs(low - exact) for low, exact in zip(losses["bf16"], losses["fp32"], strict=True))
    yield Row(
        name=f"bf16 against fp32: losses of {steps} steps apart",
        figure=f"{apart:.4f}",
        aim="0.02 at most",
        is_met=apart <= 0.02,
        is_proof=True,
    )


def prove_resume(place: Place) -> Iterator[Row]:
    """A run of eight steps, and its last four steps again from the checkpoint of the fourth."""
    code, log = place.train("resume", deterministic=True)
    if code:
        raise Failed(last_line(log))
    whole, run_dir = read_steps(place.directory / "resume"), place.directory / "resume"
    newest = max((run_dir / "checkpoints").glob("*8"))
    weights = digests(newest)
    newest.rename(run_dir / "first-end")
    code, log = place.train("resume", deterministic=True)
    if code:
        raise Failed(last_line(log))
    again = read_steps(run_dir)[len(whole) :]
    equal = again == whole[4:] and len(again) == 4
    same = sum(digests(newest).get(name) == digest for name, digest in weights.items())
    yield Row(
        name="resume, deterministic: losses and norms to the last bit",
        figure="equal" if equal else "different",
        aim="equal",
        is_met=equal,
        is_proof=True,
    )
    yield Row(
        name="the same: files of weights and optimizer by SHA-256",
        figure=f"{same} of {len(weights)}",
        aim="all",
        is_met=same == len(weights),
        is_proof=True,
    )


def read_steps(run_dir: Path) -> list[tuple[int, float, float]]:
    lines = map(json.loads, (run_dir / "metrics" / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


def digests(checkpoint: Path) -> dict[str, str]:
    """Return the digests of the files of weights and of the optimizer, by the manifest."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    files = manifest["files"]
    return {name: record["sha256"] for name, record in files.items() if re.match(r"layer_|.*optim_states", name)}


def prove_nan_guard(place: Place) -> Iterator[Row]:
    code, log = place.train("nan", optimizer={"lr": 1e30, "clip": 0.0, "warmup_samples": 0})
    reason = place.read_stop_reason("nan")
    yield Row(
        name="NaN guard: stops, and names the layer",
        figure=reason.get("detail", last_line(log)).partition("began in ")[2][:60] or f"exit code {code}, no layer",
        aim="a layer",
        is_met=code == 1 and reason.get("reason") == "nan" and "began in" in reason.get("detail", ""),
        is_proof=True,
    )


def prove_memory_guard(place: Place) -> Iterator[Row]:
    kind = "gpu" if place.device == "cuda" else "host"
    code, log = place.train("memory", limits={f"{kind}_memory_percent": 0.01})
    reason = place.read_stop_reason("memory")
    yield Row(
        name=f"memory guard of the {kind}",
        figure=reason.get("detail", last_line(log))[:60],
        aim="stops",
        is_met=code == 1 and reason.get("reason") == "memory",
        is_proof=True,
    )


def prove_loss(place: Place) -> Iterator[Row]:
    figures = place.measure("loss", GPT_1_3B, micro=1, batch=1)
    ours, whole = figures["chunked"], figures["whole"]
    apart = abs(ours["loss"] - whole["loss"]) / abs(whole["loss"])
    yield Row(
        name="chunked loss / torch's: relative distance",
        figure=f"{apart:.1e}",
        aim="1e-6 at most",
        is_met=apart <= 1e-6,
        is_proof=True,
    )
    yield Row(name="the same: seconds", figure=f"{ours['s'] / whole['s']:.2f}")
    if whole["bytes"]:
        share = ours["bytes"] / whole["bytes"]
        yield Row(name="the same: memory", figure=f"{share:.2f}", aim="0.6 at most", is_met=share <= 0.6)


def prove_saving(place: Place) -> Iterator[Row]:
    figures = place.measure("saving", GPT_125M, micro=8, batch=8)
    yield Row(
        name="125M: stall of a background save / synchronous save",
        figure=f"{figures['share']:.1%} ({figures['stall_s']:.2f} s)",
        aim="10 % at most",
        is_met=figures["share"] <= 0.1,
    )


def prove_speed(name: str, shape: Mapping[str, Any], *, micro: int, aim: float | None = None) -> Proof:
    return lambda place: speed_rows(place, name, shape, micro=micro, batch=32, aim=aim)


def prove_largest(place: Place) -> Iterator[Row]:
    memory = 0 if place.device == "cpu" else ask_gpu_memory()
    for name, (shape, needed) in LARGE.items():
        if place.tiny or memory >= needed:
            yield from speed_rows(place, name, shape, micro=1, batch=8, aim=None, plain=False, recompute=True)
            return
    yield Row(name="a larger model", figure=f"none fits into {memory / GIB:.0f} GiB")


def speed_rows(
    place: Place,
    name: str,
    shape: Mapping[str, Any],
    *,
    micro: int,
    batch: int,
    aim: float | None,
    plain: bool = True,
    recompute: bool = False,
) -> Iterator[Row]:
    """The rows of one model: MFU as written and compiled, against plain torch, memory against its estimate."""
    figures = place.measure("speed", shape, micro=micro, batch=batch, plain=plain, recompute=recompute)
    name = f"tiny {name}" if place.tiny else name
    seconds, peak = figures["seconds"], figures["peak_tflops"] or figures["matmul_tflops"]
    best = min(seconds.get("compiled", seconds["written"]), seconds["written"])
    of = "of the data sheet" if figures["peak_tflops"] else "of its own matmul"
    for way in ("written", "compiled", "plain"):
        if way in seconds:
            mfu = figures["teraflop"] / seconds[way] / peak
            is_best = seconds[way] == best and aim is not None and way != "plain"
            yield Row(
                name=f"{name}, {way}: MFU",
                figure=f"{mfu:.1%} {of}",
                aim=f"{aim:.0%} at least" if is_best else "",
                is_met=mfu >= (aim or 0) if is_best else None,
            )
    if figures["uncompiled_because"]:
        yield Row(name=f"{name}: torch.compile", figure=figures["uncompiled_because"][:80])
    if figures.get("flex"):
        yield Row(name=f"{name}: flex_attention", figure="used")
    for way, reason in figures.get("unmeasured", {}).items():
        yield Row(name=f"{name}, {way}: MFU", figure=f"not measured: {reason}"[:120])
    if "plain" in seconds:
        ratio = seconds["plain"] / best
        yield Row(
            name=f"{name}: trainer / plain torch.compile loop",
            figure=f"{ratio:.3f}",
            aim="0.97 at least" if aim else "",
            is_met=ratio >= 0.97 if aim else None,
        )
    if figures["reserved"]:
        ratio = figures["reserved"] / figures["estimate"]
        yield Row(
            name=f"{name}: memory reserved / estimate of --dry-run",
            figure=f"{ratio:.2f}",
            aim="0.8 to 1.1",
            is_met=0.8 <= ratio <= 1.1,
        )


def prove_torchtitan(place: Place) -> Iterator[Row]:
    """The MFU that a command of torchtitan prints, of its last step."""
    if not place.torchtitan:
        found = importlib.util.find_spec("torchtitan") is not None
        how = "give its command by --torchtitan" if found else "not installed"
        yield Row(name="torchtitan", figure=how)
        return
    argv, log = shlex.split(place.torchtitan), place.directory / "log"
    code, text = run_group(argv, os.environ, log, timeout_s=BUDGET_S)
    mfu = read_titan_mfu(text)
    yield Row(name="torchtitan: MFU", figure=f"{mfu:.1%}" if mfu is not None else f"exit {code}, no MFU")


def read_titan_mfu(log: str) -> float | None:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    shares = re.findall(r"\bmfu: *([0-9.]+)%", plain)
    return float(shares[-1]) / 100 if shares else None


PROOFS: dict[str, Proof] = {
    "precision": prove_precision,
    "resume": prove_resume,
    "guards-nan": prove_nan_guard,
    "guards-memory": prove_memory_guard,
    "loss": prove_loss,
    "speed-125m": prove_speed("125M", GPT_125M, micro=8),
    "speed-1.3b": prove_speed("1.3B", GPT_1_3B, micro=4, aim=0.5),
    "speed-bloom": prove_speed("BLOOM 125M", GPT_125M | {"family": "bloom"}, micro=8),
    "saving": prove_saving,
    "largest": prove_largest,
    "torchtitan": prove_torchtitan,
}
GROUPS = list(dict.fromkeys(name.partition("-")[0] for name in PROOFS))


def collect(place: Place, names: Sequence[str], *, limit_s: float = PROOF_LIMIT_S) -> Iterator[Row]:
    """Yield the rows of all proofs, by their names or those of their groups; a proof that fails is a row too."""
    for name in [proof for name in names for proof in PROOFS if name in (proof, proof.partition("-")[0])]:
        try:
            yield from within(limit_s, PROOFS[name](place))
        except NotMeasured as error:
            yield Row(name=name, figure=f"not measured: {error}"[:120])
        except Failed as error:
            yield Row(name=name, figure=f"failed: {error}"[:120], is_met=False, is_proof=True)
        except Exception as error:  # noqa: BLE001 - the other proofs do not depend on this one
            figure = f"failed: {type(error).__name__}: {error}"[:120]
            yield Row(name=name, figure=figure, is_met=False, is_proof=True)


def main() -> int:
    arguments = parse_arguments()
    if arguments.device == "cuda" and (reason := missing_gpu()):
        print(f"nothing is proved here: {reason}")
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that no process of a proof is left
        signal.signal(number, lambda *_: sys.exit(1))
    started, table = time.monotonic(), Table(arguments.output, as_json=arguments.json)
    with tempfile.TemporaryDirectory(prefix="gpu-proof-", ignore_cleanup_errors=True) as directory:
        place = Place(
            Path(directory),
            tiny=arguments.tiny,
            device=arguments.device,
            budget_s=arguments.budget,
            torchtitan=arguments.torchtitan,
        )
        for row in collect(place, [*arguments.only, "torchtitan"], limit_s=arguments.limit):
            table.add(row)
    table.end()
    print(f"{platform.python_version()}, {time.monotonic() - started:.0f} s, {arguments.output}", file=sys.stderr)
    return int(table.is_refuted)


def parse_arguments() -> argparse.Namespace:
    choices = [name for name in dict.fromkeys([*GROUPS, *PROOFS]) if name != "torchtitan"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="models of two small blocks")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS", help="longest time of all proofs")
    parser.add_argument("--limit", type=float, default=PROOF_LIMIT_S, metavar="SECONDS", help="longest time of a proof")
    parser.add_argument("--only", nargs="+", choices=choices, default=[name for name in GROUPS if name != "torchtitan"])
    parser.add_argument("--torchtitan", default="", metavar="COMMAND", help="command of torchtitan to compare with")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE", help="rows as JSON Lines")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
