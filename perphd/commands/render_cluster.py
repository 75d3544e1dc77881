"""The fleet and a pod's placement as tables, for a terminal and for the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from perphd.control.numbers import duration
from perphd.control.table import Part, Styled, table, text

_GIB: Final = float(1 << 30)


def fleet_parts(data: Any) -> Iterator[Part]:
    """Status of the extender, its nodes (those with degraded LRAs first), its calls, and problems."""
    nodes = sorted(data["nodes"], key=lambda each: (not each["degraded"], _free(each), each["node"]))
    stale = sum(each["stale"] for each in nodes)
    lras, degraded = sum(each["lras"] for each in nodes), sum(len(each["degraded"]) for each in nodes)
    used, free = (
        sum(value for each in nodes if isinstance(value := each[key]["cpus"], int | float))
        for key in ("copper_used", "copper_allocatable")
    )
    binds = ", reserves and binds copper" if data["binds"] else ""
    yield text(
        f"perphd-extender {data['version']}, policy {data['policy']}{binds}: {len(nodes)} nodes, {stale} stale"
    )
    if not data["synced"]:
        yield text(Styled("The extender has not read the nodes' documents yet.", "yellow"))
    yield text(f"{lras} LRAs, {degraded} degraded; copper uses {used:.1f} CPUs and may take {free:.1f} more")
    rows = [
        (
            each["node"],
            each["mode"],
            Styled(f"stale, {each['age_s']:.0f} s", "yellow") if each["stale"] else f"{each['age_s']:.0f} s",
            str(each["lras"]),
            Styled(", ".join(each["degraded"]), "bold red") if each["degraded"] else "-",
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
    yield table("Nodes", columns, rows, right=(3, 5, 6, 7, 8, 9))
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
    yield table(
        "Calls of the scheduler",
        ("CALL", "ANSWERED", "REFUSED", "p50 ms", "p99 ms"),
        calls,
        right=(1, 2, 3, 4),
    )
    yield from _publisher_parts(data)
    for problem in data["problems"]:
        yield text(problem)


def _publisher_parts(data: Any) -> Iterator[Part]:
    """Publishers that are silent, failed or wrote a document that the extender does not use."""
    refused = data["refused"]
    publishers = data.get("publishers", [])  # an extender of an earlier version reports none
    known = {each["node"]: each for each in publishers}
    unheard = {"version": "", "age_s": None, "silent": False, "problem": "", "problem_s": None}
    named = [known.get(node, {"node": node, **unheard}) for node in sorted({*known, *refused})]
    odd = [each for each in named if each["silent"] or each["problem"] or each["node"] in refused]
    untold = sum(not each["version"] for each in publishers)
    if publishers:
        silent, failing = sum(each["silent"] for each in odd), sum(bool(each["problem"]) for each in odd)
        told = f", {untold} whose version reports no state" if untold else ""
        yield text(f"{len(publishers)} publishers, {silent} silent, {failing} with a problem{told}")
    rows = [
        (
            each["node"],
            each["version"] or "-",
            _age(each),
            f"{each['problem']} (for {duration(each['problem_s'])})" if each["problem"] else "-",
            refused.get(each["node"], "-"),
        )
        for each in odd
    ]
    if rows:
        yield table(
            "Publishers with problems", ("NODE", "VERSION", "HEARD", "LAST ERROR", "DOCUMENT REFUSED"), rows
        )


def _age(each: Any) -> str | Styled:
    if each["age_s"] is None:
        return "-"
    age = f"{each['age_s']:.0f} s ago"
    return Styled(f"silent, {age}", "yellow") if each["silent"] else age


def explained_parts(data: Any) -> Iterator[Part]:
    """The nodes that were rejected for a pod with the reasons, and the order of the others."""
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
