"""The actions of the pages: those of the commands, with the same permissions, journalled with who."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from opsctl.actions.describe_rollback import describe_plan
from opsctl.actions.rollback import start_rollback
from opsctl.actions.rollback_plan import RollbackOptions, plan_rollback
from opsctl.actions.steer_train import Show, SteerResult, arm_switch, hold_train, release_train, submit
from opsctl.app import App
from opsctl.base.errors import InputError, RunDirError
from opsctl.base.tables import read_package_table
from opsctl.launch.rollback_state import check_not_rolling_back
from opsctl.launch.train_paths import find_launched_paths, resolve_paths
from opsctl.monitor.confirm_proposals import confirm_proposals, find_proposals
from opsctl.preflight.prepare_launch import LaunchOptions, prepare_train
from opsctl.settings.field_types import NAME
from opsctl.settings.loader import TrainSettings, load_train
from opsctl.state.files import MAX_SETTINGS_BYTES, read_text
from opsctl.state.journal import actor, replay
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch

log = logging.getLogger(__name__)
MAX_INSTRUCTION_BYTES = 8192
MAX_REASON_CHARS = 300
MAX_NAME_CHARS = 40
MAX_NUMBER = 10**12
SILENCE = timedelta(hours=4)


def _make_printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text).strip()


Text = Annotated[str, Field(max_length=MAX_REASON_CHARS)]
Printable = Annotated[Text, AfterValidator(_make_printable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageInstruction:
    __pydantic_config__ = ConfigDict(extra="forbid")
    verb: Text
    train: Text = ""
    key: Text = ""
    """The alert, for `ack` and `silence`."""
    reason: Printable = ""
    person: Annotated[Printable, AfterValidator(lambda text: text[:MAX_NAME_CHARS])] = ""
    """The name that the person has typed; not proved."""
    number: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None = None
    """The step, for `rollback`; the tasks, for `queue`."""
    confirmed: bool = False
    """Whether the person has read what would be done."""

    @property
    def by(self) -> str:
        """Who acts, for journals: the account, and the name that was typed."""
        return f"{self.person} ({actor()}) by dash" if self.person else f"{actor()} by dash"

    @property
    def why(self) -> str:
        return f"{self.reason or self.verb}, {self.by}"


_INSTRUCTION = TypeAdapter(PageInstruction)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePlan:
    """What an action would do, for the confirmation."""

    text: str
    number: int | None = None
    """The number that the confirmed instruction must have."""


Do = Callable[[App, PageInstruction], str]
Plan = Callable[[App, PageInstruction], PagePlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageVerb:
    label: str
    do: Do
    plan: Plan | None = None
    """Describes what `do` would do, for a confirmation; None for an action that needs none."""
    asks: str = ""
    """The name of the number that the action needs; empty for an action without."""
    is_confirmed_twice: bool = False

    effect: str = ""
    """The consequence, before a person confirms."""
    many: str = ""
    """The label for several alerts, with their number at `{}`."""

    def label_for(self, count: int) -> str:
        """Return the label for some alerts: `Ack 2 alerts`."""
        return self.many.format(count) if count > 1 and self.many else self.label


def _find(app: App, instruction: PageInstruction) -> RunDir:
    """Return the train below the root, never a directory of that name elsewhere. Raises InputError."""
    if not NAME.fullmatch(instruction.train):
        raise InputError(f"{instruction.train!r:.80} is not the name of a train", hint="load the page again")
    return app.find(str(app.root / instruction.train))


def _hold(app: App, instruction: PageInstruction) -> str:
    return hold_train(app, _find(app, instruction), instruction.why).text


def _plan_hold(app: App, instruction: PageInstruction) -> PagePlan:
    return PagePlan(text=hold_train(app, _find(app, instruction), instruction.why, dry_run=True).text)


def _release(app: App, instruction: PageInstruction) -> str:
    return release_train(app, _find(app, instruction), "", why=instruction.why).text


def _confirm(app: App, instruction: PageInstruction) -> str:
    return "; ".join(confirm_proposals(app.arrays(_find(app, instruction)), app.node_care, instruction.why))


def _plan_confirm(app: App, instruction: PageInstruction) -> PagePlan:
    proposals = find_proposals(app.journal(_find(app, instruction)).events(), app.clock.now())
    if not proposals:
        raise InputError(f"opsctl proposes nothing for {instruction.train} any more", hint="load the page again")
    return PagePlan(text=f"would {', '.join(proposals)}")


def _plan_release(app: App, instruction: PageInstruction) -> PagePlan:
    run = _find(app, instruction)
    text, history = release_train(app, run, "", dry_run=True).text, replay(app.journal(run).events())
    reason = history.held.reason if history.held else None
    needed = reason.needed_change if reason else ""
    return PagePlan(text=f"{text}; the hold says: {needed}" if needed else text)


def _save(app: App, instruction: PageInstruction) -> str:
    return arm_switch(app, _find(app, instruction), Switch.SAVE, instruction.why).text


def _queue(app: App, instruction: PageInstruction) -> str:
    tasks = instruction.number or 0
    return queue_tasks(app, _find(app, instruction), tasks, dry_run=False, show=log.info).text


def _plan_queue(app: App, instruction: PageInstruction) -> PagePlan:
    warnings: list[str] = []
    tasks = instruction.number or 0
    text = queue_tasks(app, _find(app, instruction), tasks, dry_run=True, show=warnings.append).text
    return PagePlan(text="\n".join([text, *warnings]), number=tasks)


def _roll_back(app: App, instruction: PageInstruction) -> str:
    if instruction.number is None:
        raise InputError("a confirmed rollback names the step", hint="load the page again")
    run = _find(app, instruction)
    return start_rollback(app, run, instruction.number, by=instruction.by, reason=instruction.why)


def _plan_rollback(app: App, instruction: PageInstruction) -> PagePlan:
    run, warnings = _find(app, instruction), list[str]()
    plan = plan_rollback(app, run, RollbackOptions(to=instruction.number), show=warnings.append)
    lines = describe_plan(plan, app.arrays(run).check(), dry_run=True)
    return PagePlan(text="\n".join([*warnings, *lines]), number=plan.record.step)


def _ack(app: App, instruction: PageInstruction) -> str:
    app.alerting.ledger.ack(instruction.key, instruction.reason or "seen on the page", by=instruction.by)
    return f"{instruction.key} is acknowledged; opsctl alerts again if it gets worse or is resolved"


def _silence(app: App, instruction: PageInstruction) -> str:
    ledger = app.alerting.ledger
    ledger.find(instruction.key)
    until = app.clock.now() + SILENCE
    ledger.silence(instruction.key, until, instruction.reason or "silenced on the page", by=instruction.by)
    return f"{instruction.key} is silenced until {until:%H:%M} UTC"


_FUNCTIONS: Mapping[str, tuple[Do, Plan | None]] = {
    "ack": (_ack, None),
    "silence": (_silence, None),
    "hold": (_hold, _plan_hold),
    "release": (_release, _plan_release),
    "confirm": (_confirm, _plan_confirm),
    "save": (_save, None),
    "queue": (_queue, _plan_queue),
    "rollback": (_roll_back, _plan_rollback),
}
_ROWS = read_package_table("dash/actions.toml")
VERBS = {name: PageVerb(do=do, plan=plan, **_ROWS[name]) for name, (do, plan) in _FUNCTIONS.items()}
"""By the name in requests. A further action is one line here, a table in actions.toml, and its name in `train_card`."""


def parse_instruction(body: bytes) -> PageInstruction:
    """Return the instruction of a request. Raises InputError."""
    try:
        instruction = _INSTRUCTION.validate_json(body, strict=True)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise InputError(f"the request is not an instruction: {wrong:.200}") from None
    if instruction.verb not in VERBS:
        raise InputError(f"no action {instruction.verb!r:.40}; there are: {', '.join(VERBS)}")
    return instruction


def carry_out(app: App, instruction: PageInstruction) -> dict[str, object]:
    """Do what is asked for, or return the plan that a person must confirm first. Raises OpsctlError."""
    verb = VERBS[instruction.verb]
    if verb.plan and not instruction.confirmed:
        plan = verb.plan(app, instruction)
        number = {} if plan.number is None else {"number": plan.number}
        return {"done": False, "text": plan.text, **number}
    text = verb.do(app, instruction)
    app.shared_queue.forget()
    facts: dict[str, object] = {
        "verb": instruction.verb,
        "train": instruction.train,
        "key": instruction.key,
        "reason": instruction.reason,
    }
    facts |= {} if instruction.number is None else {"number": instruction.number}
    app.alerting.ledger.journal("page", **facts, by=instruction.by, done=text)
    log.info("%s %s: %s", instruction.by, instruction.verb, text)
    return {"done": True, "text": text}


def queue_tasks(app: App, run: RunDir, tasks: int, *, dry_run: bool, show: Show) -> SteerResult:
    """Queue tasks after the last array of a train, or start an ended train again. Preflight runs before.

    Raises ConfigError with every error of preflight, InputError, RunDirError.
    """
    if not run.is_ours:
        raise RunDirError(f"{run.path}: belongs to another user; only the owner can queue tasks")
    if tasks < 1:
        raise InputError(f"{run.name}: {tasks} tasks cannot be queued", hint="give a number from 1 on")
    check_not_rolling_back(run, app.clock)
    jobs = app.arrays(run).check().jobs
    after = jobs[-1].array if jobs else ""
    options = LaunchOptions(after=after, tasks=tasks)
    config = read_text(run.config, MAX_SETTINGS_BYTES)
    launch = prepare_train(app, load_launched(run), config, options, where=str(run.config), warn=show)
    behind = f", after array {after}" if after else ""
    what = f"{tasks} task{'s' * (tasks != 1)}"
    nodes = launch.plan.spec.nodes
    if dry_run:
        text = f"would queue {what} of {nodes} node{'s' * (nodes != 1)}{behind}"
        return SteerResult(data={"would": "queue", "after": after, "tasks": tasks}, text=text)
    submitted = submit(app, launch, show=show)
    text = "; ".join([f"queued {what} as array {submitted.array}{behind}", *submitted.notes])
    return SteerResult(data={"done": "queued", "array": submitted.array, "tasks": submitted.tasks}, text=text)


def load_launched(run: RunDir) -> TrainSettings:
    """Return the settings with the absolute paths of the launch: opsctl dash may run in another directory."""
    train = load_train(run.config, layout=False)
    if known := find_launched_paths(train, run.config):
        return resolve_paths(train, run.path, known=known)
    return train  # the launch is then refused, because it would change the files of the queued tasks
