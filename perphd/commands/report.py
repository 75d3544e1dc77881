"""perphctl report: performance of LRAs and batch, and perphd's actions (or hypothetical ones).

perphctl computes the report itself, from the store.
"""

from __future__ import annotations

import click

from perphd.commands.base import Out, command
from perphd.commands.pause import Duration
from perphd.commands.trial import write_text
from perphd.control.client import NotPermitted
from perphd.domain.errors import PerphError


def add_report_command(cli: click.Group) -> None:
    """Add the command to perphctl."""
    command(cli)(report)


@click.option(
    "--since", "since_s", type=Duration(), default="7d", show_default=True, metavar="TIME",
    help="Length of the period up to now: 6h, 2d, 7d.",
)  # fmt: skip
@click.option(
    "--html", "html_path", metavar="FILE", help="Also write the report with charts to this HTML file."
)
@click.option("--store", metavar="FILE", help="Read this file instead of the daemon's store.")
def report(out: Out, since_s: float, html_path: str | None, store: str | None) -> None:
    """Summarise what perphd did, or would have done.

    In observe: time on target as measured and as predicted with perphd, what batch would have lost, how often and why
    perphd would have acted, with confidence bands. In enforce: the same figures for what happened. The last table shows
    what each workload reserves, uses and should reserve. Reads the store.
    """
    from perphd.commands.histories import histories
    from perphd.commands.render_report import html, report_parts, verdict
    from perphd.commands.reservations import find
    from perphd.domain.wire import encode
    from perphd.monitor.report_rows import read_history
    from perphd.report.rows import WINDOW_S
    from perphd.report.summary import summarise
    from perphd.sizing.rows import saved, size_rows

    if since_s < WINDOW_S:
        raise click.UsageError(
            f"--since {since_s:g}s is less than one window (allowed: {WINDOW_S:g}s or more)"
        )
    place = find(out, store)
    path = place.store
    try:
        found = summarise(read_history(path, since_s))
        sizes = size_rows(histories(place, since_s))
    except PermissionError as exc:
        raise NotPermitted(
            f"{path}: this user may not read the store; run as root or as the daemon's user"
        ) from exc
    if not found.lras:
        text = "no decision about an LRA is stored for this time; declare an LRA, or take a longer --since"
        raise PerphError(f"{path}: {text}")
    data = {
        "store": path,
        "verdict": verdict(found),
        "report": encode(found),
        "sizes": encode(sizes),
        "could_be_saved": saved(sizes),
    }
    if html_path is not None:
        write_text(html_path, html(found, sizes))
        out.say(data, data["verdict"], f"{html_path}: written")
        return
    out.show(data, lambda: report_parts(found, sizes))
