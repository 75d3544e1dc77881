"""Merges samples until they hold enough events to be judged.

A rate of n events has a relative noise of 1/sqrt(n): 100 events give 10 %, the usual tolerance. Percentiles need more
(``monitor.sli.resolution``): 100 requests for p95, 500 for p99. If single samples hold fewer, several are merged: rates
are averaged by time, latencies by requests. Samples between two reports of a source are merged with the one that has
the report. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.admission.settings import PolicySettings
from perphd.domain.policy import Band, WorkloadView
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.sample import READINGS, Quality, Sample, lies_after, sample_of

ENOUGH_EVENTS: Final = 100.0
"""Events for a relative noise of 10 %, the default accepted loss of work."""
ENOUGH_REQUESTS: Final = {"p50": 100.0, "p95": 100.0, "p99": 500.0}
"""Requests needed for work and a latency percentile together."""
LONGEST_S: Final = 10.0
"""Longest time in seconds over which samples are merged. After this time, the merged sample is judged as it is."""

_LATEST: Final = frozenset(n for n in READINGS if n.endswith("_bytes") or n == "threads")
_SUMS: Final = frozenset({"work_events", "latency_events", "sli_window_s"})
_BY_REQUESTS: Final = frozenset(n for n in READINGS if n.startswith("latency_") and n.endswith("_ms"))


@dataclass(frozen=True, slots=True)
class Gathered:
    """Samples not judged yet, merged into one; None if there are none."""

    sample: Sample | None = None


@dataclass(frozen=True, slots=True)
class Awaiting:
    """The missing input of a judgement: ``have`` of ``need`` events, or a source's next report (``need`` is 0)."""

    text: str
    have: float = 0.0
    need: float = 0.0


NOTHING_GATHERED: Final = Gathered()


def gathered_by(
    before: Gathered, view: WorkloadView, settings: PolicySettings, period_s: float
) -> tuple[Gathered, Sample | Awaiting]:
    """Add the LRA's sample to ``before`` as ``gather`` does; a sample without event counts is judged at once.

    The LRA must have a sample and a model.
    """
    assert view.sample is not None
    assert view.model is not None
    sample = view.sample
    counted = available(sample.work_events) or available(sample.latency_events)
    if before.sample is None and not counted and not sample.has(Quality.BETWEEN):
        return before, sample  # the source does not report event counts
    settled_s = view.protected_since_s + settings.settle_s if view.protection is not None else -math.inf
    usual = view.model.reference("work:sli", sample.load_per_s)
    return gather(before, sample, usual, view.spec.objective.latency_percentile, settled_s, period_s)


def gather(
    before: Gathered, sample: Sample, usual: Band | None, percentile: str, settled_s: float, period_s: float
) -> tuple[Gathered, Sample | Awaiting]:
    """Add one sample; returns the sample to judge now, or the missing input.

    Args:
        before: merged samples so far.
        sample: the newest sample.
        usual: usual work rate of the LRA's own indicator at this load, or None. Fewer events than usual are no reason
            to wait longer.
        percentile: the latency percentile judged.
        settled_s: time at which the last change had settled; samples before it are not merged with later
            ones.
        period_s: time between samples.
    """
    known = before.sample
    if known is not None and (
        _flags(known) != _flags(sample)
        or sample.interval_s <= 0.0
        or (lies_after(sample, settled_s, period_s) and not lies_after(known, settled_s, period_s))
    ):
        known = None
    between = sample.has(Quality.BETWEEN)
    whole = sample if known is None else merged(known, sample)
    if between:
        missing = sample.work_rate_per_s
        reason = missing.reason if isinstance(missing, Unavailable) else "the next report is not due yet"
        if available(missing):
            latency = sample.reading(f"latency_{percentile}_ms")
            reason = latency.reason if isinstance(latency, Unavailable) else reason
        return Gathered(whole), Awaiting(f"waiting for the source: {reason}")
    have, need = _events(whole, usual, percentile)
    if have < need and whole.interval_s < LONGEST_S:
        text = f"waiting for enough events: {have:.0f} of {need:.0f}"
        return Gathered(whole), Awaiting(text, have, need)
    return NOTHING_GATHERED, whole


def _events(sample: Sample, usual: Band | None, percentile: str) -> tuple[float, float]:
    """Number of events that count for the judgement, and the number needed; (0, 0) if unknown."""
    work, latency = sample.work_events, sample.latency_events
    if isinstance(work, Unavailable) and isinstance(latency, Unavailable):
        return 0.0, 0.0
    window_s = value_or(sample.sli_window_s, sample.interval_s)
    expected = usual.value * window_s if usual is not None and available(sample.work_rate_per_s) else 0.0
    have = max(value_or(work, 0.0), value_or(latency, 0.0), expected)
    return have, ENOUGH_REQUESTS[percentile] if available(latency) else ENOUGH_EVENTS


def _flags(sample: Sample) -> frozenset[Quality]:
    return frozenset(sample.quality) - {Quality.BETWEEN}


def merged(a: Sample, b: Sample) -> Sample:
    """Two consecutive samples merged into one."""
    seconds = a.interval_s + b.interval_s
    values = {name: _both(name, a, b) for name in READINGS}
    quality = tuple(flag for flag in b.quality if flag is not Quality.BETWEEN)
    return sample_of(b.workload, b.at_s, seconds, values, quality)


def _both(name: str, a: Sample, b: Sample) -> Reading:
    old, new = a.reading(name), b.reading(name)
    if isinstance(new, Unavailable):
        return old
    if isinstance(old, Unavailable) or name in _LATEST or name == "sli_resolution_s":
        return new
    if name in _SUMS:
        return old + new
    if name in _BY_REQUESTS:
        before, after = _weight("latency_events", a), _weight("latency_events", b)
    elif name in ("work_rate_per_s", "load_per_s"):
        before, after = _weight("sli_window_s", a), _weight("sli_window_s", b)
    else:
        before, after = a.interval_s, b.interval_s
    total = before + after
    return (old * before + new * after) / total if total > 0.0 else new


def _weight(name: str, sample: Sample) -> float:
    return value_or(sample.reading(name), sample.interval_s)
