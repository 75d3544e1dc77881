"""perphctl pause and resume."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

from perphd.commands.base import Out, command
from perphd.control.limits import MAX_PAUSE_S
from perphd.domain.units import SECONDS_PER_UNIT

if TYPE_CHECKING:
    from perphd.control.table import Part

    _Parameter = click.ParamType[float]
else:
    _Parameter = click.ParamType  # no generic class before click 8.2

_DAY_S: Final = 86400.0
_MOST_S: Final = 36_500 * _DAY_S
"""Longest duration: a hundred years. A longer one is a mistake, and dates after the year 9999 cannot be shown."""
_DURATION: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)\s*(s|m|min|h|d)?")


class Duration(_Parameter):
    """A duration in the form 90s, 30m, 1h, 2d; seconds without a unit; at most ``most_s``."""

    name = "duration"

    def __init__(self, most_s: float = _MOST_S) -> None:
        self._most_s = most_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The duration in seconds."""
        found = _DURATION.fullmatch(str(value).strip())
        length_s = float(found[1]) * SECONDS_PER_UNIT[found[2]] if found is not None else 0.0
        if not 0.0 < length_s <= self._most_s:
            allowed = f"more than 0, at most {self._most_s / _DAY_S:.0f}d, such as 90s, 30m, 1h, 2d"
            what = "is too long" if length_s else "is not a length of time"
            self.fail(f"{value!r} {what} (allowed: {allowed})", param, ctx)
        return length_s


def add_pause_commands(cli: click.Group) -> None:
    """Add the commands to the group."""
    command(cli)(pause)
    command(cli)(resume)


@click.argument("workload", metavar="[WORKLOAD]", required=False)
@click.option(
    "--for",
    "for_s",
    type=Duration(MAX_PAUSE_S),
    metavar="TIME",
    help="End it automatically after 90s, 30m, 1h, 2d ...; at most 366d.",
)
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown in status, log and events.")
def pause(out: Out, workload: str | None, for_s: float | None, reason: str) -> None:
    """Stop all changes, and restore what was changed.

    Applies to one WORKLOAD, or to all. perphd keeps measuring. The pause survives reload, restart and upgrade; without
    --for it lasts until resume. Automation can create the file /etc/perphd/pause (tuning.daemon.pause_file) instead.
    """
    from perphd.control.render import pause_text, restore_parts
    from perphd.control.table import text
    from perphd.domain.control import Pause
    from perphd.domain.wire import decode
    from perphd.isolation.restore_report import RestoreReport

    answer = out.client.send("POST", "pause", {"workload": workload, "for_s": for_s, "reason": reason})
    begun = decode(Pause, answer["pause"])
    report = decode(RestoreReport, answer["restored"])

    def parts() -> list[Part]:
        if workload is None:
            return [text(pause_text(begun)), *restore_parts(report)]
        rest = f"The next round restores what other workloads had given up for {workload} alone."
        restored = restore_parts(report, f"{workload} itself: no file had to be put back.")
        return [text(pause_text(begun)), *restored, text(rest)]

    out.show(answer, parts)


@click.argument("workload", metavar="[WORKLOAD]", required=False)
def resume(out: Out, workload: str | None) -> None:
    """End the pause of one WORKLOAD, or all manual pauses.

    A pause set by a file ends when the file is removed.
    """
    from perphd.control.render import pause_text
    from perphd.control.table import text
    from perphd.domain.control import Pause
    from perphd.domain.wire import decode

    answer = out.client.send("POST", "resume", {"workload": workload})
    ended = [item["workload"] or "all workloads" for item in answer["ended"]]
    still = decode(tuple[Pause, ...], answer["still"], "still")
    lines = [f"{name}: resumed" for name in ended] or ["No pause was set by hand."]
    lines += [f"Still in force: {pause_text(item)}" for item in still]
    out.show(answer, lambda: [text(*lines)])
