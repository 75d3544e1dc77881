"""perphctl whatif and admit: the predicted effect of new work, and whether it may start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from perphd.commands.base import EXIT_NOT_NOW, Out, command
from perphd.commands.pause import Duration
from perphd.control.table import Part, table, text
from perphd.domain.errors import PerphError
from perphd.domain.reading import available

if TYPE_CHECKING:
    from perphd.domain.whatif import Effect

_WORK = "batch:cpu=CORES[,mem=SIZE]"
ASK_AGAIN_S: Final = 5.0
"""Seconds between two requests of a waiting admit."""


def add_admission_commands(cli: click.Group) -> None:
    """Add both commands to the group."""

    @command(cli)
    @click.option("--add", "work", metavar=_WORK, required=True, help="The batch work that may start.")
    def whatif(out: Out, work: str) -> None:
        """Predict how every LRA would perform if this work started.

        For example: perphctl whatif --add batch:cpu=4,mem=8Gi
        """
        _check_work(work)
        data = out.client.get("whatif", add=work)
        out.show(data, lambda: whatif_parts(data))

    @command(cli)
    @click.argument("work", metavar=_WORK)
    @click.option(
        "--wait",
        "wait_s",
        type=Duration(),
        metavar="TIME",
        help="Retry until it may start, at most this long: 90s, 10m, 2h.",
    )
    @click.pass_context
    def admit(context: click.Context, out: Out, work: str, wait_s: float | None) -> None:
        """Report whether this work may start now.

        Exits with 0 if it may, else with 75 and the reason. Use it in a batch system's prologue: perphctl admit
        batch:cpu=4,mem=8Gi --wait 10m && run-the-job
        """
        _check_work(work)
        until_s = time.monotonic() + (wait_s or 0.0)
        data = out.client.get("whatif", add=work)
        while not data["accepted"] and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(ASK_AGAIN_S, left_s))
            data = out.client.get("whatif", add=work)
        words = "yes" if data["accepted"] else "not now"
        out.say(data, f"{words}: {'; '.join(data['reasons'])}")
        if not data["accepted"]:
            context.exit(EXIT_NOT_NOW)


def _check_work(work: str) -> None:
    """Refuse an invalid work specification as wrong usage. Raises click.UsageError."""
    from perphd.domain.whatif import Arrival  # slow to import

    try:
        Arrival.parse(work)
    except (ValueError, PerphError) as exc:
        raise click.UsageError(str(exc)) from exc


def whatif_parts(data: Any) -> Iterator[Part]:
    """The answer of whatif, in words and a table."""
    from perphd.domain.whatif import WhatIf
    from perphd.domain.wire import decode

    answer = decode(WhatIf, data)
    yield text(
        ("would be admitted: " if answer.accepted else "would have to wait: ") + "; ".join(answer.reasons)
    )
    if available(answer.batch_cores):
        yield text(f"all batch together would get about {answer.batch_cores:.1f} cores")
    if answer.effects:
        columns = ("LRA", "NOW", "AS IT IS", "WITH THE BEST", "CHANCE", "BY")
        yield table("", columns, [_row(effect) for effect in answer.effects], right=(2, 3, 4))


def _row(effect: Effect) -> tuple[str, ...]:
    scores = (f"{p.score:.2f}" if p is not None else "-" for p in (effect.as_is, effect.with_best))
    chance = f"{effect.chance:.0%}" if available(effect.chance) else "-"
    return (
        effect.lra,
        str(effect.health),
        *scores,
        chance,
        str(effect.best) if effect.best is not None else "-",
    )
