"""The detector's verdict on streams of noise, many at once: the arithmetic of ``perphd.admission`` on arrays.

A stream ("lane") is one LRA whose true performance equals its reference and whose samples scatter around it (AR(1) in
the logarithm). Some thread always waits, so a corroborating signal is always present. A test checks that the result
equals that of ``perphd.admission.detector.judge.judge``, sample by sample; this code is hundreds of times as fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from perphd.admission.detector import cusum
from perphd.admission.detector.judge import MILD_FACTOR
from perphd.admission.detector.significance import (
    AIM,
    AIM_BY_RHO,
    ALERT_SHARE,
    ASSUMED_DELAY,
    ASSUMED_WORK,
    FAR_BY,
    FAR_FROM,
    FAR_MOST,
    UNKNOWN_NOISE_SD,
    accepted,
    alert_share,
    times,
)
from perphd.admission.settings import PolicySettings

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
MARGINS: Final = np.array([[ASSUMED_WORK], [ASSUMED_DELAY]])
"""Margins of the default tolerances: work may drop by a tenth, latency may grow by a half."""
DAY_S: Final = 86_400.0


@dataclass(slots=True)
class Lanes:
    """Detectors of many LRAs. All arrays are [2, lanes]: work, delay."""

    lanes: int
    settings: PolicySettings
    period_s: float = 1.0
    margins: Floats = field(default_factory=lambda: MARGINS)
    prior_sd: float = UNKNOWN_NOISE_SD
    n: Floats = field(init=False)
    mean: Floats = field(init=False)
    variance: Floats = field(init=False)
    lagged: Floats = field(init=False)
    deviation: Floats = field(init=False)
    last: Floats = field(init=False)
    small: Floats = field(init=False)
    large: Floats = field(init=False)
    ratio: Floats = field(init=False)
    peak: Floats = field(init=False)
    watched: Floats = field(init=False)
    rises: Floats = field(init=False)
    ended: Floats = field(init=False)
    height: Floats = field(init=False)
    degraded: Bools = field(init=False)
    below: Floats = field(init=False)
    above: Floats = field(init=False)
    share: float = ALERT_SHARE

    def __post_init__(self) -> None:
        for name in (
            "n", "mean", "variance", "lagged", "deviation", "last", "small", "large", "ratio", "peak", "watched",
            "rises", "ended", "height",
        ):  # fmt: skip
            setattr(self, name, np.zeros((2, self.lanes)))
        self.degraded = np.zeros(self.lanes, bool)
        self.below, self.above = np.zeros(self.lanes), np.zeros(self.lanes)

    def step(self, shortfall: Floats) -> Bools:
        """Process one sample of every lane: [2, lanes], log units beyond the target; NaN: no such channel.

        Returns the lanes that have just become DEGRADED.
        """
        ticks, live = self.settings.confirm_ticks, np.isfinite(shortfall)
        y = np.where(live, shortfall, -1e9)
        moved = self._weigh(np.where(live, shortfall, 0.0), live)
        worst = y.max(axis=0)
        below = worst > 0.0
        severe = below & (np.exp(-worst) < 1.0 - self.settings.min_effect_pct / 100.0)
        self.below = np.where(below, self.below + 1, 0.0)
        self.above = np.where(below, 0.0, self.above + 1)
        kept = ~below & (self.above >= ticks) & moved
        if kept.any():
            self._clear(kept)
        confirmed = below & moved & (severe | (self.below >= MILD_FACTOR * ticks))
        fresh = confirmed & ~self.degraded
        self.degraded = confirmed | (self.degraded & (self.above < ticks))
        return np.asarray(fresh)

    def _weigh(self, y: Floats, live: Bools) -> Bools:
        """``significance.weigh``: lanes in which at least one channel has shifted."""
        self.share = alert_share(self.share, self.period_s, alert=False)
        spend = times(self.share, alert=False)
        wanted = accepted(self.settings.false_alarms_per_day, self.period_s)
        ticks, large_k, n = self.settings.confirm_ticks, self.settings.cusum_k, self.n
        known = n >= cusum.LEAST_SAMPLES
        with np.errstate(divide="ignore", invalid="ignore"):
            raw = np.where(self.variance > 0.0, self.lagged / self.variance, 0.0)
        raw = np.clip(raw, 0.0, cusum._MOST_RHO)
        weight = cusum.PRIOR_RHO_SAMPLES
        rho = (n * raw + weight * cusum.PRIOR_RHO) / (n + weight)
        seen = self.deviation * cusum._MEAN_DEVIATION
        prior = self.prior_sd**2 * (1.0 - rho * rho)
        weight = cusum.PRIOR_SAMPLES
        scale = np.maximum(np.sqrt((n * seen * seen + weight * prior) / (n + weight)), cusum._LEAST_SCALE)
        nearest = cusum.LEAST_MARGIN * self.margins
        usual = np.where(known, np.minimum(np.maximum(-self.mean, nearest), self.margins), self.margins)
        k = np.clip(usual * (1.0 - rho) / scale, cusum.LEAST_K, cusum._MOST_K)
        far = k * np.sqrt((1.0 + rho) / (1.0 - rho))
        uses = (k < cusum.free_from(wanted)) & (far < cusum.tail(cusum._FREE_SHARE * wanted))
        sharing = (live & uses).sum(axis=0)
        aim = AIM * (1.0 - AIM_BY_RHO * rho) * np.clip(1.0 + FAR_BY * (far - FAR_FROM), 1.0, FAR_MOST)
        wanted = wanted / np.maximum(sharing, 1)[None, :] * aim
        extra = large_k - k
        both = extra > 0.0
        wanted = np.where(both, wanted / cusum._SPLIT, wanted)
        extra = np.where(both, extra, 0.0)
        plain = _siegmund(1.0 / wanted, k)
        small = _threshold(plain, ticks)
        large = _threshold(_siegmund(1.0 / wanted, large_k), ticks)
        exponent = np.maximum(2.0 * k * plain, cusum._LEAST_EXPONENT)
        own = self._own(exponent, wanted)
        clip = (np.maximum(own, 1.0) + cusum._ROOM) / ticks if ticks > 1 else np.full_like(own, 2.0)

        bound = np.where(
            known,
            cusum.CLIP_SIGMA * np.maximum(np.sqrt(np.maximum(self.variance, 0.0)), cusum._LEAST_SCALE),
            np.inf,
        )
        before = np.clip(self.last, -bound, bound)
        z = (y - rho * np.where(n > 0, np.maximum(self.last, -bound) + self.mean, y)) / scale
        most = cusum.CLIP_SIGMA
        new_small = np.clip(self.small + np.minimum(z, np.minimum(most, clip * small)), 0.0, 2.0 * small)
        new_large = np.clip(
            self.large + np.minimum(z - extra, np.minimum(most, clip * large)), 0.0, 2.0 * large
        )
        new_large = np.where(both, new_large, 0.0)
        ratio = np.maximum(new_small / small, new_large / large)
        self._count(live & (ratio <= 0.0) & (self.peak > cusum.RISE_SHARE), by_itself=True)
        _set(self.peak, live, np.where(ratio > 0.0, np.maximum(self.peak, ratio), 0.0))
        _set(self.small, live, new_small)
        _set(self.large, live, new_large)
        _set(self.ratio, live, ratio)
        self.watched += live
        self._learn(live & (ratio < cusum.LEARN_BELOW), y, raw, before, bound, known)
        _set(self.last, live, np.where(n > 0, self._error, 0.0))
        least = np.maximum(own - np.log(spend) / exponent, np.where(clip <= 1.0, clip + 0.01, 0.5))
        return np.asarray((live & (ratio >= least)).any(axis=0))

    _error: Floats = field(init=False)

    def _own(self, exponent: Floats, wanted: Floats) -> Floats:
        usual = wanted * np.exp(np.minimum(exponent * (1.0 - cusum.RISE_SHARE), 50.0))
        rate = (self.rises + cusum.BELIEF) / (self.watched + cusum.BELIEF / usual)
        fall = (self.ended + cusum.BELIEF) / (self.height + cusum.BELIEF / exponent)
        return np.clip(cusum.RISE_SHARE + np.log(rate / wanted) / fall, cusum.LOWEST, cusum.HIGHEST)

    def _learn(
        self, where: Bools, y: Floats, raw: Floats, before: Floats, bound: Floats, known: Bools
    ) -> None:
        n = self.n
        self._error = error = y - self.mean
        gain = np.where(where, 1.0 / np.minimum(n + 1, cusum.MEMORY), 0.0)
        error = np.where(n > 0, error, 0.0)
        clipped = np.clip(error, -bound, bound)
        innovation = np.abs(error - raw * before)
        most = cusum.CLIP_SIGMA * np.maximum(self.deviation * cusum._MEAN_DEVIATION, cusum._LEAST_SCALE)
        innovation = np.where(known, np.minimum(innovation, most), innovation)
        self.mean = np.where(where & (n == 0), y, self.mean + gain * clipped)
        self.variance = self.variance + gain * (clipped * clipped - self.variance)
        self.lagged = self.lagged + gain * (clipped * before - self.lagged)
        self.deviation = self.deviation + gain * (innovation - self.deviation)
        self.n = np.minimum(n + where, cusum.MEMORY)

    def _count(self, where: Bools, *, by_itself: bool) -> None:
        if not where.any():
            return
        kept = np.where(where & (self.watched > cusum.LONGEST), 0.5, 1.0)
        self.watched, self.rises = kept * self.watched, kept * self.rises + where
        self.ended = kept * self.ended + (where & (self.peak < cusum.HIGH_SHARE) if by_itself else 0.0)
        rise = np.minimum(self.peak, cusum.HIGH_SHARE) - cusum.RISE_SHARE
        self.height = kept * self.height + np.where(where, rise, 0.0)

    def _clear(self, lanes: Bools) -> None:
        where = np.broadcast_to(lanes, self.peak.shape)
        self._count(where & (self.peak > cusum.RISE_SHARE), by_itself=False)
        for values in (self.small, self.large, self.ratio, self.peak):
            values[where] = 0.0


def _set(values: Floats, where: Bools, new: Floats) -> None:
    np.copyto(values, new, where=where)


def _siegmund(samples: Floats | float, k: Floats | float) -> Floats:
    wanted = 2.0 * np.square(k) * samples
    x = np.log(np.maximum(wanted, 2.0) + 1.0)
    for _ in range(4):
        x = np.log(wanted + 1.0 + x)
    found: Floats = x / (2.0 * np.asarray(k)) - cusum._OVERSHOOT
    return found


def _threshold(h: Floats, ticks: int) -> Floats:
    if ticks > 1:
        short = h * (1.0 - np.exp(-cusum._STEEP * np.maximum(h - cusum._TWO, 0.0)))
        h = np.where(h < 2.0 * cusum.CLIP_SIGMA, short, h)
    return np.maximum(h, cusum._LEAST_THRESHOLD)


@dataclass(slots=True)
class Noise:
    """AR(1) noise of many lanes. ``sd``, ``rho``: [2, lanes]; NaN sd: there is no such channel."""

    sd: Floats
    rho: Floats
    rng: np.random.Generator
    now: Floats = field(init=False)
    innovation: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.rng.standard_normal(self.sd.shape) * self.sd
        self.innovation = self.sd * np.sqrt(1.0 - self.rho * self.rho)

    def step(self) -> Floats:
        """The next sample of every lane, log units (positive is worse)."""
        self.now = self.rho * self.now + self.innovation * self.rng.standard_normal(self.sd.shape)
        return self.now


CHANNELS: Final = ("work", "latency", "both")
SDS: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
RHOS: Final = (0.0, 0.3, 0.6, 0.8)
SETTLES: Final = 7200
"""Samples of every lane before false alarms count, from which the noise is learned."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One noise: its channel, standard deviation of one sample (log units), correlation with the next sample."""

    channel: str
    sd: float
    rho: float


