"""perphctl lra, batch and sli: workloads added at run time, and readings pushed to the daemon."""

from __future__ import annotations

from typing import Any

import click

from perphd.commands.base import Out, command
from perphd.commands.number import Number


def add_workload_commands(cli: click.Group) -> None:
    """Add the groups to perphctl."""
    cli.add_command(lra)
    cli.add_command(batch)
    cli.add_command(sli)


@click.group()
def lra() -> None:
    """Manage long-running applications.

    perphd keeps them at their performance targets.
    """


@click.group()
def batch() -> None:
    """Manage batch: work that gives way to LRAs."""


@click.group()
def sli() -> None:
    """Push readings from an application."""


_mode = click.option(
    "--mode",
    type=click.Choice(["observe", "enforce"]),
    help="Mode of this workload [default: the daemon's].",
)


@command(lra, "add")
@click.argument("name")
@click.argument("cgroup")
@click.option("--priority", type=int, help="Rank among the LRAs, highest first [default: 100].")
@_mode
@click.option("--tolerance-pct", type=Number(), help="Accepted loss of work, in per cent [default: 10].")
@click.option(
    "--delay-tolerance-pct", type=Number(), help="Accepted growth of delay, in per cent [default: 50]."
)
@click.option(
    "--min-work-rate-per-s", type=Number(), help="Absolute target instead: minimum work per second."
)
@click.option(
    "--max-latency-ms",
    type=Number(),
    help="Absolute target instead: highest latency in milliseconds; needs --sli.",
)
@click.option(
    "--latency-percentile",
    type=click.Choice(["p50", "p95", "p99"]),
    help="Percentile of the latency target [default: p95].",
)
@click.option(
    "--sli",
    "source",
    metavar="SOURCE",
    help="SLI source: mysql, postgresql, redis, prometheus, file, command, push.",
)
@click.option(
    "-o",
    "--sli-option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="An option of the SLI source; repeatable.",
)
def add_lra(
    out: Out,
    name: str,
    cgroup: str,
    source: str | None,
    options: tuple[str, ...],
    delay_tolerance_pct: float | None,
    **keys: Any,
) -> None:
    """Protect the application in CGROUP.

    CGROUP is a path such as /system.slice/mariadb.service (see perphctl groups). The daemon remembers the workload
    across restarts. For keys and bounds, see perphd.conf(5).
    """
    body = {"kind": "lra", "name": name, "cgroup": cgroup, **_given(keys)}
    if delay_tolerance_pct is not None:
        body["tuning"] = {"delay_tolerance_pct": delay_tolerance_pct}
    if source is not None:
        body["sli"] = {"source": source, **dict(_pair(option) for option in options)}
    elif options:
        raise click.UsageError("--sli-option requires --sli")
    _add(out, body)


@command(batch, "add")
@click.argument("name")
@click.argument("cgroup")
@_mode
@click.option(
    "--min-cores",
    type=Number(),
    help="Guaranteed CPU time, in CPUs [default: no guarantee, but it keeps one core].",
)
@click.option(
    "--min-memory", metavar="SIZE", help="Never limit its memory below this size, e.g. 1G [default: 0]."
)
def add_batch(out: Out, name: str, cgroup: str, **keys: Any) -> None:
    """Let the work in CGROUP give way to LRAs.

    The daemon remembers the workload across restarts.
    """
    _add(out, {"kind": "batch", "name": name, "cgroup": cgroup, **_given(keys)})


@command(lra, "list")
def list_lra(out: Out) -> None:
    """List the LRAs."""
    _list(out, "lra")


@command(batch, "list")
def list_batch(out: Out) -> None:
    """List the batch workloads."""
    _list(out, "batch")


@command(lra, "rm")
@click.argument("name")
def remove_lra(out: Out, name: str) -> None:
    """Restore an LRA's settings and remove it."""
    _remove(out, "lra", name)


@command(batch, "rm")
@click.argument("name")
def remove_batch(out: Out, name: str) -> None:
    """Restore a workload's settings and remove it."""
    _remove(out, "batch", name)


@command(sli, "push")
@click.argument("name")
@click.option("--work-rate", "work_rate_per_s", type=Number(), help="Completed work per second.")
@click.option("--load", "load_per_s", type=Number(), help="Requested work per second.")
@click.option("--latency-p50-ms", type=Number(), help="Median latency in milliseconds.")
@click.option("--latency-p95-ms", type=Number(), help="95th percentile of the latency in milliseconds.")
@click.option("--latency-p99-ms", type=Number(), help="99th percentile of the latency in milliseconds.")
def push(out: Out, name: str, **readings: float | None) -> None:
    """Push readings of the LRA NAME.

    Its SLI source must be "push".
    """
    given = _given(readings)
    if not given:
        raise click.UsageError("give at least one reading, e.g. --work-rate 1200")
    answer = out.client.send("POST", f"workloads/{_quoted(name)}/sli", given)
    out.say(answer, f"{name}: readings accepted")


def _add(out: Out, body: dict[str, Any]) -> None:
    answer = out.client.send("POST", "workloads", body)
    out.warn(answer["warnings"])
    out.say(answer, f"{body['kind']} {body['name']} added: {body['cgroup']}")


def _list(out: Out, kind: str) -> None:
    from perphd.control.table import table, text

    found = [item for item in out.client.get("workloads")["workloads"] if item["kind"] == kind]
    hidden = (
        "kind",
        "name",
        "cgroup",
        "present",
        "effective_mode",
        "mode",
        "added_at_run_time",
        "declared_by",
    )
    rows = [
        (
            item["name"],
            item["cgroup"],
            "yes" if item["present"] else "waiting",
            item["effective_mode"],
            "itself" if item["declared_by"] else "run time" if item["added_at_run_time"] else "file",
            ", ".join(f"{key} {_shown(value)}" for key, value in item.items() if key not in hidden)
            or "defaults",
        )
        for item in found
    ]
    columns = ("NAME", "CGROUP", "PRESENT", "MODE", "DECLARED", "SETTINGS")
    none = text(f"No {kind} is declared: perphctl {kind} add NAME CGROUP")
    out.show({"workloads": found}, lambda: [table("", columns, rows)] if rows else [none])


def _remove(out: Out, kind: str, name: str) -> None:
    answer = out.client.send("DELETE", f"workloads/{_quoted(name)}?kind={kind}")
    out.warn(answer["warnings"])
    out.say(answer, f"{kind} {name} removed")


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _pair(option: str) -> tuple[str, str]:
    key, found, value = option.partition("=")
    if not found or not key:
        raise click.UsageError(f"--sli-option {option!r} is not KEY=VALUE")
    return key, value


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return str(value)


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
