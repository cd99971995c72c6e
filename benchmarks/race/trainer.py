"""A light trainer that knows nothing of opsctl: steps of a quarter of a second, a checkpoint every 15 s, ranks that
wait for each other. Standard library only; started once per rank, it finds its place in Slurm's variables.

python trainer.py --place DIR --save DIR [--exit-after SECONDS]

What it did stands in DIR/events.jsonl, one line an event, written by rank 0. DIR/faults holds what is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import socket
import sys
import time
import types
from pathlib import Path

STEP_S = 0.25
SAVE_EVERY_S = 15.0
SAVE_S = 0.3
"""How long training stands still for a checkpoint."""
START_S = 3.0
"""Imports, a communicator, the checkpoint: what a rank does before its first step."""
CHECKPOINT_BYTES = 4 << 20
ECC = "[{node}] RuntimeError: CUDA error: uncorrectable ECC error encountered"


class Trainer:
    def __init__(self, place: Path, checkpoints: Path, exit_after: float = float("inf")) -> None:
        self.place, self.checkpoints, self.exit_after = place, checkpoints, exit_after
        self.began = time.monotonic()
        # A launcher between Slurm and the ranks counts them itself.
        self.rank = int(os.environ.get("RANK", os.environ["SLURM_PROCID"]))
        self.world = int(os.environ.get("WORLD_SIZE", os.environ["SLURM_NTASKS"]))
        self.node = os.environ["SLURMD_NODENAME"]
        self.step = 0
        self.peers: list[socket.socket] = []

    def run(self) -> None:
        """Train until `exit_after` seconds, or for ever."""
        self.tell("start")
        heart = Heart()
        self.meet()
        time.sleep(max(0.0, START_S - (time.monotonic() - self.began)))
        self.step = self.load()
        saved = due = time.monotonic()
        while True:
            self.meet_faults()
            # The grid of steps, so that a busy machine that wakes us late does not make them longer.
            due = max(due + STEP_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            leave = time.monotonic() - self.began > self.exit_after
            due_save = time.monotonic() - saved >= SAVE_EVERY_S
            leave, due_save = self.agree(leave=leave, save=due_save)
            self.step += 1
            heart.beat()
            self.tell("step")
            self.log()
            if due_save or leave:
                self.save()
                saved = due = time.monotonic()
            if leave:
                self.tell("leave")
                return

    # --- together

    def meet(self) -> None:
        """Rank 0 is the one that all others wait for, at a port of this job."""
        where = ("127.0.0.1", 10_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000)
        if self.rank == 0:
            with socket.create_server(where, backlog=self.world) as server:
                server.settimeout(60)
                self.peers = [server.accept()[0] for _ in range(self.world - 1)]
            return
        while not self.peers:
            with contextlib.suppress(ConnectionRefusedError):
                self.peers = [socket.create_connection(where)]
            if time.monotonic() - self.began > 60:
                raise RuntimeError("rank 0 cannot be reached")
            time.sleep(0.05)

    def agree(self, *, leave: bool, save: bool) -> tuple[bool, bool]:
        """The barrier at the end of a step: what rank 0 wants holds for all."""
        for peer in self.peers if self.rank == 0 else []:
            self.receive(peer)
        data = bytes([leave * 2 + save])
        for peer in self.peers:
            peer.sendall(data)
        wanted = data[0] if self.rank == 0 else self.receive(self.peers[0])
        return bool(wanted & 2), bool(wanted & 1)

    def receive(self, peer: socket.socket) -> int:
        data = peer.recv(1)
        if not data:
            raise RuntimeError(f"[Rank {self.rank}] Connection closed by peer")
        return data[0]

    # --- checkpoints

    def load(self) -> int:
        steps = [int(path.stem) for path in self.checkpoints.glob("[0-9]*.pt")]
        return max(steps, default=0)

    def save(self) -> None:
        """Written beside, then renamed; the last two are kept. Like most trainers, it ends where the disk is full."""
        if self.rank != 0:
            return
        self.tell("save")
        time.sleep(SAVE_S)
        beside = self.checkpoints / ".new"
        beside.write_bytes(bytes(CHECKPOINT_BYTES))
        beside.rename(self.checkpoints / f"{self.step}.pt")
        for path in sorted(self.checkpoints.glob("[0-9]*.pt"), key=lambda path: int(path.stem))[:-2]:
            path.unlink()
        self.tell("saved")

    # --- what is broken

    def meet_faults(self) -> None:
        if (self.place / "faults" / f"gpu-{self.node}").exists():
            raise SystemExit(self.traceback("loss.backward()", ECC.format(node=self.node)))
        if (self.place / "faults" / "bug").exists():
            {}["position_ids"]
        while (self.place / "faults" / f"stuck-{os.getpid()}").exists():
            time.sleep(3600)

    def traceback(self, line: str, error: str) -> str:
        return f'Traceback (most recent call last):\n  File "train.py", line 88, in step\n    {line}\n{error}'

    # --- what is told

    def tell(self, what: str) -> None:
        if self.rank == 0:
            event = {"at": time.time(), "job": os.environ["SLURM_JOB_ID"], "what": what, "step": self.step}
            with (self.place / "events.jsonl").open("a") as file:
                file.write(json.dumps(event) + "\n")

    def log(self) -> None:
        if self.rank == 0 and self.step % 4 == 0:
            print(
                f" iteration {self.step:8d}/ 1000000 | elapsed time per iteration (s): {STEP_S:.2f} | "
                f"global batch size: 2048 | lm loss: {2 + 5 / (1 + self.step / 100):.6E} |",
                flush=True,
            )


class Heart:
    """The heartbeats that ft_launcher of nvidia-resiliency-ext wants, without its client, which would import torch."""

    def __init__(self) -> None:
        self.monitor: socket.socket | None = None
        if path := os.environ.get("FT_RANK_MONITOR_IPC_SOCKET"):
            variables = ("RANK", "LOCAL_RANK")
            ranks = dict(zip(("global_rank", "local_rank"), (int(os.environ[name]) for name in variables), strict=True))
            info = _message("RankInfo", **ranks, host=socket.gethostname(), pid=os.getpid())
            self.monitor = socket.socket(socket.AF_UNIX)
            self.monitor.connect(path)
            self._send(_message("AuthkeyMsg", authkey=bytes(32)))
            self._send(_message("InitMsg", rank_info=info))

    def beat(self) -> None:
        if self.monitor:
            self._send(_message("HeartbeatMsg", rank=int(os.environ["RANK"]), state={}))

    def _send(self, message: object) -> None:
        assert self.monitor
        data = pickle.dumps(message)
        self.monitor.sendall(len(data).to_bytes(4, "big") + data)
        left = int.from_bytes(self.monitor.recv(4, socket.MSG_WAITALL), "big")
        self.monitor.recv(left, socket.MSG_WAITALL)


def _message(name: str, **fields: object) -> object:
    """Return an object that unpickles as the library's class of this name."""
    module = "nvidia_resiliency_ext.fault_tolerance.data"
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:number]), types.ModuleType(".".join(parts[:number])))
    kind = getattr(sys.modules[module], name, None) or type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, kind)
    message = kind()
    vars(message).update(fields)
    return message


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--checkpoints", "--save", type=Path, required=True)
    parser.add_argument("--exit-after", type=float, default=float("inf"))
    arguments = parser.parse_args()
    Trainer(arguments.place, arguments.checkpoints, arguments.exit_after).run()


if __name__ == "__main__":
    sys.exit(main())
