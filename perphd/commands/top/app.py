"""``perphctl top``: the host, its workloads and their past on one screen that is kept up to date.

Only changed cells and lines are written to the terminal. Threads query the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widgets import Input

from perphd.commands.top.picture import Picture
from perphd.commands.top.rows import ORDERS, SPANS
from perphd.commands.top.screens import KEYS, QuestionScreen, Reading
from perphd.commands.top.source import EventLine, Source
from perphd.commands.top.state import TopState
from perphd.commands.top.widgets import Lines, Rows
from perphd.control.client import NotPermitted
from perphd.control.table import clean
from perphd.domain.errors import PerphError
from perphd.domain.workload import Mode

T = TypeVar("T")
RETRY_S: Final = 2.0
"""Seconds before the next attempt to reach a daemon that does not answer."""
HISTORY_EVERY_S: Final = 10.0
STEPS: Final = 60
"""Number of steps through the past that make up the visible span."""
JUST_AFTER_S: Final = 0.01
"""Seconds from a change to the moment that the screen shows after a jump to it."""
_STYLES: Final = """
Screen { layout: vertical; background: ansi_default; color: ansi_default; }
Lines { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
#why, #needs { text-wrap: wrap; }
#title { height: 1; }
Rows { height: auto; max-height: 12; background: ansi_default; scrollbar-size: 0 1; overflow-x: hidden; }
Rows > .datatable--header { background: ansi_default; text-style: bold dim; }
Rows > .datatable--cursor, Rows:focus > .datatable--cursor { background: ansi_default; text-style: none; }
.gap { margin-top: 1; }
#events { height: 1fr; min-height: 1; margin-top: 1; }
#filter { dock: bottom; height: 1; border: none; display: none; padding: 0; }
#message { dock: bottom; height: 1; }
Reading, Question { align: center middle; background: transparent; }
#reading { width: 92%; height: 90%; border: round ansi_default; background: ansi_default; padding: 0 1; }
#question { width: 64; max-width: 92%; height: auto; border: round ansi_yellow; background: ansi_default; }
#question { padding: 1 2; }
"""


class Top(App[None]):
    """The screen.

    Args:
        source: queries the daemon. interval_s: seconds between two updates.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = _STYLES
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit"),
        Binding("question_mark", "help", "Keys"),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter"),
        Binding("plus,equals_sign", "span(1)", "Longer"),
        Binding("minus", "span(-1)", "Shorter"),
        Binding("left_square_bracket", "step(-1)", "Back"),
        Binding("right_square_bracket", "step(1)", "Forward"),
        Binding("left_curly_bracket", "change_before", "Change before"),
        Binding("right_curly_bracket", "change_after", "Change after"),
        Binding("escape", "present", "Now"),
        Binding("e", "events", "Events"),
        Binding("p", "pause", "Pause"),
        Binding("m", "mode", "Mode"),
    ]

    def __init__(self, source: Source, interval_s: float) -> None:
        super().__init__(ansi_color=True)
        self._source, self._interval_s = source, interval_s
        self.state = TopState()
        self.picture = Picture(self, self.state)
        self._history_s = self._said_s = float("-inf")
        self._has_stored = False
        self._look = asyncio.Event()

    def compose(self) -> ComposeResult:
        """The widgets, from the host down to the events."""
        for name in ("title", "host", "cores", "ways"):
            yield Lines(id=name)
        yield Rows("lras")
        yield Lines(id="why")
        yield Lines(id="graph", classes="gap")
        yield Rows("batch")
        yield Lines(id="changes", classes="gap")
        for name in ("needs", "events", "message"):
            yield Lines(id=name)
        yield Input(id="filter", placeholder="names that contain ...", select_on_focus=False)

    def on_mount(self) -> None:
        """Start to follow the daemon."""
        self.animation_level = "none"
        self.query_one("#events", Lines).keeps_place = True
        self.query_one("#lras").focus()
        self.picture.title()
        self.run_worker(self._follow(), exclusive=True)
        threading.Thread(target=self._hear, daemon=True, name="perphctl-top-events").start()

    def on_resize(self) -> None:
        """Redraw, because every width may have changed."""
        self.call_after_refresh(self.picture.draw)

    # --- asking ------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        state = self.state
        while True:
            pause_s: float | None = self._interval_s
            self._look.clear()
            try:
                await self._ask()
                state.problem = ""
                if state.at_unix_s is not None:
                    pause_s = None  # a past moment does not change
            except PerphError as exc:
                state.problem = clean(str(exc))
                pause_s = max(RETRY_S, self._interval_s)
                self._history_s, self._has_stored = float("-inf"), False
            self.picture.draw()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), pause_s)

    async def _ask(self) -> None:
        state, at_s = self.state, self.state.at_unix_s
        frame = await asyncio.to_thread(self._source.now if at_s is None else lambda: self._source.at(at_s))
        if state.at_unix_s != at_s:  # another moment was chosen meanwhile
            self._look.set()
            return
        state.frame = frame
        if at_s is None and not self._has_stored:
            self._has_stored = True
            state.take_stored(await self._stored(self._source.stored_events) or [])
        now_s = time.monotonic()
        if now_s - self._history_s >= HISTORY_EVERY_S or at_s is not None:
            span_s, slots = SPANS[state.span], max(20, min(240, self.size.width * 2))
            state.history = await self._stored(lambda: self._source.history(span_s, slots, at_s))
            self._history_s = now_s

    async def _stored(self, ask: Callable[[], T]) -> T | None:
        """The store's data; None if there is no store or queries are refused. Everything else is still shown."""
        try:
            return await asyncio.to_thread(ask)
        except PerphError as exc:
            self.state.said = f"the past is unavailable: {clean(str(exc))}"
            return None

    def _hear(self) -> None:
        """Receive events. Runs in a thread that ends with the program."""
        while True:
            try:
                for event in self._source.events():
                    self.call_from_thread(self._heard, event)
            except PerphError:
                pass
            except RuntimeError:  # the program is ending
                return
            time.sleep(RETRY_S)

    def _heard(self, event: EventLine) -> None:
        self.state.heard.appendleft(event)  # shown with the next update, since many may arrive in a second

    # --- reading -----------------------------------------------------------------------------------------------

    def chosen(self) -> str | None:
        """The workload under the cursor."""
        batch = self.query_one("#batch", Rows)
        return (batch if batch.has_focus else self.query_one("#lras", Rows)).chosen

    def say(self, sentence: str) -> None:
        """Show a sentence in the last line until the next key press."""
        self.state.said, self._said_s = clean(sentence), time.monotonic()
        self.picture.title()

    def on_key(self, event: Key) -> None:
        """Remove the sentence, unless this key caused it (the answer to a question)."""
        if self.state.said and event.time >= self._said_s:
            self.say("")

    def on_data_table_row_highlighted(self) -> None:
        """Redraw after another workload was chosen."""
        self.picture.chosen()

    async def on_data_table_row_selected(self) -> None:
        """Enter: explain the workload."""
        name, frame = self.chosen(), self.state.frame
        if name is None or frame is None:
            return
        try:
            parts = await asyncio.to_thread(self._source.explain, name, frame)
        except PerphError as exc:
            self.say(str(exc))
            return
        self.push_screen(Reading.of_parts(f" settings of {clean(name)}, explained ", parts))

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Reading(" keys ", Text(KEYS)))

    def action_events(self) -> None:
        """Show all known events."""
        lines = "\n".join(clean(str(line)) for line in self.state.events())
        self.push_screen(Reading(" events, newest first ", Text(lines or "Nothing has happened yet.")))

    def action_sort(self) -> None:
        """Select the next sort order."""
        self.state.order = ORDERS[(ORDERS.index(self.state.order) + 1) % len(ORDERS)]
        self.picture.draw()

    def action_span(self, by: int) -> None:
        """Select a longer or shorter history."""
        names = list(SPANS)
        self.state.span = names[max(0, min(len(names) - 1, names.index(self.state.span) + by))]
        self.state.history = None  # the present history has another length
        self.picture.draw()
        self._refetch()

    def action_filter(self) -> None:
        """Start typing a part of a name."""
        field = self.query_one("#filter", Input)
        field.value, field.display = self.state.wanted, True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show names that contain the typed text."""
        if event.input.display:
            self.state.wanted = event.value
            self.picture.draw()

    def on_input_submitted(self) -> None:
        """Keep the filter."""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.picture.draw()
        self.query_one("#lras" if self.query_one("#lras").display else "#batch").focus()

    # --- the past ----------------------------------------------------------------------------------------------

    def action_present(self) -> None:
        """Return to now, and to all workloads."""
        self.state.wanted = ""
        self._close_filter()
        self._go(None)

    def action_step(self, by: int) -> None:
        """Step back or forward."""
        if (frame := self.state.frame) is not None:
            at_s = (self.state.at_unix_s or frame.unix_s) + by * SPANS[self.state.span] / STEPS
            self._go(None if at_s >= time.time() else at_s)

    def action_change_before(self) -> None:
        """Go to the change before the shown moment."""
        if (frame := self.state.frame) is None:
            return
        before = [at_s for at_s in self.state.moments() if at_s < frame.unix_s - 0.5]
        if before:
            self._go(before[-1] + JUST_AFTER_S)
        else:
            self.say(f"no change in the {self.state.span} before this moment; + looks further back")

    async def action_change_after(self) -> None:
        """Go to the next change, or back to now."""
        frame, span_s = self.state.frame, SPANS[self.state.span]
        if frame is None or self.state.at_unix_s is None:
            return
        try:
            later = await asyncio.to_thread(self._source.history, span_s, 1, frame.unix_s + span_s)
        except PerphError as exc:
            self.say(str(exc))
            return
        moments = [change.at_s + frame.offset_s for change in later.changes]
        after = [at_s for at_s in moments if at_s > frame.unix_s + 0.5]
        self._go(min(after) + JUST_AFTER_S if after else None)

    def _go(self, at_unix_s: float | None) -> None:
        first = self.state.frame.stored_since_unix_s if self.state.frame is not None else None
        if at_unix_s is not None and first is not None and at_unix_s < first:
            at_unix_s = first
            self.say("this is the first moment that the store holds")
        if at_unix_s != self.state.at_unix_s:
            self.state.at_unix_s = at_unix_s
            self._refetch()
        self.picture.title()

    def _refetch(self) -> None:
        self._history_s = float("-inf")
        self._look.set()

    # --- changing ----------------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Ask whether to pause or to resume."""
        if not self._is_present() or self.state.frame is None:
            return
        pauses, name = self.state.frame.status.pauses, self.chosen()
        if pauses:
            who = ", ".join(pause.workload or "all workloads" for pause in pauses)
            question = QuestionScreen(f"Paused: {clean(who)}. Resume?", [("y", "resume")])
            self._change_if(question, lambda _: ("POST", "resume", {"workload": None}))
            return
        answers = [("y", "pause all workloads"), *([("w", f"pause {clean(name)} alone")] if name else [])]
        text = (
            "Pause perphd? It restores every value that it has changed, and changes nothing "
            "until it is resumed. It keeps measuring."
        )
        body = {"for_s": None, "reason": "perphctl top"}
        self._change_if(
            QuestionScreen(text, answers),
            lambda answer: ("POST", "pause", {"workload": name if answer == "w" else None, **body}),
        )

    def action_mode(self) -> None:
        """Ask whether to observe or to enforce."""
        if not self._is_present() or self.state.frame is None:
            return
        mode = self.state.frame.status.mode
        other = Mode.ENFORCE if mode is Mode.OBSERVE else Mode.OBSERVE
        what = "perphd then restores what it has changed and writes nothing."
        what = "perphd then writes settings." if other is Mode.ENFORCE else what
        text = f"The mode is {mode}. Set {other}? {what} It lasts until the daemon restarts."
        self._change_if(
            QuestionScreen(text, [("y", f"set {other}")]),
            lambda _: ("PUT", "mode", {"mode": other.value, "workload": None}),
        )

    def _is_present(self) -> bool:
        if self.state.at_unix_s is not None:
            self.say("the screen shows the past; Esc returns to the present")
        elif self.state.frame is None:
            self.say("the daemon has not answered yet")
        return self.state.at_unix_s is None

    def _change_if(
        self, question: QuestionScreen, request: Callable[[str], tuple[str, str, dict[str, Any]]]
    ) -> None:
        """Request a change unless the answer is no."""

        def done(answer: str | None) -> None:
            if answer is not None:
                self.run_worker(self._change(*request(answer)))

        self.push_screen(question, done)

    async def _change(self, method: str, route: str, body: dict[str, Any]) -> None:
        try:
            await asyncio.to_thread(self._source.change, method, route, body)
        except NotPermitted as exc:
            self.say(f"not permitted: {exc}")
        except PerphError as exc:
            self.say(str(exc))
        else:
            self.say(f"{route}: done")
        self._refetch()
