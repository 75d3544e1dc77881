"""perphctl cluster: the fleet as the scheduler's extender knows it."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any, Final

import click

from perphd.commands.base import Out, command
from perphd.control.client import Unreachable
from perphd.control.table import Part, table, text

DEFAULT_URL: Final = "http://127.0.0.1:9466"
VARIABLE: Final = "PERPHD_EXTENDER"
TIMEOUT_S: Final = 10.0
_GIB: Final = float(1 << 30)


def add_cluster_command(cli: click.Group) -> None:
    """Put the command into the group."""

    @command(cli)
    @click.option("--extender", metavar="URL", default=DEFAULT_URL, envvar=VARIABLE, show_default=True,
                  help=f"Address of perphd-extender [environment: {VARIABLE}].")  # fmt: skip
    @click.option(
        "--pod", metavar="NAMESPACE/NAME", help="Say why this pod's candidates stayed, went or came first."
    )
    def cluster(out: Out, extender: str, pod: str | None) -> None:
        """Show the fleet as the extender of kube-scheduler sees it.

        Nodes with degraded LRAs come first, then by what copper may still take. Needs a running perphd-extender, and no
        daemon on this host.
        """
        if pod is not None:
            data = _answer(f"{extender}/explain?pod={urllib.parse.quote(pod)}")
            out.show(data, lambda: list(_explained(data)))
            return
        data = _answer(f"{extender}/fleet")
        out.show(data, lambda: list(_parts(data)))


def _answer(url: str) -> Any:
    import urllib.error  # here: perphctl starts without it
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise Unreachable(f"{url}: allowed are http:// and https://")
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


def _parts(data: Any) -> Iterator[Part]:
    nodes = sorted(data["nodes"], key=lambda each: (not each["degraded"], _free(each), each["node"]))
    stale = sum(each["stale"] for each in nodes)
    binds = ", reserves and binds copper" if data["binds"] else ""
    yield text(
        f"perphd-extender {data['version']}, policy {data['policy']}{binds}: {len(nodes)} nodes, {stale} stale"
    )
    rows = [
        (
            each["node"],
            each["mode"],
            "stale" if each["stale"] else f"{each['age_s']:.0f} s",
            str(each["lras"]),
            ", ".join(each["degraded"]) or "-",
            _cell(each["used"]["cpus"]),
            _cell(each["capacity"]["cpus"]),
            _cell(each["copper_used"]["cpus"]),
            _cell(each["copper_allocatable"]["cpus"]),
            _cell(each["copper_allocatable"]["memory_bytes"], _GIB),
        )
        for each in nodes
    ]
    columns = (
        "NODE", "MODE", "AGE", "LRAS", "DEGRADED", "CPUS USED", "OF", "BY COPPER", "COPPER MAY TAKE", "MEMORY GiB",
    )  # fmt: skip
    yield table("", columns, rows, right=(3, 5, 6, 7, 8, 9))
    calls = [
        (
            verb,
            str(each["calls"]),
            str(each["errors"]),
            f"{1e3 * each['p50_s']:.1f}",
            f"{1e3 * each['p99_s']:.1f}",
        )
        for verb, each in data["calls"].items()
    ]
    yield table("", ("CALL", "ANSWERED", "REFUSED", "p50 ms", "p99 ms"), calls, right=(1, 2, 3, 4))
    for node, reason in sorted(data["refused"].items()):
        yield text(f"{node}: its document is not used: {reason}")
    for problem in data["problems"]:
        yield text(problem)


def _explained(data: Any) -> Iterator[Part]:
    for verb, each in data.items():
        yield text(
            f"{verb} of {each['pod']} ({each['band']}) by {each['policy']}: {each['candidates']} candidates, "
            f"{each['fresh']} with a fresh document, {each['stale']} stale, {each['unknown']} unknown"
        )
        if each["refused"]:
            rows = [(reason, str(count)) for reason, count in each["refused"].items()]
            yield table("", ("REFUSED BECAUSE", "NODES"), rows, right=(1,))
        best = [
            (
                one["node"],
                f"{one['score']:.4g}",
                ", ".join(f"{name} {value:.4g}" for name, value in one["terms"].items()),
            )
            for one in each["best"]
        ]
        if best:
            yield table("", ("BEST", "SCORE", "TERMS"), best, right=(1,))


def _free(node: Any) -> float:
    free = node["copper_allocatable"]["cpus"]
    return -free if isinstance(free, int | float) else 0.0


def _cell(value: Any, unit: float = 1.0) -> str:
    return f"{value / unit:.1f}" if isinstance(value, int | float) else "-"
