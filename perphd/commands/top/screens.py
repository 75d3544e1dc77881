"""Windows of ``perphctl top``: keys, an explanation, the events, a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from perphd.control.table import Part, rich_parts

KEYS = """\
 q            quit                      ?          this page
 arrows       choose a workload         Tab        LRAs or batch
 Enter        explain its settings, with the alternatives
 s            sort: as configured, attention, name, use
 /            show only names that contain a text; Esc shows all
 + -          length of the history: 15m, 1h, 6h, 24h, 7d
 [ ]          a step back, a step forward through the stored past
 { }          to the change before, to the change after
 Esc          back to the present, and all workloads
 e            events
 p            pause perphd, or resume     (asks first)
 m            observe or enforce          (asks first)

 HISTORY: a bar per time slot. Bars in the upper half (green) are on target,
 in the lower half (red) below it. A full bar is 4/3 of the target.
 CORES, WAYS: the letter of its user; + is shared by LRAs and batch.
"""


class Reading(ModalScreen[None]):
    """A scrollable text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "Close", priority=True)
    ]

    def __init__(self, title: str, content: RenderableType) -> None:
        super().__init__()
        self._title, self._content = title, content

    @classmethod
    def of_parts(cls, title: str, parts: Iterable[Part]) -> Reading:
        """A window that shows these parts of an answer, one below the other."""
        return cls(title, Group(*rich_parts(parts)))

    def compose(self) -> ComposeResult:
        """The scrolling frame."""
        with VerticalScroll(id="reading") as frame:
            frame.border_title = self._title
            frame.border_subtitle = "Esc closes"
            yield Static(self._content)

    def on_mount(self) -> None:
        """Move the focus to the text, so that arrow keys scroll it."""
        self.query_one("#reading").focus()


class QuestionScreen(ModalScreen[str | None]):
    """A question with an answer per key; Esc and n mean no."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,n,q", "no", "No", priority=True)]

    def __init__(self, question: str, answers: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._question, self._answers = question, tuple(answers)

    def compose(self) -> ComposeResult:
        """The question, then the keys."""
        lines = [Text(self._question), Text()]
        lines += [Text.assemble((f" {key} ", "reverse"), f" {said}") for key, said in self._answers]
        lines.append(Text.assemble((" n ", "reverse"), " no, change nothing"))
        with Vertical(id="question"):
            yield Static(Group(*lines))

    def action_no(self) -> None:
        """Answer no."""
        self.dismiss(None)

    def on_key(self, event: object) -> None:
        """Return the answer of this key."""
        key = getattr(event, "key", "")
        if key in {known for known, _ in self._answers}:
            self.dismiss(key)
