"""Draws the content of ``perphctl top``, from the host down to the events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from rich.text import Text
from textual.app import App
from textual.css.query import NoMatches

from perphd.commands.render_status import BATCH_HEADS, LRA_HEADS
from perphd.commands.top.drawing import core_strip, graph, resampled, spark, ways_strip
from perphd.commands.top.rows import ORDERS, batch_columns, lra_columns, ordered
from perphd.commands.top.state import TopState
from perphd.commands.top.widgets import Lines, Rows, cell_of, lines_of, strip_of
from perphd.commands.view import BatchView, LraView
from perphd.control.numbers import duration
from perphd.control.table import Styled, clean

TALL: Final = 34
"""Minimum number of terminal rows for the graph of the chosen LRA."""
_GRAPH_ROWS: Final = 6
_GRAPH_LABELS: Final = ("4/3", "", "1", "", "", "3/4")
_LABEL: Final = 7
"""Width of the labels of strips and of the graph, in columns."""
_KEYS: Final = "q quit,? keys,Enter why,s sort,/ find,+- span,[] past,e events,p pause,m mode"
_KEY_LINE: Final = [
    piece
    for key, _, does in (each.partition(" ") for each in _KEYS.split(","))
    for piece in ((key, "bold"), (f" {does} ", "dim"))
]


class Picture:
    """The main screen of an application."""

    def __init__(self, app: App[None], state: TopState) -> None:
        self._app, self._state = app, state

    def draw(self) -> None:
        """Redraw the changed parts."""
        self.title()
        frame = self._state.frame
        if frame is None or not self._is_there:
            return
        view, (width, height) = frame.view, self._app.size
        is_tall = height >= TALL
        self._put("host", lines_of(Styled(line) for line in view.host_lines))
        self._put("cores", strip_of("cores  ", core_strip(view, width - _LABEL, 3 if is_tall else 1)))
        self._put("ways", strip_of("ways   ", [ways_strip(view, width - _LABEL)] if view.ways else []))
        lras, batch = ordered(view, self._state.order, self._state.wanted)
        self._lras(lras)
        self._batch(batch)
        self.chosen(lras)
        most = 5 if is_tall else 3
        changes = [(duration(view.at_s - change.at_s), change.text) for change in view.changes[:most]]
        lines = [Styled("last changes", "bold dim")] if changes else []
        self._put("changes", lines_of([*lines, *(f"{f'{age} ago':>14}  {said}" for age, said in changes)]))
        self._put("needs", lines_of(view.needs[: most - 1]))
        self.events()

    def title(self) -> None:
        """The view: its content, moment and order, and the last line."""
        state, frame = self._state, self._state.frame
        words: list[tuple[str, str]] = []
        if state.problem:
            words = [(f" {state.problem} ", "bold red"), ("(trying again)", "dim")]
        elif state.at_unix_s is not None:
            moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.at_unix_s))
            ago = duration(time.time() - state.at_unix_s)
            words = [(f" THE PAST: {moment}, {ago} ago ", "reverse bold"), ("  Esc: now", "dim")]
        elif frame is None:
            words = [("perphctl top: asking the daemon", "dim")]
        else:
            words = [(str(frame.view.headline), frame.view.headline.style)]
        chosen = [
            f"sorted by {state.order}" if state.order != ORDERS[0] else "",
            f"only *{state.wanted}*" if state.wanted else "",
        ]
        words += [(f"  {clean(word)}", "yellow") for word in chosen if word]
        self._put("title", Text.assemble(*words, no_wrap=True, overflow="ellipsis"))
        said = Text(state.said, "yellow", no_wrap=True, overflow="ellipsis") if state.said else None
        self._put("message", said or Text.assemble(*_KEY_LINE, no_wrap=True, overflow="ellipsis"))

    def chosen(self, rows: Sequence[LraView] | None = None) -> None:
        """Explanation of the LRA under the cursor, and its graph if it fits."""
        state = self._state
        if not self._is_there:
            return
        if rows is None:
            rows = () if state.frame is None else ordered(state.frame.view, state.order, state.wanted)[0]
        name = self._app.query_one("#lras", Rows).chosen
        row = next((row for row in rows if row.name == name), rows[0] if rows else None)
        self._put("why", lines_of(row.why[:2] if row is not None else ()))
        is_tall = self._app.size.height >= TALL
        self._put("graph", self._graph(row) if row is not None and is_tall else Text())

    def events(self) -> None:
        """The latest events that fit."""
        if not self._is_there:
            return
        room = max(1, self._app.query_one("#events", Lines).size.height)
        lines = [Styled(str(line), "dim") for line in self._state.events()[: room - 1]]
        self._put("events", lines_of([Styled("events", "bold dim"), *lines] if lines else ()))

    @property
    def _is_there(self) -> bool:
        """False before the screen exists, and when the program ends."""
        return bool(self._app.screen_stack) and bool(self._app.screen_stack[0].query("#batch"))

    def _lras(self, rows: Sequence[LraView]) -> None:
        columns, history = lra_columns(rows, self._app.size.width), self._state.history
        scores = {} if history is None else {item.workload: item.score for item in history.workloads}
        heads = [*(LRA_HEADS[n] for n in columns.places), f"LAST {self._state.span}".ljust(columns.history)]
        shown = [
            (
                row.name,
                [
                    *(cell_of(row.cells[n], LRA_HEADS[n]) for n in columns.places),
                    Text.assemble(*spark(resampled(scores.get(row.name, ()), columns.history))),
                ],
            )
            for row in rows
        ]
        self._app.query_one("#lras", Rows).fill(heads, shown)

    def _batch(self, rows: Sequence[BatchView]) -> None:
        places = batch_columns(rows, self._app.size.width).places
        shown = [(row.name, [cell_of(row.cells[n], BATCH_HEADS[n]) for n in places]) for row in rows]
        self._app.query_one("#batch", Rows).fill([BATCH_HEADS[n] for n in places], shown)

    def _graph(self, row: LraView) -> Text:
        history = self._state.history
        scores = (
            ()
            if history is None
            else {item.workload: item.score for item in history.workloads}.get(row.name, ())
        )
        if not any(score is not None for score in scores):
            return Text()
        width = self._app.size.width - _LABEL
        now = "" if row.score is None else f", now {row.score:.2f}"
        head = f"{row.name}: performance by target over the last {self._state.span}{now}   ^ changes"
        text = Text(no_wrap=True).append(clean(head), "bold dim")
        for label, line in zip(_GRAPH_LABELS, graph(resampled(scores, width), _GRAPH_ROWS), strict=True):
            text.append(f"\n{label:>{_LABEL - 1}} ", "dim")
            for piece, style in line:
                text.append(piece, style)
        return text.append("\n" + " " * _LABEL).append(self._marks(row.name, width), "yellow")

    def _marks(self, name: str, width: int) -> str:
        """Times at which the LRA's protection was changed."""
        history, frame = self._state.history, self._state.frame
        marks = [" "] * width
        if history is not None and frame is not None:
            length_s = history.step_s * history.slots
            for change in history.changes:
                place = int((change.at_s + frame.offset_s - history.since_unix_s) / length_s * width)
                if change.workload == name and 0 <= place < width:
                    marks[place] = "^"
        return "".join(marks).rstrip()

    def _put(self, name: str, text: Text) -> None:
        try:
            self._app.screen_stack[0].query_one(f"#{name}", Lines).put(text)
        except (NoMatches, IndexError):  # the program is ending
            return
