"""Every verb that changes something, and the world that it finds."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from opsctl.sandbox.cluster import Sandbox
from opsctl.state.switches import Switch
from opsctl.trainer.contract import TrainerStop
from tests.endurance.kills import files
from tests.endurance.kills.files import Ends, Place
from tests.endurance.kills.kill_proof import Runs
from tests.endurance.kills.state import State
from tests.endurance.kills.trains import Train

FILES: dict[str, Callable[[], Any]] = {
    "kill-switch arm": partial(Place, words=("kill-switch", "arm", "t", "--reason", "x")),
    "kill-switch arm --pause": partial(Place, words=("kill-switch", "arm", "t", "--pause", "--reason", "x")),
    "save-switch": partial(Place, words=("save-switch", "t")),
    "kill-switch disarm": partial(Place, words=("kill-switch", "disarm", "t"), prepare=files.armed(Switch.KILL)),
    "alerts silence": partial(Place, words=("alerts", "silence", "hang/*", "--reason", "known")),
    "alerts ack": partial(Place, words=("alerts", "ack", "hang/t", "--reason", "mine"), prepare=files.raise_alert),
    "checkpoint prune": partial(Place, words=("checkpoint", "prune", "t", "--keep-last", "2"), prepare=files.saved),
    "checkpoint offload": partial(
        Place, words=("checkpoint", "offload", "t", "--to", "{root}/archive"), prepare=files.saved
    ),
    "publish to a path": partial(
        Place,
        words=("publish", "t"),
        prepare=files.written,
        settings='[publish]\nto = "path"\npath = "{root}/out"\n',
        skip=("report.", "state.json"),
    ),
    "publish by git": partial(
        Place,
        words=("publish", "t"),
        prepare=files.written,
        also=files.pushed,
        settings='[publish]\nto = "git"\nremote = "{root}/remote.git"\n',
        skip=("report.", "state.json", ".git/"),
        without=("/objects/",),
    ),
    "publish by a command": partial(
        Place,
        words=("publish", "t"),
        prepare=files.written,
        skip=("report.", "state.json"),
        settings='[publish]\nto = "command"\ncommand = "mkdir -p $HOME/there && cp -r {source} $HOME/there"\n',
    ),
    "init": partial(Place, words=("init", "--dir", "{root}/fresh")),
    "cron tick": partial(Place, words=("cron", "tick"), prepare=files.due, settings=files.CRON),
    "cron prune": partial(Place, words=("cron", "prune"), prepare=files.littered, settings=files.CRON),
}
"""Those that need no Slurm."""

CHANNELS: Sequence[str] = ("alerts/channels/", "alerts/outbox.py")
"""Where every line is an effect."""


def watching(ends: Ends) -> Callable[[], Place]:
    """`opsctl watch --once` where there is something to tell."""
    without = ("/watch/", "/delivered/", "/outbox/", "/alerts/journal")
    return partial(
        Place,
        words=("watch", "--once"),
        settings=ends.settings,
        prepare=ends.forget,
        also=ends.arrived,
        without=without,
    )


LAUNCH = ("launch", "{root}/first.toml")
CANCEL = ("cancel", "{t}")


LATER = "extra = ['--hold', '--begin=now+1hour']"
"""Once released, it still waits."""
RUNS = ("/attempts/", "/logs", "/heartbeat", "/checkpoints")
"""What the attempt itself writes."""

SITE = ("/delivered/", "/outbox/", "/alerts/", "/watch/", "/diagnosis")
"""What other proofs are about."""
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
CRON = '[cron]\ndirectory = "{root}"\nmemory = "10"\ntime_limit = "5"\nextra = ["--hold"]\n'
CRON_STOP = ("cron", "stop")


def ticks(train: Train) -> State:
    """The jobs that tick, or will."""
    jobs = [job for job in train.slurm.jobs() if job.name.startswith("opsctl-cron") and not job.state.is_final]
    return {"ticks": len(jobs)}


def rolled_back(train: Train) -> None:
    """A rollback was done, and the train has saved again since."""
    files.saved(train)
    code, _, text = train.runs.run(train, train.typed(ROLLBACK))
    assert code == 0, text
    files.save(train.run.checkpoints, 25)
    files.save(train.run.checkpoints, 40)


ROLLBACK = ("rollback", "{t}", "--to", "20")

SLURM: dict[str, dict[str, Any]] = {
    "launch": {"words": LAUNCH},
    "launch, changed, after a cancel": {"words": ("launch", "{root}/second.toml"), "before": (LAUNCH, CANCEL)},
    "launch --after": {"words": (*LAUNCH, "--after", "{array}"), "before": (LAUNCH,)},
    "hold": {"words": ("hold", "{t}", "--reason", "x"), "before": (LAUNCH,), "slurm_table": LATER},
    "release": {"words": ("release", "{t}"), "before": (LAUNCH, ("hold", "{t}")), "slurm_table": LATER},
    "release --exclude": {
        "words": ("release", "{t}", "--exclude", "node003"),
        "slurm_table": LATER,
        "before": (LAUNCH, ("hold", "{t}"), ("kill-switch", "arm", "{t}", "--pause", "--reason", "x")),
    },
    "release of what starts at once": {
        "words": ("release", "{t}"),
        "before": (LAUNCH, ("hold", "{t}")),
        "tasks": 1,
        "command": "['sleep', '60']",
        "then": Train.runs_on,
        "without": (*RUNS, "/journal"),
        "also": Train.kinds,
    },
    "cancel": {"words": CANCEL, "before": (LAUNCH, (*LAUNCH, "--after", "{array}"))},
    "cancel of one task": {"words": ("cancel", "{t}_2"), "before": (LAUNCH,)},
    "watch: an attempt that the kill switch ended": {
        "words": ("watch", "failures", "--once"),
        "before": (LAUNCH,),
        "without": SITE,
        "happened": partial(Train.lived, code=0, stop=TrainerStop.KILL),
    },
    "watch: an attempt that a bug ended": {
        "words": ("watch", "failures", "--once"),
        "before": (LAUNCH,),
        "without": SITE,
        "slurm_table": LATER,
        "happened": partial(Train.lived, code=1, log="NameError: name 'x' is not defined"),
    },
    "watch: an attempt that a GPU ended": {
        "words": ("watch", "failures", "--once"),
        "before": (LAUNCH,),
        "without": SITE,
        "happened": partial(Train.lived_again, code=1, log=ECC),
    },
    "cron start": {
        "words": ("cron", "start"),
        "settings": CRON,
        "also": ticks,
        "without": ("/output/",),
        "ending": CRON_STOP,
    },
    "cron stop": {
        "words": CRON_STOP,
        "settings": CRON,
        "also": ticks,
        "without": ("/output/",),
        "before": (("cron", "start"),),
    },
    "rollback": {"words": ROLLBACK, "before": (LAUNCH,), "slurm_table": LATER, "happened": files.saved},
    "rollback --undo": {
        "words": ("rollback", "{t}", "--undo"),
        "before": (LAUNCH,),
        "slurm_table": LATER,
        "happened": rolled_back,
    },
    "edit": {"words": ("edit", "{t}", "{root}/changed.toml"), "before": (LAUNCH,)},
}


def on_slurm(verb: str, slurm: Sandbox, runs: Runs) -> Callable[[], Train]:
    return partial(Train, sandbox=slurm, runs=runs, **SLURM[verb])
