"""perphctl size, forecast and headroom as text: at most 80 columns, every number with its unit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from perphd.control.table import Part, Table, Text, clean, table, text
from perphd.domain.reading import Reading, Unavailable
from perphd.domain.units import format_bytes

if TYPE_CHECKING:
    from perphd.commands.sizing import HostHeadroom, WorkloadForecast, WorkloadSize
    from perphd.forecast.backtest import PeakScore
    from perphd.forecast.following import ModelScore
    from perphd.forecast.headroom import PeakOutlook
    from perphd.sizing.recommendation import Recommendation

COLUMNS: Final = 80
TITLES: Final = {
    "cpu": "cpu",
    "memory": "memory",
    "cpu_usage_cores": "cpu",
    "memory_working_set_bytes": "working set",
    "llc_occupancy_bytes": "cache",
    "mbw_bytes_per_s": "bandwidth",
    "load_per_s": "load",
}
"""Short names of series and resources."""


def amount(value: float, of: str) -> str:
    """A number with its unit and no space: ``1.45cores``, ``1.5GiB``, ``2.0GiB/s``, ``120/s``."""
    if of in ("cpu", "cpu_usage_cores"):
        return f"{value:.2f}cores" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}cores"
    if of == "load_per_s":
        return f"{value:.4g}/s" if abs(value) < 10_000 else f"{value:.0f}/s"
    return format_bytes(value).replace(" ", "") + ("/s" if of == "mbw_bytes_per_s" else "")


def cell(value: Reading, of: str) -> str:
    """The amount, or a dash."""
    return "-" if isinstance(value, Unavailable) else amount(value, of)


def wrapped(*sentences: str) -> Text:
    """Sentences as lines of at most 80 columns."""
    lines: list[str] = []
    for sentence in sentences:
        lines += textwrap.wrap(clean(sentence), COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
    return text(*lines)


def size_parts(found: Sequence[WorkloadSize], ended: Sequence[str], stale: str) -> list[Part]:
    """Reserved, used, forecast and recommended amounts for each workload."""
    parts: list[Part] = []
    for workload in found:
        rows = [_size_row(item) for item in workload.resources]
        columns = ("RESOURCE", "RESERVED", "NOW", "P50", "P95", "P99", "MAX")
        parts.append(table(_title(workload.workload), columns, rows, right=range(1, 7)))
        parts.append(wrapped(*(line for item in workload.resources for line in _size_lines(item))))
    return [*parts, *_notes(ended, stale)]


def forecast_parts(
    found: Sequence[WorkloadForecast], ended: Sequence[str], stale: str, *, models: bool
) -> list[Part]:
    """The acting model and its forecast for each series; ``models``: all models side by side."""
    parts: list[Part] = []
    for workload in found:
        rows, notes, scores = [], [], []
        for series in workload.series:
            name = TITLES[series.series]
            ahead = series.outlook.next_window
            if isinstance(ahead, Unavailable):
                notes.append(f"{name}: {ahead.reason}")
            else:
                numbers = (ahead.mean, ahead.p50, ahead.p90, ahead.p99)
                rows.append((name, ahead.model, *(amount(value, series.series) for value in numbers)))
                if ahead.capped:
                    bound = amount(ahead.p99, series.series)
                    notes.append(f"{name}: the bound is capped at the host's capacity, {bound}")
            acting = "" if isinstance(ahead, Unavailable) else ahead.model
            scores += [_score_row(name, series.series, score, acting) for score in series.outlook.scores]
        columns = ("SERIES", "MODEL", "MEAN", "P50", "P90", "P99")
        if rows:
            parts.append(table(f"{_title(workload.workload)}, next 60s", columns, rows, right=range(2, 6)))
        else:
            parts.append(wrapped(f"{_title(workload.workload)}: no forecast"))
        if models and scores:
            parts.append(_scores(scores))
        if notes:
            parts.append(wrapped(*notes))
    return [*parts, *_notes(ended, stale)]


def headroom_parts(found: Sequence[HostHeadroom], stale: str) -> list[Part]:
    """The predicted peak by every predictor, the selected one, and the headroom."""
    parts: list[Part] = []
    for host in found:
        name = host.resource.value
        title = f"{name}: {host.workloads} workload{'' if host.workloads == 1 else 's'}, "
        title += f"{host.outlook.windows} windows of 60s"
        rows = [
            _predictor_row(each, name)
            for each in host.outlook.predictors
            if not isinstance(each.peak, Unavailable)
        ]
        columns = ("PREDICTOR", "PEAK", "TESTED", "UNDER", "AT MOST", "LEAST", "MEAN", "GREATEST")
        parts.append(table(title, columns, rows, right=range(1, 8)) if rows else wrapped(title))
        parts.append(wrapped(*_headroom_lines(host)))
    if any(host.outlook.predictors for host in found):
        parts.append(
            wrapped(
                "PEAK: of the next hour. UNDER: share of past predictions more than 10% below the peak that "
                "followed; AT MOST: the bound on it that decides. LEAST, MEAN, GREATEST: relative errors."
            )
        )
    return [*parts, *_notes((), stale)]


def _title(workload: str) -> str:
    return clean(workload)


def _size_row(item: Recommendation) -> tuple[str, ...]:
    name, held = item.resource.value, item.reservation
    reserved = cell(held.amount, name)
    if isinstance(held.amount, Unavailable):
        reserved = f"min {amount(held.least, name)}" if held.least else "none set"
        if held.amount.reason.startswith("unknown") and not held.least:
            reserved = "unknown"
    if isinstance(item.used, Unavailable):
        return (name, reserved, *["-"] * 5)
    used = item.used
    numbers = (used.now, used.p50, used.p95, used.p99, used.greatest)
    return (name, reserved, *(amount(value, name) for value in numbers))


def _size_lines(item: Recommendation) -> Iterable[str]:
    name = item.resource.value
    ahead = item.outlook.next_window
    if isinstance(item.recommended, Unavailable):
        yield f"{name}: no recommendation: {item.recommended.reason}"
        return
    if not isinstance(ahead, Unavailable):
        bound = f"{amount(ahead.p99, name)} in 99%"
        yield (
            f"{name}: next 60s {amount(ahead.mean, name)}, at most "
            f"{f'all that the host has, {amount(ahead.p99, name)}' if ahead.capped else bound} "
            f"(model {ahead.model}); size for that {cell(item.next_window, name)}"
        )
    held = item.reservation
    instead = ""
    if not isinstance(held.amount, Unavailable):
        instead = f" instead of {amount(held.amount, name)} ({held.source})"
    yield (
        f"{name}: recommended {amount(item.recommended, name)}{instead}: {item.reason}; "
        f"confidence {item.confidence} ({item.windows} windows)"
    )
    if not isinstance(item.reclaimable, Unavailable):
        yield f"{name}: could be reclaimed now: {amount(item.reclaimable, name)}"


def _score_row(name: str, of: str, score: ModelScore, acting: str) -> tuple[str, ...]:
    acts = "acts" if score.name == acting else ""
    loss = amount(score.loss, of)
    return (name, score.name, str(score.scored), loss, f"{score.covered_ratio:.1%}", acts)


def _scores(rows: Sequence[tuple[str, ...]]) -> Table:
    columns = ("SERIES", "MODEL", "SCORED", "LOSS", "COVERED", "")
    return table("Models: pinball loss of the 99% bound, and its coverage", columns, rows, right=(2, 3, 4))


def _predictor_row(each: PeakOutlook, of: str) -> tuple[str, ...]:
    score: PeakScore | None = each.horizon
    if score is None:
        return (each.name, cell(each.peak, of), "0", *["-"] * 5)
    shares = (score.under_ratio, score.under_bound)
    errors = (score.least_error, score.mean_error, score.greatest_error)
    return (
        each.name,
        cell(each.peak, of),
        str(score.predictions),
        *(f"{share:.1%}" for share in shares),
        *(f"{error:+.0%}" for error in errors),
    )


def _headroom_lines(host: HostHeadroom) -> Iterable[str]:
    name = host.resource.value
    absent: dict[str, list[str]] = {}
    for each in host.outlook.predictors:
        if isinstance(each.peak, Unavailable) and each.peak.reason != host.outlook.reason:
            absent.setdefault(each.peak.reason, []).append(each.name)
    for reason, names in absent.items():
        yield f"{', '.join(names)}: {reason}"
    if host.outlook.picked is None:
        yield f"selected: none: {host.outlook.reason}"
    else:
        yield f"selected: {host.outlook.reason}"
    if isinstance(host.headroom, Unavailable):
        again = host.headroom.reason == host.outlook.reason
        yield "headroom: unknown" + ("" if again else f": {host.headroom.reason}")
    else:
        peak, capacity = cell(host.outlook.peak, name), cell(host.capacity, name)
        if host.headroom < 0:
            more = amount(-host.headroom, name)
            yield f"headroom: none: a peak of {peak} needs {more} more than the capacity of {capacity}"
        else:
            yield f"headroom: {amount(host.headroom, name)} of {capacity}, with a peak of {peak}"
        if isinstance(host.others_now, Unavailable):
            yield "leave room: the store does not contain the use of anything but perphd's workloads"
        elif host.others_now > 0:
            others = amount(host.others_now, name)
            yield f"leave room: everything but perphd's workloads uses {others} now, which is not in the store"


def _notes(ended: Sequence[str], stale: str) -> list[Part]:
    lines = [f"Not sampled in the last hour: {', '.join(ended)}; name a workload to see it"] if ended else []
    lines += [stale] if stale else []
    return [wrapped(*lines)] if lines else []