GRID: Final = tuple(Cell(c, sd, rho) for c in CHANNELS for sd in SDS for rho in RHOS)


def noise_of(cells: tuple[Cell, ...], lanes: int, seed: int) -> Noise:
    """A number of lanes for every cell, one cell after the other."""
    sd = np.array(
        [
            [c.sd if c.channel != "latency" else np.nan for c in cells],
            [c.sd if c.channel != "work" else np.nan for c in cells],
        ]
    )
    rho = np.array([[c.rho for c in cells]] * 2)
    return Noise(np.repeat(sd, lanes, 1), np.repeat(rho, lanes, 1), np.random.default_rng(seed))


def false_alarms(
    cells: tuple[Cell, ...],
    per_day: float,
    period_s: float,
    days: float,
    lanes: int,
    seed: int,
    nearer: float | None = None,
    settles: int = SETTLES,
) -> tuple[Floats, Floats]:
    """False DEGRADED verdicts per day and lane: mean of each cell, and its standard error.

    Args:
        cells: noises.
        per_day: configured.
        period_s: time between samples.
        days: counted days of every lane. lanes: of every cell. seed: of the noise. nearer: distance of the targets from
            the references in standard deviations; None: the default tolerances. settles: samples before that.
    """
    noise = noise_of(cells, lanes, seed)
    margins = np.broadcast_to(MARGINS, noise.sd.shape).copy()
    if nearer is not None:
        margins = np.where(np.isfinite(noise.sd), nearer * noise.sd, margins)
    found = Lanes(len(cells) * lanes, PolicySettings(false_alarms_per_day=per_day), period_s, margins)
    found.share = 0.0  # batch has been absent for long, so no rate is reserved for its arrival
    counts = np.zeros(len(cells) * lanes)
    for at in range(settles + round(days * DAY_S / period_s)):
        fresh = found.step(noise.step() - margins)
        if at >= settles:
            counts += fresh
    each = counts.reshape(len(cells), lanes) / days
    return each.mean(axis=1), np.sqrt(np.maximum(each.mean(axis=1), 0.5 / days / lanes) / days / lanes)


