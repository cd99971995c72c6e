"""Pictures of `opsctl dash` for the docs, from a real sandbox with a crashed node: python -P examples/dash_pictures.py

Starts a private Slurm of eight nodes, launches five trains, crashes a node, and takes pictures with chromium: phone,
desk and wall, in light and dark. Takes about two minutes; the sandbox is removed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opsctl.base.nodesets import expand
from tests.support.chromium import Browser, browser

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
SUFFIX = ".webp"
SANDBOX = "dash-pictures"
MAX_HEIGHT = 1800
SIZES = {"phone": (390, 844), "desk": (1440, 900), "wall": (1920, 1080)}
PAGES = {"phone": "", "desk": "", "wall": "?wall", "train": "train/tr11-176b", "held": "train/tr12-13b"}
TRAINER = """
import math, os, random, sys, time
from pathlib import Path
name, last, speed, crash_at = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
if os.environ.get("RANK", "0") != "0":
    time.sleep(600)
saves = Path(os.environ["TRAIN_RUN_DIR"], "checkpoints")
done = max([int(path.name[11:]) for path in saves.glob("global_step*")], default=0)
dice = random.Random(done)
for step in range(done + 1, last + 1):
    seconds = speed * (1 + dice.gauss(0, 0.012)) * (1.3 if last == 90000 and 170 < step < 190 else 1)
    time.sleep(seconds)
    loss = 1.9 + 9 * (step + 12) ** -0.55 * (1 + 0.25 * math.exp(-step / 40)) + dice.gauss(0, 0.02)
    print(f" iteration {step}/{last} | consumed samples: {step * 64} | elapsed time per iteration (s): {seconds:.4f}"
          f" | global batch size: 64 | lm loss: {loss:.6E} | TFLOPs: {151 * speed / seconds:.2f} |", flush=True)
    if step % 50 == 0:
        save = saves / f"global_step{step}"
        save.mkdir()
        (save / "mp_rank_00_model_states.pt").write_text("weights")
        (saves / "latest").write_text(save.name)
    if crash_at and step % crash_at == 0:
        print("Traceback (most recent call last):", flush=True)
        print('  File "/work/pretrain.py", line 211, in train_step', flush=True)
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of"
              " 79.11 GiB of which 1.21 GiB is free.", flush=True)
        sys.exit(1)
