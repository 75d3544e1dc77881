"""Waits until samples hold enough events to be judged, and makes one sample of them.

A rate of n events has a relative noise of 1/sqrt(n): 100 events tell it to 10 %, the usual tolerance. Percentiles take
more (``monitor.sli.resolution``): 100 requests for p95, 500 for p99. At a pace at which samples hold fewer, several are
one: the mean of their rates, weighted with time, and of their latencies, weighted with requests. So are samples between
two reports of a source and the one with its report. Pure.
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
"""Relative noise of a tenth: what is accepted as loss of work by default."""
ENOUGH_REQUESTS: Final = {"p50": 100.0, "p95": 100.0, "p99": 500.0}
"""The same for work and a latency percentile together."""
LONGEST_S: Final = 10.0
"""Samples are gathered for no longer: what is there by then is judged as it is."""

_LATEST: Final = frozenset(n for n in READINGS if n.endswith("_bytes") or n == "threads")
_SUMS: Final = frozenset({"work_events", "latency_events", "sli_window_s"})
_BY_REQUESTS: Final = frozenset(n for n in READINGS if n.startswith("latency_") and n.endswith("_ms"))


@dataclass(frozen=True, slots=True)
class Gathered:
    """Samples that were not judged yet, as one; None while there is none."""

    sample: Sample | None = None


@dataclass(frozen=True, slots=True)
class Awaiting:
    """Evidence that a judgement waits for: ``have`` of ``need`` events, or a source's next report (``need`` is 0)."""

    text: str
    have: float = 0.0
    need: float = 0.0


NOTHING_GATHERED: Final = Gathered()


def gathered_by(
    before: Gathered, view: WorkloadView, settings: PolicySettings, period_s: float
) -> tuple[Gathered, Sample | Awaiting]:
    """``gather`` for an LRA that is there: it has a sample and a model."""
    assert view.sample is not None
    assert view.model is not None
    sample = view.sample
    counted = available(sample.work_events) or available(sample.latency_events)
    if before.sample is None and not counted and not sample.has(Quality.BETWEEN):
        return before, sample  # it does not tell of how many events
    settled_s = view.protected_since_s + settings.settle_s if view.protection is not None else -math.inf
    usual = view.model.reference("work:sli", sample.load_per_s)
    return gather(before, sample, usual, view.spec.objective.latency_percentile, settled_s, period_s)


def gather(
    before: Gathered, sample: Sample, usual: Band | None, percentile: str, settled_s: float, period_s: float
) -> tuple[Gathered, Sample | Awaiting]:
    """Take one sample: the one to be judged now, or what is waited for.

    Args:
        before: what was gathered until now.
        sample: the newest.
        usual: the work rate of its own indicator that is usual at this load: that fewer events come than usual is no
            reason to wait for longer. None: not known.
        percentile: the latency that is judged.
        settled_s: when the last change had settled: what lies before is not mixed with what lies after.
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
    whole = sample if known is None else _merged(known, sample)
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
    """Events that count, and those that are needed; (0, 0) where they are not known."""
    work, latency = sample.work_events, sample.latency_events
    if isinstance(work, Unavailable) and isinstance(latency, Unavailable):
        return 0.0, 0.0
    window_s = value_or(sample.sli_window_s, sample.interval_s)
    expected = usual.value * window_s if usual is not None and available(sample.work_rate_per_s) else 0.0
    have = max(value_or(work, 0.0), value_or(latency, 0.0), expected)
    return have, ENOUGH_REQUESTS[percentile] if available(latency) else ENOUGH_EVENTS


def _flags(sample: Sample) -> frozenset[Quality]:
    return frozenset(sample.quality) - {Quality.BETWEEN}


def _merged(a: Sample, b: Sample) -> Sample:
    """Two samples that follow each other as one."""
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
