"""A sandbox that comes up and goes down."""

import json
from dataclasses import dataclass

from opsctl.sandbox.members import find_members
from opsctl.sandbox.record import Places, read_record
from tests.endurance.kills.files import Place
from tests.endurance.kills.kill_proof import Runs
from tests.endurance.kills.state import State

SIZE = ("--name", "cut", "--nodes", "2", "--fast")


@dataclass(kw_only=True)
class Private(Place):
    """A place that has no sandbox yet, or with `is_up` one that is up."""

    runs: Runs
    is_up: bool = False

    def make_train(self) -> None:
        super().make_train()
        self.env["XDG_STATE_HOME"], self.env["XDG_CACHE_HOME"] = (
            str(self.root / literal) for literal in ("state", "cache")
        )
        if self.is_up:
            code, _, text = self.runs.run(self, ["sandbox", "up", *SIZE])
            assert code == 0, text

    @property
    def argv(self) -> list[str]:
        return list(self.words)

    @property
    def places(self) -> Places:
        return Places(state=self.root / "state" / "opsctl" / "sandbox", cache=self.root / "cache")

    def state(self) -> State:
        """What `status` says of it, the names of its processes, and whether a directory is left."""
        home, run = self.places.home("cut"), self.places.run_directory("cut")
        record = read_record(home)
        found = sorted(name for name in find_members(run, record).values())
        code, _, text = self.runs.run(self, ["sandbox", "status", "--json"])
        output = json.loads(text) if code == 0 else text
        nodes = [row["nodes"] for row in output] if isinstance(output, list) else output
        return {"processes": found, "nodes": nodes, "home": home.exists(), "run": run.exists()}

    def close(self) -> None:
        self.runs.run(self, ["sandbox", "down", "--name", "cut"])
        super().close()
