"""perphctl suggest: undeclared groups worth declaring, with the lines to paste."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from perphd.commands.base import Out, command
from perphd.control.table import Part, folded, table, text
from perphd.domain.reading import Reading, available

if TYPE_CHECKING:
    from perphd.domain.suggestion import Gain


_LEGEND: Final = (
    "WORK and DELAY: predicted with the group restricted, as ratios to what was observed (x 1.00: no change)"
)


def add_suggest_command(cli: click.Group) -> None:
    """Add the command to the group."""

    @command(cli)
    def suggest(out: Out) -> None:
        """List undeclared control groups worth declaring as batch.

        Shows for each: its use, the LRAs that it slowed, the gain from declaring it, and the lines for the
        configuration. WORK and DELAY are the LRA's predicted work and delay with the group restricted, as ratios to
        those observed beside it: a delay of x 0.15 is 15 % of what it was.
        """
        data = out.client.get("suggest")
        out.show(data, lambda: list(_parts(data)))


def _parts(data: Any) -> Iterator[Part]:
    from perphd.commands.render_host import group_name  # slow to import
    from perphd.domain.suggestion import Suggestion
    from perphd.domain.wire import decode

    found = decode(tuple[Suggestion, ...], data["suggestions"])
    if not found:
        yield text("No undeclared control group uses enough to be worth declaring.")
        return
    rows = [
        (group_name(item.group), f"{item.cpu_cores:.2f}", *_gain_cells(item.gains), item.text)
        for item in found
    ]
    yield table("", ("GROUP", "CPUS", "SLOWED", "WORK", "DELAY", "WHY"), rows, right=(1,))
    if any(item.gains for item in found):
        yield text(*folded(_LEGEND))
    pasted = [item.config for item in found if item.config]
    if pasted:
        yield text(
            "Paste these lines into the configuration:", "", *"\n".join(pasted).rstrip("\n").split("\n")
        )


def _gain_cells(gains: tuple[Gain, ...]) -> tuple[str, str, str]:
    if not gains:
        return "-", "-", "-"
    from perphd.control.numbers import duration

    most = max(gains, key=lambda gain: gain.named_s)
    return f"{most.lra} for {duration(most.named_s)}", _times(most.work_ratio), _times(most.delay_ratio)


def _times(ratio: Reading) -> str:
    return f"x {ratio:.2f}" if available(ratio) else "-"
