"""Widgets of ``perphctl top``: lines and tables that send only changes to the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from rich.text import Text
from textual.widgets import DataTable, Static

from perphd.commands.top.drawing import Line
from perphd.control.table import Cell, Styled, clean

_NUMBERS: Final = frozenset({"RATE", "TARGET", "DELAY", "MAX", "USES", "GIVEN", "WANTED", "MEMORY"})
"""Columns that are aligned to the right."""


class Lines(Static):
    """Lines of text; hidden while empty, unless they keep their place."""

    shown: Text | None = None
    keeps_place = False

    def put(self, text: Text) -> None:
        """Show these lines."""
        if self.shown is None or not _same(text, self.shown):
            self.shown = text
            self.display = self.keeps_place or bool(text.plain)
            self.update(text)


class Rows(DataTable[Text]):
    """A row per workload; hidden while empty."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name, cursor_type="row", cursor_foreground_priority="renderable", classes="gap")
        self._heads: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self._labels: dict[str, Text] = {}

    def fill(self, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Text]]]) -> None:
        """Show these rows, each with its workload's name; the cursor stays on its workload."""
        self.display = bool(rows)
        names, chosen = tuple(name for name, _ in rows), self.chosen
        self._labels = {name: cells[0] for name, cells in rows}
        if (tuple(heads), names) == (self._heads, self._names):
            self._update(rows)
            self.mark()
            return
        self._heads, self._names = tuple(heads), names
        self.clear(columns=True)
        for head in heads:
            self.add_column(Text(head, justify=_justify(head)), key=head)
        for name, cells in rows:
            self.add_row(*cells, key=name)
        if chosen in names:
            self.move_cursor(row=names.index(chosen))
        self.mark()

    def mark(self) -> None:
        """Mark the chosen workload in its first cell, so that the colours of the others stay readable."""
        for name in self._names:
            label = self._labels[name].copy()
            if self.has_focus and name == self.chosen:
                label.stylize("reverse bold")
            if not _same(self.get_cell(name, self._heads[0]), label):
                self.update_cell(name, self._heads[0], label)

    def on_focus(self) -> None:
        """The table has received the cursor."""
        self.mark()

    def on_blur(self) -> None:
        """The table has lost the cursor."""
        self.mark()

    def on_data_table_row_highlighted(self) -> None:
        """The cursor has moved; notify the application."""
        self.mark()

    @property
    def chosen(self) -> str | None:
        """The workload under the cursor."""
        return self._names[self.cursor_row] if 0 <= self.cursor_row < len(self._names) else None

    def _update(self, rows: Iterable[tuple[str, Sequence[Text]]]) -> None:
        for name, cells in rows:
            for head, cell in zip(self._heads[1:], cells[1:], strict=True):
                before = self.get_cell(name, head)
                if not _same(before, cell):
                    self.update_cell(name, head, cell, update_width=len(cell) != len(before))

    def action_cursor_down(self) -> None:
        """Move down; from the last LRA to batch."""
        if self.cursor_row >= self.row_count - 1 and self.id == "lras":
            self.app.query_one("#batch", Rows).focus()
        else:
            super().action_cursor_down()

    def action_cursor_up(self) -> None:
        """Move up; from the first batch workload to the LRAs."""
        if self.cursor_row <= 0 and self.id == "batch":
            self.app.query_one("#lras", Rows).focus()
        else:
            super().action_cursor_up()


def cell_of(cell: Cell, head: str) -> Text:
    """A cell aligned like its column heading."""
    text = text_of(cell)
    text.justify = _justify(head)
    return text


def text_of(cell: Cell) -> Text:
    """A cell without characters that control the terminal."""
    return Text(clean(str(cell)), cell.style if isinstance(cell, Styled) else "")


def lines_of(cells: Iterable[Cell]) -> Text:
    """Lines, truncated at the terminal's width."""
    text = Text("\n").join([text_of(cell) for cell in cells])
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def strip_of(label: str, lines: Sequence[Line]) -> Text:
    """A strip with its label before the first line."""
    text = Text(no_wrap=True, overflow="crop")
    for number, line in enumerate(lines):
        text.append(f"\n{' ' * len(label)}" if number else label, "dim")
        for piece, style in line:
            text.append(piece, style)
    return text


def _justify(head: str) -> Literal["left", "right"]:
    return "right" if head in _NUMBERS else "left"


def _same(a: Text, b: Text) -> bool:
    return a.plain == b.plain and a.spans == b.spans and a.style == b.style
