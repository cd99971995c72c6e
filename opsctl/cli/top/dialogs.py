"""Dialogs of `opsctl top`: the keys, a text to search for, and the question before an action."""

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from opsctl.cli.output import cell


class HelpDialog(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,f1,f10,question_mark,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text("Keys", "bold"))
            yield Static(Text(Path(__file__).with_name("keys.txt").read_text(encoding="utf-8").rstrip("\n")))
            yield Static(Text("Esc closes", "dim"))


class TextDialog(ModalScreen[str | None]):
    """A line to type. Returns the text, or None after Esc."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Cancel")]

    def __init__(self, title: str, value: str = "") -> None:
        super().__init__()
        self.title_text, self.value = title, value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(cell(self.title_text))
            yield Input(value=self.value, max_length=200)
            yield Static(Text("Enter confirms · Esc cancels", "dim"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class ConfirmDialog(ModalScreen[str | None]):
    """A question before an action. Returns the reason, or None if the action is not wanted."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,n", "dismiss", "No"), ("y", "accept", "Yes")]

    def __init__(self, question: str, *, needs_reason: bool) -> None:
        super().__init__()
        self.question, self.needs_reason = question, needs_reason

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(cell(self.question, "bold"))
            if self.needs_reason:
                yield Static(Text("Reason, recorded in the journal:"))
                yield Input(max_length=200)
                yield Static(Text("Enter confirms, with a reason · Esc cancels", "dim"))
            else:
                yield Static(Text("y confirms · n or Esc cancels", "dim"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(event.value.strip())

    def action_accept(self) -> None:
        if not self.needs_reason:
            self.dismiss("")
