"""The report of a period in words, tables and charts."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Final

from perphd.commands import html_page, svg
from perphd.commands.render_sizing import amount, wrapped
from perphd.control.numbers import duration
from perphd.control.table import Part, Styled, Table, table, text
from perphd.domain.reading import Reading, available
from perphd.domain.workload import Mode
from perphd.report.calibration import BAND, Banded
from perphd.report.summary import LEAST_S, LraSummary, Report
from perphd.sizing.rows import SizeRow, saved

_CLEAR_PCT: Final = 1.0
LITTLE_H: Final = 24.0
"""Minimum number of hours that cover a day's variation of load and batch."""


def verdict(report: Report) -> str:
    """The result in one sentence."""
    said = [_observed(lra) for lra in report.lras if lra.observed is not None]
    said += [
        f"{lra.lra} was on target for {lra.enforced.pct:.0f} % of the time with perphd enforcing"
        for lra in report.lras
        if lra.enforced is not None
    ]
    if not said:
        return "Nothing can be said yet: perphd is still learning what the applications achieve undisturbed."
    batch = report.batch.predicted_pct
    if batch is not None:
        said.append(
            f"batch would have kept about {batch.pct:.0f} % of its CPU time "
            f"({batch.low_pct:.0f} to {batch.high_pct:.0f} %)"
        )
    if any(lra.too_short_s is not None for lra in report.lras):
        said.append("what perphd would have changed is not known yet")
    return f"{'; '.join(said)}."


def facts(report: Report) -> tuple[str, ...]:
    """The basis of the figures."""
    length = duration(report.until_s - report.since_s)
    lines = [f"{length} of samples, {_time(report.since_s)} to {_time(report.until_s)}."]
    if waits := {lra.lra: lra.too_short_s for lra in report.lras if lra.too_short_s is not None}:
        so_far = ", ".join(f"{name} {duration(judged_s)}" for name, judged_s in waits.items())
        first_s = report.until_s + LEAST_S - max(waits.values())
        lines.append(
            f"Predictions take {duration(LEAST_S)} that could be judged (so far: {so_far}). The first follows at "
            f"{_time(first_s)} at the earliest, if the daemon runs until then and knows the target."
        )
    known_h = max((lra.observed.hours for lra in report.lras if lra.observed is not None), default=0.0)
    if report.is_predicted and known_h < LITTLE_H:
        lines.append(
            f"This is a short time: the predictions rest on {duration(3600.0 * known_h)} that could be judged, "
            "and hold for that time alone. A day or more covers the daily load and batch."
        )
    if report.is_predicted:
        lines.append(
            f"Predictions for observed time have bands that held in at least {100 * BAND:.0f} % of simulated weeks; "
            "a trial (perphctl trial) measures instead."
        )
    return tuple(lines)


def report_parts(report: Report, sizes: Sequence[SizeRow] = ()) -> list[Part]:
    """The output of ``perphctl report``."""
    parts = [text(Styled(verdict(report), "bold")), text(*facts(report)), *tables(report)]
    return [*parts, *size_tables(sizes)]


def size_tables(sizes: Sequence[SizeRow]) -> list[Part]:
    """Reservations, use and recommendations, and what these would free; empty without rows."""
    if not sizes:
        return []
    rows = [
        (
            each.workload,
            each.resource,
            _amount(each.reserved, each.resource),
            _amount(each.p99, each.resource),
            _amount(each.greatest, each.resource),
            _amount(each.recommended, each.resource),
            _amount(each.reclaimable, each.resource),
        )
        for each in sizes
    ]
    heads = ("WORKLOAD", "", "RESERVED", "P99", "MAX", "RECOMMENDED", "FREE NOW")
    parts: list[Part] = [table("Sizes", heads, rows, right=range(2, 7)), wrapped(*_confidences(sizes))]
    free = [f"{amount(size, resource)} of {resource}" for resource, size in saved(sizes).items() if size > 0]
    if free:
        said = "The recommendations would reduce the present reservations by "
        parts.append(text(f"{said}{' and '.join(free)}. perphctl size gives the reasons."))
    return parts


def _confidences(sizes: Sequence[SizeRow]) -> list[str]:
    """One sentence for each confidence, which is too long for a column, with the rows that have it."""
    same: dict[str, dict[str, list[str]]] = {}
    for each in sizes:
        same.setdefault(each.confidence, {}).setdefault(each.workload, []).append(each.resource)
    return [f"Confidence {confidence} ({_named(found)})." for confidence, found in same.items()]


def _named(found: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name}: {' and '.join(resources)}" for name, resources in found.items())