Path(os.environ["TRAIN_FINISHED"]).touch()
"""
TRAIN = """
name = "{name}"
command = ["{python}", "{script}", "{name}", "{last}", "{speed}", "{crash_at}"]
[slurm]
nodes = {nodes}
processes_per_node = 1
memory_per_node = "100"
time_limit = "30"
tasks = {tasks}
[guard]
poll_seconds = 0.5
"""
TRAINS: dict[str, dict[str, object]] = {
    "llama-7b-sft": {"last": 20000, "speed": 0.08, "crash_at": 0, "nodes": 2, "tasks": 8},
    "ablation-lr-3e4": {"last": 16000, "speed": 0.1, "crash_at": 0, "nodes": 2, "tasks": 4},
    "tokenizer-check": {"last": 60, "speed": 0.05, "crash_at": 0, "nodes": 1, "tasks": 1},
    "tr11-176b": {"last": 90000, "speed": 0.1, "crash_at": 0, "nodes": 3, "tasks": 4},
    "tr12-13b": {"last": 4000, "speed": 0.05, "crash_at": 130, "nodes": 1, "tasks": 12},
}
WELL = ("llama-7b-sft", "ablation-lr-3e4", "tokenizer-check")
"""Launched first: nothing needs a person until the others are there."""


class Scene:
    """A site on a sandbox of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.site = place / "site.toml"
        self.site.write_text(
            f'root = "{place / "trains"}"\nengine = "sandbox"\nsandbox = "{SANDBOX}"\ntrust_parents = true\n'
            '[alerts]\nsite_name = "jz"\nwarning_looks = 1\n'.replace("\\\n", "\n")
        )
        self.env = {**os.environ, "OPSCTL_SITE": str(self.site), "XDG_STATE_HOME": str(place / "state")}
        for name in ("SLURM_CONF", "OPSCTL_ROOT"):
            self.env.pop(name, None)

    def opsctl(self, *words: str, is_checked: bool = True) -> str:
        argv = [sys.executable, "-P", "-m", "opsctl", *words]
        done = subprocess.run(argv, env=self.env, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode and is_checked:
            raise SystemExit(f"opsctl {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        return {fields["train"]: fields for fields in json.loads(self.opsctl("status", "--json"))}

    def wait(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        until = time.monotonic() + 180
        while not holds(self.status()):
            if time.monotonic() > until:
                raise SystemExit(f"not in time: {what}")
            time.sleep(2)

    def launch(self, *names: str) -> None:
        script = self.place / "pretrain.py"
        script.write_text(TRAINER)
        for name in names:
            fields = TRAINS[name]
            path = self.place / f"{name}.toml"
            path.write_text(TRAIN.format(name=name, python=sys.executable, script=script, **fields))
            self.opsctl("launch", str(path))

    @contextmanager
    def dash(self, *words: str) -> Iterator[dict[str, str]]:
        """Serve the pages; yield the links."""
        argv = [
            sys.executable,
            "-P",
            "-m",
            "opsctl",
            "dash",
            "--port",
            "0",
            "--actions",
            "--every",
            "5s",
            "--json",
            *words,
        ]
        with subprocess.Popen(argv, env=self.env, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            lines = []
            while not lines or lines[-1] != "}\n":
                lines.append(process.stdout.readline())
            try:
                yield json.loads("".join(lines))
            finally:
                process.terminate()


def start(scene: Scene) -> None:
    """Launch trains that need no action."""
    scene.opsctl("sandbox", "up", "--name", SANDBOX, "--nodes", "8", "--fast")
    scene.launch(*WELL)
    scene.wait("steps", lambda trains: (trains["llama-7b-sft"]["progress"] or {}).get("step", 0) > 60)
    scene.wait("a finished train", lambda trains: trains["tokenizer-check"]["state"] == "finished")
    scene.opsctl("watch", "--once", is_checked=False)


def play(scene: Scene) -> None:
    """Launch the other trains, crash a node, and let the watchdogs see it."""
    scene.launch(*(name for name in TRAINS if name not in WELL))
    scene.wait("steps", lambda trains: (trains["tr11-176b"]["progress"] or {}).get("step", 0) > 260)
    node = expand(scene.status()["tr11-176b"]["running"][0]["nodes"])[0]
    scene.opsctl("sandbox", "fault", node, "crash", "--name", SANDBOX)
    scene.opsctl("watch", "--once", is_checked=False)
    scene.wait("the end of the attempt", lambda trains: trains["tr11-176b"]["last_attempt"] is not None)
    scene.wait("a hold", lambda trains: trains["tr12-13b"]["state"] == "held")
    for _ in range(2):
        scene.opsctl("watch", "--once", is_checked=False)


def take_pictures(scene: Scene, driver: Browser, pictures: Path, pages: Mapping[str, str]) -> None:
    with scene.dash() as links:
        base, _, token = links["act"].partition("#")
        driver.open(f"{base}#{token}", size=SIZES["phone"])
        driver.wait_for("document.querySelector('.train')", seconds=300)
        for scheme in ("light", "dark"):
            for name, path in pages.items():
                driver.open(base + path, size=SIZES.get(name, SIZES["desk"]), scheme=scheme)
                shown = ".u-wrap" if path.startswith("train") else ".train, .tile"
                driver.wait_for(f"document.querySelector('{shown}')")
                driver.wait_for("document.querySelector('#fresh').textContent.includes('old')")
                driver.take_screenshot(pictures / f"dash-{name}-{scheme}{SUFFIX}", max_height=MAX_HEIGHT)


def main() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        raise SystemExit("needs a chromium")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="opsctl-pictures-") as name:
        place = Path(name)
        scene = Scene(place)
        try:
            (place / "chromium").mkdir()
            with browser(program, place / "chromium") as driver:
                start(scene)
                take_pictures(scene, driver, PICTURES, {"well": ""})
                play(scene)
                take_pictures(scene, driver, PICTURES, PAGES)
        finally:
            scene.opsctl("sandbox", "down", "--name", SANDBOX, is_checked=False)


if __name__ == "__main__":
    main()
