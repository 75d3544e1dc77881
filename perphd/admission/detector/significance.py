"""Tests whether an LRA is below its target beyond chance, at one accepted rate of false alarms over all rules.

``policy.false_alarms_per_day`` limits how often perphd may call an LRA DEGRADED while its true performance is
at its reference, that is, on target with its whole tolerance to spare. It covers every rule:
    work, delay         each has one CUSUM for small and one for large shifts (``cusum``). If a channel's target
                        is so far from its noise that the channel cannot use its part of the rate, the other
                        channel gets that part.
    batch just arrived  degradation is likelier then, so up to ``ALERT_TIMES`` times the rate is accepted.
                        These periods use at most ``ALERT_MOST`` of a day's false alarms.
    one blatant sample  ``SINGLE_SHARE`` of the rate, beside batch that is restricted or has just arrived

Without a reference, the margins are those of the default tolerances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.admission.detector import cusum
from perphd.admission.detector.cusum import Baseline, Limits
from perphd.domain.policy import Band
from perphd.domain.reading import Reading, available
from perphd.domain.sample import Sample
from perphd.domain.signals import Performance
from perphd.domain.workload import Objective

ALERT_TIMES: Final = 60.0
"""Assumed factor on the likelihood of degradation just after batch has arrived."""
ALERT_MOST: Final = 0.4
"""Largest share of the accepted false alarms that may occur shortly after batch has arrived."""
ALERT_SHARE: Final = 0.01
"""Initial estimate of the share of time shortly after batch has arrived: about half a minute per hour."""
ALERT_MEMORY_S: Final = 6 * 3600.0
AIM, AIM_BY_RHO = 0.9, 0.35
"""Share of the accepted rate aimed at: 0.9 (1 - 0.35 rho), found by simulation (tools/bench/detector).

Errors of the noise estimate in one direction raise the rate more than opposite errors lower it, especially
with a long correlation of the noise.
"""
FAR_FROM, FAR_BY, FAR_MOST = 1.7, 1.5, 2.0
"""Factor on the rate aimed at if the target is more than 1.7 standard deviations from the undisturbed signal: from 1 it
grows by 1.5 for each further standard deviation, up to 2.

