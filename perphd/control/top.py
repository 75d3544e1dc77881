"""``perphctl top``: the status redrawn at an interval, with each LRA's recent distance from its target as a line."""

from __future__ import annotations

import sys
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import click

from perphd.control.cli_base import Out
from perphd.control.published import published
from perphd.control.render_status import status_parts
from perphd.control.table import Part, Styled, plain, rich_parts, text
from perphd.control.view import score
from perphd.control.wire import decode
from perphd.domain.status import AgentStatus
from perphd.domain.workload import Kind

_BARS = "▁▂▃▄▅▆▇█"
_KEPT = 60
_FULL_SCALE = 1.25


class History:
    """The recent scores (performance divided by target, 1 = on target) of every LRA."""

    def __init__(self) -> None:
        self._scores: dict[str, deque[float | None]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def add(self, status: AgentStatus) -> None:
        """Remember where every LRA stands now."""
        for item in status.workloads:
            if item.spec.kind is Kind.LRA:
                self._scores[item.spec.name].append(score(item))

    def part(self) -> Part | None:
        """The lines, newest at the right; None while there is nothing to show."""
        names = {name: scores for name, scores in self._scores.items() if any(s is not None for s in scores)}
        if not names:
            return None
        width = max(map(len, names))
        lines = [f"{name:<{width}}  {spark(tuple(scores))}" for name, scores in names.items()]
        return text(Styled(f"performance / target (full bar: {_FULL_SCALE:g})", "dim"), *lines)


def spark(scores: Sequence[float | None]) -> str:
    """A bar a score; a blank where there was none."""
    steps = len(_BARS) - 1
    return "".join(
        " " if s is None else _BARS[round(min(1.0, max(0.0, s / _FULL_SCALE)) * steps)] for s in scores
    )


def run(out: Out, interval_s: float, count: int | None) -> None:
    """Redraw until ``count`` updates were shown or Ctrl-C; piped, every update is printed below the last."""
    history = History()
    if out.as_json or not sys.stdout.isatty():
        _print(out, history, interval_s, count)
        return
    from rich.console import Console, Group
    from rich.live import Live

    console = Console(highlight=False)
    shown = 0
    with Live(console=console, screen=count is None, auto_refresh=False) as live:
        while count is None or shown < count:
            if shown:
                time.sleep(interval_s)
            parts = _parts(out.client.get("status"), history)
            live.update(Group(*rich_parts(parts)), refresh=True)
            shown += 1


def _print(out: Out, history: History, interval_s: float, count: int | None) -> None:
    import json

    shown = 0
    while count is None or shown < count:
        if shown:
            time.sleep(interval_s)
        data = out.client.get("status")
        if out.as_json:
            click.echo(json.dumps(published(data), ensure_ascii=False))
        else:
            click.echo(plain(_parts(data, history)))
        sys.stdout.flush()
        shown += 1


def _parts(data: Mapping[str, Any], history: History) -> list[Part]:
    status = decode(AgentStatus, data)
    history.add(status)
    lines = history.part()
    parts = status_parts(status, data["clock"]["monotonic_s"])
    return [parts[0], lines, *parts[1:]] if lines is not None else parts
