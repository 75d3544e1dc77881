"""``perphctl top``: interactive on a terminal; else, or with ``--json`` or ``--plain``, the status repeatedly."""

from __future__ import annotations

import json
import os
import sys
import time

import click

from perphd.commands.base import Out
from perphd.commands.published import published
from perphd.commands.render_status import status_parts
from perphd.control.table import plain
from perphd.domain.errors import PerphError
from perphd.domain.extras import how_to_get
from perphd.domain.status import AgentStatus
from perphd.domain.wire import decode


def run(out: Out, interval_s: float, count: int | None, as_text: bool) -> None:
    """Run until Ctrl-C, ``q``, or (as text) ``count`` updates.

    Raises:
        PerphError: the daemon refuses, or a package is missing.
    """
    if as_text or count is not None or out.as_json or not is_terminal():
        _print(out, interval_s, count)
        return
    try:
        from perphd.commands.top.app import Top
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] != "textual":
            raise
        text = f"top needs the package textual: {how_to_get('top')}. Without it: perphctl top --plain"
        raise PerphError(text) from exc
    from perphd.commands.top.source import Source

    Top(Source(out.client), interval_s).run()


def is_terminal() -> bool:
    """True if standard input and output are a terminal that can draw a screen."""
    return os.environ.get("TERM", "dumb") not in ("", "dumb") and sys.stdin.isatty() and sys.stdout.isatty()


def _print(out: Out, interval_s: float, count: int | None) -> None:
    shown = 0
    while count is None or shown < count:
        if shown:
            time.sleep(interval_s)
        data = out.client.get("status")
        if out.as_json:
            click.echo(json.dumps(published(data), ensure_ascii=False))
        else:
            click.echo(plain(status_parts(decode(AgentStatus, data), data["clock"]["monotonic_s"])))
        sys.stdout.flush()
        shown += 1
