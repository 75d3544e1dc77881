"""perphctl cluster: the fleet from the view of the scheduler's extender."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any, Final

import click

from perphd.commands.base import Out, command
from perphd.control.client import Unreachable

DEFAULT_URL: Final = "http://127.0.0.1:9466"
VARIABLE: Final = "PERPHD_EXTENDER"
TIMEOUT_S: Final = 10.0


def add_cluster_command(cli: click.Group) -> None:
    """Add the command to the group."""

    @command(cli)
    @click.option("--extender", metavar="URL", default=DEFAULT_URL, envvar=VARIABLE, show_default=True,
                  help=f"Address of perphd-extender [environment: {VARIABLE}].")  # fmt: skip
    @click.option(
        "--pod",
        metavar="NAMESPACE/NAME",
        help="Explain which nodes were rejected for this pod, and the order of the others.",
    )
    def cluster(out: Out, extender: str, pod: str | None) -> None:
        """Show the fleet as the extender of kube-scheduler sees it.

        Nodes with degraded LRAs come first, then those where copper may take the most. Needs a running
        perphd-extender, but no daemon on this host.
        """
        from perphd.commands.render_cluster import explained_parts, fleet_parts  # slow to import

        if pod is not None:
            data = _answer(f"{extender}/explain?pod={urllib.parse.quote(pod)}")
            out.show(data, lambda: list(explained_parts(data)))
            return
        data = _answer(f"{extender}/fleet")
        out.show(data, lambda: list(fleet_parts(data)))


def _answer(url: str) -> Any:
    import urllib.error  # imported here so that perphctl starts quickly
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise Unreachable(f"{url}: must begin with http:// or https://")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        try:
            said = json.loads(exc.read())["error"]
        except (ValueError, KeyError, TypeError):
            said = str(exc)
        raise Unreachable(f"{url}: {said}") from exc
    except (OSError, ValueError) as exc:
        raise Unreachable(f"{url}: no perphd-extender answers: {getattr(exc, 'reason', exc)}") from exc
