"""A model in words, tables and bars. Pure functions of domain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from perphd.control.numbers import NONE, duration
from perphd.control.table import Cell, Part, Styled, table, text
from perphd.domain.allocation import IDLE
from perphd.domain.belief import (
    AllocationBelief,
    ForecastOrigin,
    ModelOrigin,
    ModelSummary,
    ModelView,
    ReferenceBelief,
)
from perphd.domain.policy import Band
from perphd.domain.reading import available

BAR = 20
"""Width of a bar in characters."""
KNOWN_SUPPORT = 2.0
"""Minimum number of supporting samples for a prediction to be shown as learned from samples."""
_SHOWN_WEIGHTS = (100, IDLE)
_LIST_HEADS = ("LRA", "VERSION", "SAMPLES", "CELLS", "LOAD", "SAVED", "ORIGIN")
_ORIGIN_HEADS = ("HOST", "SHARE", "DISTANCE", "AGE", "VERSION")
_REFERENCE_HEADS = ("SIGNAL", "LOAD/S", "", "VALUE", "BOUNDS", "SUPPORT")
_LATTICE_HEADS = ("BATCH ON", "WEIGHT", "WORK", "", "BOUNDS", "DELAY", "BOUNDS", "BATCH GETS", "SUPPORT")


def list_parts(summaries: Sequence[ModelSummary]) -> list[Part]:
    """The output of ``perphctl model list``."""
    if not summaries:
        return [text("No LRA is declared, so there is no model: perphctl lra add NAME CGROUP")]
    rows = [
        (s.lra, _version(s), str(s.samples), str(s.cells), _kind(s), _saved(s), s.origin) for s in summaries
    ]
    return [table("", _LIST_HEADS, rows, right=(2, 3))]


def origin_parts(found: ModelOrigin) -> list[Part]:
    """The output of ``perphctl model origin``."""
    known_as = f", which other hosts know as {found.application}" if found.application else ""
    lines = [f"{found.lra}{known_as}: {found.origin or 'learned here'}"]
    if found.outcome:
        lines.append(f"the start from other hosts: {found.outcome}")
    if found.looked_unix_s and found.points:
        lines.append(f"{found.points} points at which at least three of them had an estimate")
    parts: list[Part] = [text(*lines)]
    if found.looked_unix_s:
        parts += _host_parts("Hosts that counted", "Hosts that did not count", found)
    for each in found.forecasts:
        parts.append(text(_forecast_line(each)))
        about = f"the forecasts of {each.series}"
        parts += _host_parts(f"Hosts that counted for {about}", f"Hosts that did not count for {about}", each)
    return parts


def _forecast_line(found: ForecastOrigin) -> str:
    if not found.ranked:
        return f"forecasts of {found.series}: from this host alone, because too few other hosts have them"
    told = f"forecasts of {found.series} began with the ranking of other hosts: {', '.join(found.ranked)}"
    return told if found.in_force else f"{told}; this host's own scores decide now"


def _host_parts(counted: str, not_counted: str, found: ModelOrigin | ForecastOrigin) -> Iterator[Part]:
    if found.hosts:
        rows = [
            (h.contributor, f"{h.share_ratio:.0%}", f"{h.distance:.2f}", duration(h.age_s), h.version or NONE)
            for h in sorted(found.hosts, key=lambda h: -h.share_ratio)
        ]
        yield table(counted, _ORIGIN_HEADS, rows, right=(1, 2, 3))
    if found.left_out:
        yield table(
            not_counted, ("HOST", "WHY"), [(each.contributor, each.reason) for each in found.left_out]
        )


def model_parts(view: ModelView, everything: bool = False) -> Iterator[Part]:
    """The output of ``perphctl model show``. ``everything``: include batch weights between idle and the usual one."""
    s = view.summary
    lines: list[Cell] = [
        f"{s.lra}: {s.samples} samples in {s.cells} cells, {_kind(s)} load; {s.origin}; saved: {_saved(s)}"
    ]
    if view.skipped:
        skipped = ", ".join(f"{item.reason} {item.count}" for item in view.skipped)
        lines.append(Styled(f"not learned from: {skipped}", "dim"))
    yield text(*lines)
    if view.reference:
        yield table(
            "Undisturbed: the reference",
            _REFERENCE_HEADS,
            _reference_rows(view.reference),
            right=(1, 3, 4, 5),
        )
    else:
        yield text(
            f"The undisturbed performance of {s.lra} is not known yet: perphd needs time in which batch "
            f"rests or {s.lra} is well protected."
        )
    context = view.context
    yield table(
        f"Predicted if batch wants all {context.total_cores:g} cores and {s.lra} {context.lra_demand_cores:.1f}; "
        "work and delay are ratios to the reference",
        _LATTICE_HEADS,
        [_lattice_row(item, view) for item in _chosen(view, everything)],
        right=(1, 3, 4, 5, 6, 7, 8),
    )
    yield text(
        Styled(
            "*: in force. Bars: █ at least, ▒ between the bounds. Support: number of samples behind a prediction; with "
            "few samples, it comes from physics alone.",
            "dim",
        )
    )


def bar(low: float, high: float, most: float) -> str:
    """A bar, filled up to ``low`` and shaded up to ``high``; its full length is ``most``."""
    if not most > 0:
        return "·" * BAR
    full, shaded = (round(BAR * min(max(v / most, 0.0), 1.0)) for v in (low, high))
    return "█" * full + "▒" * (shaded - full) + "·" * (BAR - max(shaded, full))


def _kind(summary: ModelSummary) -> str:
    return "closed" if summary.closed else "open"


def _version(summary: ModelSummary) -> str:
    more = f" (+{summary.earlier_versions} earlier)" if summary.earlier_versions else ""
    return f"{summary.version or NONE}{more}"


def _saved(summary: ModelSummary) -> str:
    saved = summary.saved_ago_s
    return f"{duration(saved)} ago" if available(saved) else "not yet"


def _reference_rows(items: Sequence[ReferenceBelief]) -> Iterable[tuple[Cell, ...]]:
    most: dict[str, float] = {}
    for item in items:
        most[item.signal] = max(most.get(item.signal, 0.0), item.high)
    for item in items:
        yield (
            f"{item.signal} (provisional)" if item.provisional else item.signal,
            f"{item.load_per_s:.3g}" if available(item.load_per_s) else "all",
            bar(item.low, item.high, most[item.signal]),
            f"{item.value:.4g}",
            f"{item.low:.3g}..{item.high:.3g}",
            _support(item.support),
        )


def _chosen(view: ModelView, everything: bool) -> list[AllocationBelief]:
    """Allocations, from most to least for batch."""
    found = [
        item
        for item in view.lattice
        if everything
        or item.allocation == view.current
        or item.allocation.cpu.exclusive
        or item.allocation.cpu.batch_weight in _SHOWN_WEIGHTS
    ]
    return sorted(
        found,
        key=lambda i: (
            -i.allocation.cpu.batch_cores,
            i.allocation.cpu.exclusive,
            -i.allocation.cpu.weight_ratio,
        ),
    )


def _lattice_row(item: AllocationBelief, view: ModelView) -> tuple[Cell, ...]:
    cpu, work, z = item.allocation.cpu, item.work, view.confidence_z
    style = "" if work.support >= KNOWN_SUPPORT else "dim"
    where = f"{cpu.batch_cores}/{cpu.total_cores}" + (" apart" if cpu.exclusive else "")
    where += " *" if item.allocation == view.current else ""
    return (
        where,
        "idle" if cpu.batch_weight is IDLE else str(cpu.batch_weight),
        Styled(bar(work.at(-z), work.at(z), 1.0), style),
        f"{work.value:.2f}",
        _bounds(work, z),
        f"{item.delay.value:.2f}",
        _bounds(item.delay, z),
        f"{item.batch_cores.value:.1f}",
        Styled(_support(work.support), style),
    )


def _bounds(band: Band, z: float) -> str:
    return f"{band.at(-z):.2f}..{band.at(z):.2f}"


def _support(samples: float) -> str:
    return f"{samples:.1f}" if samples >= 0.05 else NONE