LANES: Final = 10
"""Number of parallel applications for every noise."""


def table(per_day: float, period_s: float, lane_days: float, nearer: float | None) -> list[str]:
    """Markdown: false alarms of every cell over the configured rate, with the standard error."""
    means, errors = false_alarms(GRID, per_day, period_s, lane_days / LANES, LANES, 3, nearer)
    where = (
        f"the default tolerances ({-math.expm1(-ASSUMED_WORK):.0%} of work, {math.expm1(ASSUMED_DELAY):.0%} of latency)"
        if nearer is None
        else f"{nearer:g} sd of a sample from the reference"
    )
    lines = [
        f"A sample every {period_s:g} s, targets at {where}, {lane_days:g} days of every noise: false alarms over the "
        f"configured {per_day:g} a day.",
        "",
        "| on | sd | " + " | ".join(f"rho {rho:g}" for rho in RHOS) + " |",
        "| --- " * (2 + len(RHOS)) + "|",
    ]
    for channel in CHANNELS:
        for sd in SDS:
            found = [
                f"{means[i] / per_day:.2f} ({errors[i] / per_day:.2f})"
                for i, cell in enumerate(GRID)
                if (cell.channel, cell.sd) == (channel, sd)
            ]
            lines.append(f"| {channel} | {sd:g} | {' | '.join(found)} |")
    return [*lines, ""]