def _filled(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> Table:
    """The table without columns that have nothing but dashes, so that it fits a terminal."""
    kept = [i for i in range(len(heads)) if i == 0 or not rows or any(row[i] != "-" for row in rows)]
    return table(
        title,
        [heads[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        right=[at for at, i in enumerate(kept) if i in right],
    )


def tables(report: Report) -> list[Part]:
    """Time on target, batch, actions (or hypothetical ones), and their causes."""
    rows = [
        (
            lra.lra,
            f"{lra.observed.hours:.1f}" if lra.observed else "-",
            f"{lra.observed.pct:.1f} %" if lra.observed else "-",
            _band(lra.predicted) if lra.predicted else "-",
            f"{lra.enforced.hours:.1f}" if lra.enforced else "-",
            f"{lra.enforced.pct:.1f} %" if lra.enforced else "-",
            ", ".join(f"{cause} {duration(3600.0 * hours)}" for cause, hours in lra.degraded[:3]) or "-",
        )
        for lra in report.lras
    ]
    heads = ("LRA", "OBSERVED h", "ON TARGET", "WITH PERPHD", "ENFORCED h", "ON TARGET", "DEGRADED BY")
    parts: list[Part] = [_filled("Time on target", heads, rows, right=(1, 2, 3, 4, 5))]
    batch = report.batch
    parts.append(
        _filled(
            "Batch, all together",
            ("OBSERVED cores", "KEPT WITH PERPHD", "ENFORCED cores", "WORKLOADS"),
            [
                (
                    _cores(batch.observed_cores),
                    _band(batch.predicted_pct) if batch.predicted_pct else "-",
                    _cores(batch.enforced_cores),
                    ", ".join(batch.names) or "none",
                )
            ],
            right=(0, 1, 2),
        )
    )
    acted = [
        (lra.lra, "would" if mode is Mode.OBSERVE else "did", str(action), str(cause), str(count))
        for lra in report.lras
        for mode, action, cause, count in lra.acted
    ]
    if acted:
        parts.append(table("How often and why", ("LRA", "", "ACTION", "CAUSE", "TIMES"), acted, right=(4,)))
    return [*parts, *_reviews(report)]


def _reviews(report: Report) -> list[Part]:
    """The outcomes of reviewed changes; nothing if there are none."""
    judged = [
        (lra.lra, str(lra.kept), str(lra.rolled_back)) for lra in report.lras if lra.kept or lra.rolled_back
    ]
    title = "Changes at their review (other rollbacks are only listed above)"
    return [table(title, ("LRA", "STOOD", "ROLLED BACK"), judged, right=(1, 2))] if judged else []


def html(report: Report, sizes: Sequence[SizeRow] = ()) -> str:
    """The report as one HTML file."""
    blocks = [html_page.paragraphs(facts(report)), html_page.tables(tables(report)[:2])]
    for lra in report.lras:
        blocks += [html_page.heading(f"{lra.lra}: time on target over time"), _chart(lra)]
    acted = [
        (f"{lra.lra}: {'would ' if mode is Mode.OBSERVE else ''}{action} ({cause})", float(count), str(count))
        for lra in report.lras
        for mode, action, cause, count in lra.acted
    ]
    blocks += [html_page.heading("How often and why"), svg.bars(acted)]
    blocks.append(html_page.tables(_reviews(report)))
    blocks.append(html_page.tables(size_tables(sizes)))
    return html_page.page(
        f"perphd report, {_time(report.since_s)} to {_time(report.until_s)}", verdict(report), blocks
    )


def _chart(lra: LraSummary) -> str:
    series = [
        svg.Points("as observed", "observe", [(place.hours, place.observe_pct) for place in lra.places]),
        svg.Points("enforced", "enforce", [(place.hours, place.enforce_pct) for place in lra.places]),
    ]
    bands: list[svg.Points] = []
    if lra.predicted is not None and lra.places:
        ends = (lra.places[0].hours, lra.places[-1].hours)
        bands = [
            svg.Points("", "enforce", [(x, lra.predicted.low_pct) for x in ends]),
            svg.Points("", "enforce", [(x, lra.predicted.high_pct) for x in ends]),
        ]
    shown = [one for one in series if any(y is not None for _, y in one.values)]
    label = "% of time on target" + ("; shaded: predicted with perphd, over all of the time" if bands else "")
    return svg.lines(shown, "hours since the start", label, bands=bands)


def _observed(lra: LraSummary) -> str:
    assert lra.observed is not None
    was, band = lra.observed.pct, lra.predicted
    if band is None:
        judged = duration(3600.0 * lra.observed.hours)
        return f"{lra.lra} was on target for {was:.0f} % of the {judged} in observe that could be judged"
    if band.low_pct <= was + _CLEAR_PCT:
        return f"{lra.lra} was on target for {was:.0f} % of the time, and perphd might not have changed that"
    return (
        f"{lra.lra} was on target for {was:.0f} % of the time, with perphd it would have been about {band.pct:.0f} % "
        f"({band.low_pct:.0f} to {band.high_pct:.0f} %)"
    )


def _band(band: Banded) -> str:
    return f"{band.pct:.0f} % ({band.low_pct:.0f} .. {band.high_pct:.0f})"


def _amount(value: Reading, resource: str) -> str:
    return amount(value, resource) if available(value) else "-"


def _cores(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _time(unix_s: float) -> str:
    return f"{datetime.datetime.fromtimestamp(unix_s).astimezone():%Y-%m-%d %H:%M}"
