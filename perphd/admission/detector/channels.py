"""Slowdown detector for an LRA without an indicator: distinguishes harm by neighbours from the LRA's own phases.

Problem: instructions per second fall for three reasons, two of which are harm: lower demand (load), waiting threads
(for a processor, a disk, memory), or longer instructions (slowdown). In an open loop they do not even fall, but take
more CPU time. Programs also have phases in which instructions take longer.

Approach: separate channels, each a ``phases.Series`` that models the program's own phases:
    slowdown   log cycles per instruction                     y = log c
    misses     log last-level misses per instruction          x = log m
    the rest   log cycles not explained by misses             r = log (c - cost x m)
    waiting    log time per CPU second, waiting included      s = log (1 + (queue + stalled) / usage)

A contrast is evidence only if it coincides with neighbours. A window opens when their CPU use, memory traffic, cache
occupancy or disk traffic rises. A contrast counts if it is too large for the program's own phases,
    P(placebo >= contrast) <= SHARE x false alarms a day / (onsets a day x TESTS),

and if it is harm, that is, exceeds the tolerance. The rate of false alarms is therefore kept whatever the phases are,
and each harmless arrival of neighbours raises the threshold. If neighbours become quiet (by themselves, or because
perphd restricted them) and the contrast remains, the contrast was a phase of the program, and neighbours are no
longer blamed. The blame also ends once the contrast loses its significance as samples accumulate. Pure; all state
is a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from perphd.admission.detector.miss_cost import MissCost
from perphd.admission.detector.phases import HORIZONS, Onset, Series
from perphd.admission.settings import PolicySettings
from perphd.domain.quick import replace
from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.sample import Quality, Sample

SHARE: Final = 0.25
"""Share of the accepted false alarms per day that channels use: one false alarm may cause several actions."""
TESTS: Final = 6.0
"""Effective number of independent tests per onset: four channels over overlapping horizons."""
ONSETS_A_DAY, KNOWN_DAYS = 10.0, 0.3
"""Prior for the rate of onsets, with its weight in days of observation."""
WINDOW: Final = 36
"""Samples after an onset in which contrasts count."""
MERGED: Final = 8
"""Number of samples within which further rises belong to the same onset."""
LEAST_WHOLE_S: Final = 0.9
"""Seconds over which faster samples are averaged, because the noise models assume samples of one length."""
RELIEF: Final = 1.0 / 3.0
"""Share of the harm that must vanish when neighbours become quiet; otherwise they were not its cause."""
RELIEF_SAMPLES: Final = 4
OVER_SAMPLES: Final = 8
SMOOTHED: Final = 6
"""Number of latest samples whose mean shows the harm."""
_DAY_S: Final = 86_400.0
_LEAST_REST: Final = 0.1  # least share of cycles not due to misses
_MOST_STALL: Final = 0.99
_TINY: Final = 1e-9
_UNFIT: Final = frozenset({Quality.FIRST, Quality.LATE, Quality.GONE, Quality.RESTARTED, Quality.MULTIPLEXED})


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Activity of an LRA's neighbours.

    It comprises CPU use of batch and undeclared work, and memory traffic, cache occupancy and disk traffic of
    batch.
    """

    cpu_cores: Reading
    traffic_bytes_per_s: Reading
    occupancy_bytes: Reading
    disk_bytes_per_s: Reading

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings, in the order of ``LEAST_RISES``."""
        return self.cpu_cores, self.traffic_bytes_per_s, self.occupancy_bytes, self.disk_bytes_per_s


NOBODY: Final = Neighbours(NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED)
LEAST_RISES: Final = (0.4, 1e9, 2e6, 5e6)
"""Smallest significant changes, in CPUs, bytes per second, bytes, and bytes per second."""
_RISES: Final = 0.2  # smallest clear change, as a share of the level
_STEPS: Final = 5.0  # smallest clear change, as a multiple of the usual difference between samples
_FOLLOWS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Activity:
    """Level of one activity of the neighbours, and its usual change between samples; NaN before the first."""

    level: float = math.nan
    step: float = 0.0

    def then(self, value: float, least: float) -> tuple[Activity, int]:
        """The state after another value, and the direction of a clear change: 1 for a rise, -1 for a fall, else 0."""
        if math.isnan(self.level):
            return Activity(value), 0
        off = value - self.level
        if abs(off) >= max(least, _RISES * self.level, _STEPS * self.step):
            return Activity(value, self.step + 0.02 * (min(abs(off), 4.0 * self.step + least) - self.step)), (
                1 if off > 0 else -1
            )
        return Activity(self.level + _FOLLOWS * off, self.step + 0.05 * (abs(off) - self.step)), 0


@dataclass(frozen=True, slots=True)
class Watch:
    """The open window after a rise in neighbours' activity: samples since then, and every channel at the onset."""

    age: int
    onsets: tuple[Onset | None, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """Harm that coincided with neighbours.

    ``channel``: the channel that shows it. ``onset``: onset of that channel. ``usual``: expected values of
    all channels. ``chance``: p-value of the hypothesis that it is a phase. ``age``: samples since the onset.
    ``quiet``: samples since neighbours became quiet, 0 while they are active. ``harm``: the harm before
    neighbours became quiet (log units).
    """

    channel: int
    onset: Onset
    usual: tuple[float, ...]
    chance: float
    age: int
    quiet: int = 0
    harm: float = 0.0


Tolerances: TypeAlias = tuple[float, float]
"""Accepted loss of work (%), and accepted growth of delay (%)."""
CPI, MISSES, REST, WAITS = range(4)
NAMES: Final = (
    "cycles per instruction",
    "misses per instruction",
    "cycles not explained by misses",
    "waiting",
)


@dataclass(frozen=True, slots=True)
class Channels:
    """State of one LRA's channels.

    ``partial``: seconds and weighted sums of samples shorter than ``LEAST_WHOLE_S``. ``onsets``: number of windows
    opened. ``days``: days of observation.
    """

    series: tuple[Series, ...] = (Series(),) * 4
    cost: MissCost = MissCost()
    around: tuple[Activity, ...] = (Activity(),) * 4
    watch: Watch | None = None
    blame: Blame | None = None
    onsets: float = 0.0
    days: float = 0.0
    partial: tuple[float, ...] = ()


NOTHING_KNOWN: Final = Channels()


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Harm for which neighbours are blamed. NaN: unknown.

    ``ratio``: time per unit of work relative to the usual. ``score``: the accepted ratio over ``ratio``.
    ``cpi``, ``mpki``: means over the latest samples. ``usual_cpi``, ``usual_mpki``: values expected without neighbours.
    ``by``: name of the channel.
    ``chance``: p-value of the hypothesis that it is a phase.
    """

    ratio: float
    score: float
    cpi: float
    usual_cpi: float
    mpki: float
    usual_mpki: float
    by: str
    chance: float


def needed(channel: int, tolerances_pct: Tolerances) -> float:
    """Growth (log units) from which a channel shows harm."""
    if channel == WAITS:
        return math.log(1.0 + tolerances_pct[1] / 100.0)
    return -math.log(1.0 - min(tolerances_pct[0], 90.0) / 100.0)


def step(
    state: Channels,
    sample: Sample,
    beside: Neighbours,
    settings: PolicySettings,
    tolerances_pct: Tolerances,
    *,
    crowded: bool,
) -> tuple[Channels, Slowdown | None]:
    """Process one sample; returns the state and the harm now blamed on neighbours, if any.

    Args:
        state: state before.
        sample: the LRA's sample.
        beside: the neighbours' activity during the sample.
        settings: the LRA's settings, with the accepted rate of false alarms.
        tolerances_pct: accepted loss of work, accepted growth of delay.
        crowded: the memory bus is crowded, so misses cost more than usual.
    """
    if sample.interval_s <= 0.0 or any(flag in _UNFIT for flag in sample.quality):
        return state, told(state, tolerances_pct)
    values, seconds = _values(sample), sample.interval_s
    if state.partial or seconds < LEAST_WHOLE_S:
        state, gathered = _gathered(state, values, seconds)
        if gathered is None:
            return state, told(state, tolerances_pct)
        values, seconds = gathered
    around, rise = _around(state.around, beside)
    cost = state.cost
    cpi, mpki = values[:2]
    if not (crowded or math.isnan(cpi) or math.isnan(mpki)) and state.blame is None:
        cost = cost.step(cpi, mpki)
    logs = _logs(values, cost)
    opens = rise > 0 and (state.watch is None or state.watch.age >= MERGED)
    calm = rise == 0 and state.watch is None and state.blame is None
    series = tuple(
        each.step(value, calm=calm, learn=state.blame is None)
        for each, value in zip(state.series, logs, strict=True)
    )
    watch = state.watch
    if opens:
        watch = Watch(1, tuple(each.onset() for each in series))
    elif watch is not None:
        watch = replace(watch, age=watch.age + 1) if watch.age < WINDOW else None
    state = Channels(
        series,
        cost,
        around,
        watch,
        state.blame,
        state.onsets + (1.0 if opens else 0.0),
        state.days + seconds / _DAY_S,
    )
    state = (
        _accused(state, settings, tolerances_pct) if state.blame is None else _tried(state, rise, settings)
    )
    return state, told(state, tolerances_pct)


def told(state: Channels, tolerances_pct: Tolerances) -> Slowdown | None:
    """The harm blamed on neighbours, from the latest samples; None without blame."""
    blame = state.blame
    if blame is None:
        return None
    count = min(blame.age, SMOOTHED)
    harm = _harm(state, blame, count)
    now = [each.mean(count) for each in state.series]
    return Slowdown(
        math.exp(harm),
        math.exp(needed(blame.channel, tolerances_pct) - harm),
        math.exp(now[CPI]),
        math.exp(blame.usual[CPI]),
        math.exp(now[MISSES]),
        math.exp(blame.usual[MISSES]),
        NAMES[blame.channel],
        blame.chance,
    )


def accepted_chance(state: Channels, settings: PolicySettings) -> float:
    """P-value below which a single test blames neighbours."""
    a_day = (state.onsets + ONSETS_A_DAY * KNOWN_DAYS) / (state.days + KNOWN_DAYS)
    return min(SHARE * settings.false_alarms_per_day / a_day, 0.2) / TESTS


def _accused(state: Channels, settings: PolicySettings, tolerances_pct: Tolerances) -> Channels:
    """The state with a blame added if the open window shows harm that is not a phase."""
    watch = state.watch
    if watch is None or watch.age < HORIZONS[0]:
        return state
    accepted = accepted_chance(state, settings)
    for channel, (series, onset) in enumerate(zip(state.series, watch.onsets, strict=True)):
        h = series.tested(watch.age)
        if onset is None or not h:
            continue
        contrast = series.contrast(onset, h)
        if not contrast > 0.0:
            continue
        chance = series.chance(contrast, h)
        if chance > accepted:
            continue
        usual = tuple(
            each.expected(began, h) if began is not None else math.nan
            for each, began in zip(state.series, watch.onsets, strict=True)
        )
        blame = Blame(channel, onset, usual, chance, watch.age)
        harm = _harm(state, blame, h)
        if harm >= needed(channel, tolerances_pct) and _is_consistent(state, watch, channel, harm, h):
            return replace(state, blame=replace(blame, harm=harm), watch=None)
    return state


def _is_consistent(state: Channels, watch: Watch, channel: int, harm: float, h: int) -> bool:
    """False if the miss channels show longer instructions but cycles per instruction clearly contradict."""
    onset = watch.onsets[CPI]
    if channel in (CPI, WAITS) or onset is None:
        return True
    series = state.series[CPI]
    return series.contrast(onset, h) > 0.5 * harm - 2.0 * series.laws[HORIZONS.index(h)].sd(h)


def _harm(state: Channels, blame: Blame, count: int) -> float:
    """Growth of the time per unit of work (log units) over the latest samples, by the blamed channel."""
    series = state.series
    grown = series[blame.channel].mean(count) - blame.usual[blame.channel]
    if blame.channel in (CPI, WAITS):
        return grown
    usual = math.exp(blame.usual[CPI])
    if blame.channel == MISSES:
        more = math.exp(blame.usual[MISSES]) * math.expm1(grown)
        return math.log(max(1.0 + state.cost.band[0] * more / 1000.0 / usual, _TINY))
    return math.log(max(1.0 + math.exp(blame.usual[REST]) * math.expm1(grown) / usual, _TINY))


def _tried(state: Channels, rise: int, settings: PolicySettings) -> Channels:
    """The state after another sample under blame: blame kept, ended, or dropped.

    The p-value of real harm falls with every sample; that of a phase rises until the blame is dropped.
    """
    blame = state.blame
    assert blame is not None
    blame = replace(blame, age=blame.age + 1)
    series = state.series[blame.channel]
    if (h := series.tested(blame.age)) and not blame.quiet:
        chance = series.chance(series.contrast(blame.onset, h), h)
        if chance > accepted_chance(state, settings):
            return replace(state, blame=None)
        blame = replace(blame, chance=chance)
    if blame.quiet:
        blame = replace(blame, quiet=blame.quiet + 1) if rise <= 0 else replace(blame, quiet=0)
    elif rise < 0:
        blame = replace(blame, quiet=1, harm=_harm(state, blame, min(blame.age, OVER_SAMPLES)))
    if (
        blame.quiet == RELIEF_SAMPLES + 1
        and _harm(state, blame, RELIEF_SAMPLES) > (1.0 - RELIEF) * blame.harm
    ):
        # Neighbours are quiet and nothing has improved: a change of phase.
        channel = blame.channel
        known = state.series
        grown = max(series.mean(RELIEF_SAMPLES) - blame.usual[channel], blame.harm)
        known = (*known[:channel], series.surprised(grown), *known[channel + 1 :])
        return replace(state, series=known, blame=None)
    if blame.age > OVER_SAMPLES and _harm(state, blame, OVER_SAMPLES) < 0.02:
        return replace(state, blame=None)
    return replace(state, blame=blame)


def _around(before: Sequence[Activity], beside: Neighbours) -> tuple[tuple[Activity, ...], int]:
    """Neighbours' activities after a sample, and 1 if one of them rose, else -1 if one fell, else 0."""
    after, rise = [], 0
    for activity, reading, least in zip(before, beside.readings, LEAST_RISES, strict=True):
        if not available(reading):
            after.append(activity)
            continue
        new, turn = activity.then(reading, least)
        after.append(new)
        rise = turn if turn > 0 or rise == 0 else rise
    return tuple(after), rise


def _values(sample: Sample) -> tuple[float, ...]:
    """Cycles per instruction, misses per 1000 instructions, time per CPU second; NaN if not measured."""

    def number(reading: Reading) -> float:
        return reading if available(reading) and reading > 0.0 else math.nan

    usage = sample.cpu_usage_cores
    waits = math.nan
    if available(usage) and usage > 0.01 and available(sample.run_delay_cores):
        stalled = _threads(sample.io_some_pct) + _threads(sample.memory_some_pct)
        waits = 1.0 + (sample.run_delay_cores + stalled) / usage
    return number(sample.cpi), number(sample.llc_mpki), waits


def _threads(share_pct: Reading) -> float:
    """Number of stalled threads, from the share of time (%) in which any thread stalls, assuming independence."""
    if not available(share_pct):
        return 0.0
    return -math.log(1.0 - min(max(share_pct / 100.0, 0.0), _MOST_STALL))


def _gathered(
    state: Channels, values: tuple[float, ...], seconds: float
) -> tuple[Channels, tuple[tuple[float, ...], float] | None]:
    """Add a short sample to the partial sums; also returns their mean and length once they cover enough time."""
    known = state.partial or (0.0,) * (len(values) + 1)
    whole = known[0] + seconds
    sums = tuple(a + b * seconds for a, b in zip(known[1:], values, strict=True))
    if whole < LEAST_WHOLE_S:
        return replace(state, partial=(whole, *sums)), None
    return replace(state, partial=()), (tuple(each / whole for each in sums), whole)


def _logs(values: tuple[float, ...], cost: MissCost) -> tuple[float, ...]:
    """The four channels in log units; NaN if unknown."""
    cpi, mpki, waits = values
    if math.isnan(cpi):
        return math.nan, math.nan, math.nan, math.log(waits) if waits > 0.0 else math.nan
    rest = cpi
    if not math.isnan(mpki):
        rest = max(cpi - cost.band[0] * mpki / 1000.0, _LEAST_REST * cpi)
    return (
        math.log(cpi),
        math.log(mpki) if mpki > 0.0 else math.nan,
        math.log(rest),
        math.log(waits) if waits > 0.0 else math.nan,
    )
