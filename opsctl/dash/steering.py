"""The actions of the pages: those of the commands, with the same permissions, journalled with who."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from opsctl.actions.describe_rollback import describe_plan
from opsctl.actions.prepare_launch import LaunchOptions, prepare_train
from opsctl.actions.rollback import start_rollback
from opsctl.actions.rollback_plan import RollbackOptions, plan_rollback
from opsctl.actions.steer_train import Show, SteerResult, arm_switch, hold_train, release_train, submit
from opsctl.app import App
from opsctl.base.errors import InputError, RunDirError
from opsctl.base.tables import read_package_table
from opsctl.guard.node_care import NodeCare
from opsctl.launch.rollback_state import check_not_rolling_back
from opsctl.launch.train_paths import find_launched_paths, resolve_paths
from opsctl.monitor.confirm_proposals import confirm_proposals, find_proposals
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
class PageAnswer:
    """What an action does, or would do: the plan for the confirmation."""

    text: str
    number: int | None = None
    """The number that the confirmed instruction must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageVerb:
    """One action: its function, and its row of actions.toml, which explains the fields."""

    act: Callable[..., PageAnswer]
    label: str
    effect: str
    many: str = ""
    asks: str = ""
    is_confirmed: bool = False
    is_confirmed_twice: bool = False

    def label_for(self, count: int) -> str:
        """Return the label for some alerts: `Ack 2 alerts`."""
        return self.many.format(count) if count > 1 and self.many else self.label


def _find(app: App, instruction: PageInstruction) -> RunDir:
    """Return the train below the root, never a directory of that name elsewhere. Raises InputError."""
    if not NAME.fullmatch(instruction.train):
        raise InputError(f"{instruction.train!r:.80} is not the name of a train", hint="load the page again")
    return app.find(str(app.root / instruction.train))


def _hold(app: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
    return PageAnswer(text=hold_train(app, _find(app, instruction), instruction.why, dry_run=dry_run).text)


def _release(app: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
    run = _find(app, instruction)
    text = release_train(app, run, "", why=instruction.why, dry_run=dry_run).text
    held = replay(app.journal(run).events()).held if dry_run else None
    needed = held.reason.needed_change if held else ""
    return PageAnswer(text=f"{text}; the hold says: {needed}" if needed else text)


def _confirm(app: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
    run = _find(app, instruction)
    if not dry_run:
        return PageAnswer(text="; ".join(confirm_proposals(app.arrays(run), NodeCare.of(app), instruction.why)))
    proposals = find_proposals(app.journal(run).events(), app.clock.now())
    if not proposals:
        raise InputError(f"opsctl proposes nothing for {instruction.train} any more", hint="load the page again")
    return PageAnswer(text=f"would {', '.join(proposals)}")


def _save(app: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
    answer = arm_switch(app, _find(app, instruction), Switch.SAVE, instruction.why, dry_run=dry_run)
    return PageAnswer(text=answer.text)


def _queue(app: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
    tasks, warnings = instruction.number or 0, list[str]()
    show = warnings.append if dry_run else log.info
    text = queue_tasks(app, _find(app, instruction), tasks, dry_run=dry_run, show=show).text
    return PageAnswer(text="\n".join([text, *warnings]), number=tasks)


def _roll_back(app: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
    run, step, warnings = _find(app, instruction), instruction.number, list[str]()
    if dry_run:
        plan = plan_rollback(app, run, RollbackOptions(to=step), show=warnings.append)
        lines = describe_plan(plan, app.arrays(run).check(), dry_run=True)
        return PageAnswer(text="\n".join([*warnings, *lines]), number=plan.record.step)
    if step is None:
        raise InputError("a confirmed rollback names the step", hint="load the page again")
    return PageAnswer(text=start_rollback(app, run, step, by=instruction.by, reason=instruction.why))


def _ack(app: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
    if not dry_run:
        app.alerting.ledger.ack(instruction.key, instruction.reason or "seen on the page", by=instruction.by)
    return PageAnswer(text=f"{instruction.key} is acknowledged; opsctl alerts again if it gets worse or is resolved")


def _silence(app: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
    ledger = app.alerting.ledger
    ledger.find(instruction.key)
    until = app.clock.now() + SILENCE
    if not dry_run:
        ledger.silence(instruction.key, until, instruction.reason or "silenced on the page", by=instruction.by)
    return PageAnswer(text=f"{instruction.key} is silenced until {until:%H:%M} UTC")


_FUNCTIONS: Mapping[str, Callable[..., PageAnswer]] = {
    "ack": _ack,
    "silence": _silence,
    "hold": _hold,
    "release": _release,
    "confirm": _confirm,
    "save": _save,
    "queue": _queue,
    "rollback": _roll_back,
}
_ROWS = read_package_table("dash/actions.toml")
VERBS = {name: PageVerb(act=act, **_ROWS[name]) for name, act in _FUNCTIONS.items()}
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
    is_plan = verb.is_confirmed and not instruction.confirmed
    answer = verb.act(app, instruction, dry_run=is_plan)
    text, number = answer.text, {} if answer.number is None else {"number": answer.number}
    if is_plan:
        return {"done": False, "text": text, **number}
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
