"""The actions of the pages: those of the commands, with the same permissions, journalled with who."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from opsctl.actions.steer_train import arm_switch, hold_train, release_train
from opsctl.app import App
from opsctl.errors import InputError
from opsctl.state.files import parse_json
from opsctl.state.journal import actor
from opsctl.state.switches import Switch

log = logging.getLogger(__name__)
MAX_INSTRUCTION_BYTES = 8192
MAX_REASON_CHARS = 300
MAX_NAME_CHARS = 40
SILENCE = timedelta(hours=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageInstruction:
    """What a person asks for on a page."""

    verb: str
    train: str
    key: str = ""
    """The alert, for `ack` and `silence`."""
    reason: str = ""
    person: str = ""
    """The name that the person has typed; not proved."""
    confirmed: bool = False
    """Whether the person has read what would be done."""

    @property
    def by(self) -> str:
        """Who acts, for journals: the account, and the name that was typed."""
        return f"{self.person} ({actor()}) by dash" if self.person else f"{actor()} by dash"

    @property
    def why(self) -> str:
        return f"{self.reason or self.verb}, {self.by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageVerb:
    """One button."""

    label: str
    do: Callable[[App, PageInstruction], str]
    plan: Callable[[App, PageInstruction], str] | None = None
    """Describes what `do` would do, for a second confirmation; None for an action that needs none."""

    effect: str = ""
    """The consequence, before a person confirms."""
    many: str = ""
    """The label for several alerts, with their number at `{}`."""

    def label_for(self, count: int) -> str:
        """Return the label for some alerts: `Ack 2 alerts`."""
        return self.many.format(count) if count > 1 and self.many else self.label


def _hold(app: App, instruction: PageInstruction) -> str:
    return hold_train(app, app.find(instruction.train), instruction.why).text


def _plan_hold(app: App, instruction: PageInstruction) -> str:
    return hold_train(app, app.find(instruction.train), instruction.why, dry_run=True).text


def _release(app: App, instruction: PageInstruction) -> str:
    return release_train(app, app.find(instruction.train), "").text


def _plan_release(app: App, instruction: PageInstruction) -> str:
    return release_train(app, app.find(instruction.train), "", dry_run=True).text


def _save(app: App, instruction: PageInstruction) -> str:
    return arm_switch(app, app.find(instruction.train), Switch.SAVE, instruction.why).text


def _ack(app: App, instruction: PageInstruction) -> str:
    app.alerting.ledger.ack(instruction.key, instruction.reason or "seen on the page", by=instruction.by)
    return f"{instruction.key} is acknowledged; opsctl alerts again if it gets worse or is resolved"


def _silence(app: App, instruction: PageInstruction) -> str:
    ledger = app.alerting.ledger
    ledger.find(instruction.key)
    until = app.clock.now() + SILENCE
    ledger.silence(instruction.key, until, instruction.reason or "silenced on the page", by=instruction.by)
    return f"{instruction.key} is silenced until {until:%H:%M} UTC"


VERBS: Mapping[str, PageVerb] = {
    "ack": PageVerb(
        label="Ack", many="Ack {} alerts", do=_ack, effect="No repeats until it gets worse or is resolved."
    ),
    "silence": PageVerb(label="Silence 4 h", many="Silence {} for 4 h", do=_silence, effect="No messages for 4 hours."),
    "hold": PageVerb(
        label="Hold…",
        effect="No further task starts until a release; a running task goes on.",
        do=_hold,
        plan=_plan_hold,
    ),
    "release": PageVerb(
        label="Release…", effect="Slurm may start the next task at once.", do=_release, plan=_plan_release
    ),
    "save": PageVerb(label="Checkpoint now", effect="The trainer writes a checkpoint and goes on.", do=_save),
}
"""By the name in requests. A further action is one line here, and its name in `train_card`."""


def parse_instruction(body: bytes) -> PageInstruction:
    """Return the instruction of a request. Raises InputError."""
    try:
        fields = parse_json(body)
    except (json.JSONDecodeError, ValueError) as error:
        raise InputError("the request is not JSON") from error
    if not isinstance(fields, dict) or not set(fields) <= {"verb", "train", "key", "reason", "person", "confirmed"}:
        raise InputError("the request is not an instruction")
    texts = {name: fields.get(name, "") for name in ("verb", "train", "key", "reason", "person")}
    if not all(isinstance(text, str) and len(text) <= MAX_REASON_CHARS for text in texts.values()):
        raise InputError(f"a text of the request is longer than {MAX_REASON_CHARS} characters")
    if texts["verb"] not in VERBS:
        raise InputError(f"no action {texts['verb']!r:.40}; there are: {', '.join(VERBS)}")
    return PageInstruction(
        verb=texts["verb"],
        train=texts["train"],
        key=texts["key"],
        reason=_printable(texts["reason"]),
        person=_printable(texts["person"])[:MAX_NAME_CHARS],
        confirmed=fields.get("confirmed") is True,
    )


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text).strip()


def carry_out(app: App, instruction: PageInstruction) -> dict[str, object]:
    """Do what is asked for, or return the plan that a person must confirm first. Raises OpsctlError."""
    verb = VERBS[instruction.verb]
    if verb.plan and not instruction.confirmed:
        return {"done": False, "text": verb.plan(app, instruction)}
    text = verb.do(app, instruction)
    facts = {"verb": instruction.verb, "train": instruction.train, "key": instruction.key, "reason": instruction.reason}
    app.alerting.ledger.journal("page", **facts, by=instruction.by, done=text)
    log.info("%s %s: %s", instruction.by, instruction.verb, text)
    return {"done": True, "text": text}