Found by the same simulation. The verdict on such targets also waits for a sample clearly beyond the target, which alone
would halve the rate or more.
"""
SINGLE_SHARE: Final = 0.1
"""Share of the accepted rate that single samples may use."""
UNKNOWN_NOISE_SD: Final = 0.05
"""Assumed scatter of one sample (log units) if its reference is unknown."""
ASSUMED_WORK: Final = -math.log(1.0 - Objective().tolerance_pct / 100.0)
ASSUMED_DELAY: Final = math.log(1.0 + Objective().delay_tolerance_pct / 100.0)
"""Assumed margins without a reference: those of the default tolerances."""
_PER_REQUEST: Final = {"latency_p50_ms": 1.44, "latency_p95_ms": 1.45, "latency_p99_ms": 2.16}
"""Relative noise of a percentile of n requests, times sqrt(n): sqrt(p (1 - p)) / (f(q) q), exponential latencies."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Work or delay in one sample.

    ``shortfall``: distance beyond its target (log units; NaN: unknown). ``margin``: distance of its reference from the
    target.
    ``prior_sd``: scatter of one sample, from its reference or event count.
    """

    shortfall: float
    margin: float
    prior_sd: float


@dataclass(frozen=True, slots=True)
class Weighed:
    """The baselines after a sample, and the test results.

    ``moved``: channels beyond their target by more than chance. ``bars``: shares of their thresholds that were
    required. ``thresholds``: their thresholds (sigma). ``is_single``: this sample alone is significant.
    """

    work: Baseline
    delay: Baseline
    moved: tuple[str, ...] = ()
    bars: tuple[float, ...] = ()
    thresholds: tuple[float, ...] = ()
    is_single: bool = False


def channels(
    perf: Performance,
    sample: Sample,
    target_work: Reading,
    target_delay: Reading,
    work_band: Band | None,
    delay_band: Band | None,
    work_score: float,
) -> tuple[Channel, Channel]:
    """Work and delay of a sample; work is NaN if only the load fell."""
    work = delay = math.nan
    if available(perf.work) and perf.work > 0 and available(target_work) and math.isfinite(work_score):
        load_fell = work_score >= 1.0 and perf.work < target_work
        work = math.nan if load_fell else -math.log(work_score)
    if available(perf.delay) and perf.delay > 0 and available(target_delay) and target_delay > 0:
        delay = math.log(perf.delay / target_delay)
    work_margin, delay_margin = ASSUMED_WORK, ASSUMED_DELAY
    if work_band is not None and available(target_work) and target_work > 0 and work_band.value > 0:
        work_margin = math.log(work_band.value / target_work)
    if delay_band is not None and available(target_delay) and target_delay > 0:
        delay_margin = math.log(target_delay / max(delay_band.value, 1e-9))
    per_request = _PER_REQUEST.get(perf.delay_source, 1.0)
    return (
        Channel(work, work_margin, _prior_sd(work_band, sample.work_events, 1.0)),
        Channel(delay, delay_margin, _prior_sd(delay_band, sample.latency_events, per_request)),
    )


def _prior_sd(band: Band | None, events: Reading, per_event: float) -> float:
    """Scatter of a sample, from its reference, else from its number of events."""
    if band is not None:
        return max(band.sd, 0.01)
    counting = per_event / math.sqrt(events) if available(events) and events >= 1.0 else 0.0
    return max(UNKNOWN_NOISE_SD, counting)


def noise_of(band: Band | None) -> float:
    """Scatter of one sample of a signal (log units), from its reference."""
    return max(band.sd, 0.01) if band is not None else UNKNOWN_NOISE_SD


def accepted(per_day: float, period_s: float) -> float:
    """Accepted false alarms per sample."""
    return min(per_day * period_s / 86400.0, 0.05)


def _aim(rho: float, k: float) -> float:
    times = min(max(1.0 + FAR_BY * (cusum.distance(rho, k) - FAR_FROM), 1.0), FAR_MOST)
    return AIM * (1.0 - AIM_BY_RHO * rho) * times


def alert_share(before: float, interval_s: float, *, alert: bool) -> float:
    """The share of time that lies shortly after an arrival of batch, averaged over ``ALERT_MEMORY_S``."""
    gain = min(max(interval_s, 0.0) / ALERT_MEMORY_S, 1.0)
    return before + gain * ((1.0 if alert else 0.0) - before)


def times(share: float, *, alert: bool) -> float:
    """Present factor on the accepted rate; its mean over time is 1."""
    spent = min(ALERT_TIMES * share, ALERT_MOST)
    return max(spent / max(share, 1e-6), 1.0 - spent) if alert else 1.0 - spent


def weigh(
    known: tuple[Baseline, Baseline],
    seen: tuple[Channel, Channel],
    per_day: float,
    period_s: float,
    *,
    spend: float,
    large_k: float,
    ticks: int,
    interval_s: float,
    part: float,
    learns: bool = True,
) -> Weighed:
    """Process one sample of both channels, and test whether either is beyond its target.

    Args:
        known: baselines of work and delay.
        seen: the sample.
        per_day: accepted false alarms per day.
        period_s: time between samples.
        spend: present factor on ``per_day``.
        large_k: slack of the CUSUM for large shifts.
        ticks: minimum number of samples for an alarm.
        interval_s: length of the sample in seconds.
        part: share of a period that the sample covers.
        learns: False while a change by perphd settles.
    """
    wanted = accepted(per_day, period_s)
    rows: list[tuple[float, float, float] | None] = []
    for base, channel in zip(known, seen, strict=True):
        if not math.isfinite(channel.shortfall):
            rows.append(None)
            continue
        rho, scale = cusum.noise(base, channel.prior_sd, interval_s)
        rows.append((rho, scale, cusum.slack(base, channel.margin, rho, scale)))
    sharing = sum(row is not None and cusum.uses_part(row[0], row[2], wanted) for row in rows)
    wanted /= max(1, sharing)
    after: list[Baseline] = []
    moved: list[str] = []
    bars: list[float] = []
    thresholds: list[float] = []
    is_single = False
    for name, base, channel, row in zip(("work", "delay"), known, seen, rows, strict=True):
        if row is None:
            after.append(base)
            continue
        at = cusum.limits(base, *row, wanted * _aim(row[0], row[2]), large_k, ticks)
        is_single = is_single or _is_single(base, channel, at, wanted)
        new = cusum.step(base, channel.shortfall, at, interval_s, part, learns=learns)
        after.append(new)
        least = cusum.bar(at, spend)
        if new.ratio >= least:
            moved.append(name)
            bars.append(least)
            thresholds.append(at.small)
    return Weighed(after[0], after[1], tuple(moved), tuple(bars), tuple(thresholds), is_single)


def _is_single(base: Baseline, channel: Channel, at: Limits, wanted: float) -> bool:
    """True if this sample alone is significant at the rate of single samples."""
    least = cusum.tail(SINGLE_SHARE * wanted)
    return cusum.surprise(base, channel.shortfall, at) >= at.own * least


def expected_per_day(
    known: tuple[Baseline, Baseline],
    margins: tuple[float, float],
    per_day: float,
    period_s: float,
    large_k: float,
    ticks: int,
) -> float | None:
    """Expected false alarms per day from the noise of both channels; None until there are enough observations."""
    judged = [
        (base, margin) for base, margin in zip(known, margins, strict=True) if base.n >= cusum.LEAST_SAMPLES
    ]
    wanted = accepted(per_day, period_s)
    rows = []
    for base, margin in judged:
        rho, scale = cusum.noise(base, UNKNOWN_NOISE_SD)
        rows.append((base, rho, scale, cusum.slack(base, margin, rho, scale)))
    sharing = max(1, sum(cusum.uses_part(rho, k, wanted) for _, rho, _, k in rows))
    total = 0.0
    for base, rho, scale, k in rows:
        found = cusum.expected(
            base,
            cusum.limits(base, rho, scale, k, wanted / sharing * _aim(rho, k), large_k, ticks),
        )
        if found is None:
            return None
        few = base.ended < cusum.ENOUGH_RISES  # rare rises alarm no more often than normal noise
        total += (min(found, wanted / sharing) if few else found) * 86400.0 / period_s
    return total if rows else None
