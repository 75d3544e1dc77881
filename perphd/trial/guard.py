"""The guard: ends a trial when enforcing harms an LRA.

Problem: find harm soon, without mistaking the noise of the load for it.

Approach: the observed blocks are the reference. Delays are compared as logarithms, averaged over windows of one minute.

- At once: the last minute in an enforced block is worse than the worst observed minute by more than the bound, and
  worse than the reference by more than twice the bound and ``MINUTE_SIGMAS`` standard deviations of observed minutes.
- By blocks: an enforced block is harmful if its mean is worse than that of the worst observed block by more than the
  bound, and worse than the reference by more than ``BLOCK_SIGMAS`` standard deviations of observed blocks. Two harmful
  blocks in a row end the trial.

    sigma_block^2  = (sum (b[i+1] - b[i])^2 / 2 + PRIOR within) / (steps + PRIOR)
    sigma_minute^2 = within + sigma_block^2
    both times 1 + SMALL / blocks: a sigma from few blocks is often too small

b: means of successive observed blocks; within: variance of the minutes of a block. Until enough blocks are known,
blocks are assumed to scatter like minutes, as they do when noise lasts longer than a block. Such noise makes two
harmful blocks in a row likelier than chance alone, so the bounds are wide: tools/bench/trial counts false stops.

"Worse" refers to the delay (latency, or waiting per work) relative to the reference, or to a fall in work, to
the extent that contention explains it (``domain.signals.contended_ratio``): a lower load is not harm. An LRA
that is as busy as before but answers nothing is harmed, too. The reference consists of the last observed
blocks, so it follows the time of day. While an LRA does more work than in any observed block, ``BUSIER_DELAY``
raises the accepted delay.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.signals import contended_ratio
from perphd.domain.workload import Mode

WINDOW_S: Final = 60.0
REFERENCE_BLOCKS: Final = 3
"""Number of latest observed blocks used as the reference: with ten-minute blocks, about the last hour."""
SCATTER_BLOCKS: Final = 12
"""Number of observed blocks from which the scatter is estimated."""
AT_ONCE: Final = 2.0
"""Multiple of the bound for a single minute, which scatters more than a block."""
MINUTE_SIGMAS: Final = 5.5
BLOCK_SIGMAS: Final = 3.5
SMALL: Final = 0.5
BUSIER: Final = 1.1
"""Work relative to the busiest observed block above which the load may cause a higher delay."""
BUSIER_DELAY: Final = 1.5
"""Factor on the accepted delay while the LRA does more work than ``BUSIER`` times the busiest observed block."""
PRIOR: Final = 3.0
HARMFUL_BLOCKS: Final = 2
BUSY_SHARE: Final = 0.5
_ENOUGH: Final = 0.75
"""Minimum share of a window that readings must cover."""


@dataclass(frozen=True, slots=True)
class LraReading:
    """One sample of an LRA, from the sources named in the plan."""

    delay: Reading = NOT_MEASURED
    work: Reading = NOT_MEASURED
    in_flight: Reading = NOT_MEASURED


@dataclass(slots=True)
class _Sums:
    """Time-weighted sums of readings; delay as its logarithm."""

    covered_s: float = 0.0
    delay_s: float = 0.0
    delay_sum: float = 0.0
    work_s: float = 0.0
    work_sum: float = 0.0
    in_flight_s: float = 0.0
    in_flight_sum: float = 0.0

    def add(self, reading: LraReading, seconds: float) -> None:
        self.covered_s += seconds
        if available(reading.delay) and reading.delay > 0:
            self.delay_s += seconds
            self.delay_sum += seconds * math.log(reading.delay)
        if available(reading.work):
            self.work_s += seconds
            self.work_sum += seconds * reading.work
        if available(reading.in_flight):
            self.in_flight_s += seconds
            self.in_flight_sum += seconds * reading.in_flight

    def mean(self) -> _Mean:
        return _Mean(
            math.exp(self.delay_sum / self.delay_s) if self.delay_s > 0 else None,
            self.work_sum / self.work_s if self.work_s > 0 else None,
            self.in_flight_sum / self.in_flight_s if self.in_flight_s > 0 else None,
        )


@dataclass(frozen=True, slots=True)
class _Mean:
    delay: float | None
    work: float | None
    in_flight: float | None


@dataclass(frozen=True, slots=True)
class _Observed:
    """One observed block: its mean, and the log delay of each minute."""

    mean: _Mean
    minutes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """Extremes in observe: the highest delay, and the highest work of a block."""

    delay: float | None
    work: float | None


@dataclass(slots=True)
class _Watched:
    """State of one LRA: observed blocks, the current minute and block, and the number of consecutive harmful blocks."""

    observed: deque[_Observed] = field(default_factory=lambda: deque(maxlen=SCATTER_BLOCKS))
    minutes: list[float] = field(default_factory=list)
    minute: _Sums = field(default_factory=_Sums)
    block: _Sums = field(default_factory=_Sums)
    last: deque[tuple[float, LraReading]] = field(default_factory=deque)
    last_s: float = 0.0
    harmful: int = 0

    def reference(self) -> _Mean | None:
        """The mean of the last observed blocks."""
        return _over([block.mean for block in list(self.observed)[-REFERENCE_BLOCKS:]])

    def seen(self) -> tuple[_Seen, _Seen]:
        """Extremes of observed minutes, and of observed blocks."""
        minutes = [minute for block in self.observed for minute in block.minutes]
        delays = [block.mean.delay for block in self.observed if block.mean.delay]
        work = max((block.mean.work for block in self.observed if block.mean.work), default=None)
        worst = math.exp(max(minutes)) if minutes else None
        return _Seen(worst, work), _Seen(max(delays, default=None), work)

    def sigmas(self) -> tuple[float, float]:
        """Standard deviations of the logarithm of the delay: of one observed minute, and of one observed block."""
        blocks = [math.log(block.mean.delay) for block in self.observed if block.mean.delay]
        if not blocks:
            return 0.0, 0.0
        within = [
            sum((m - sum(block.minutes) / n) ** 2 for m in block.minutes) / (n - 1)
            for block in self.observed
            if (n := len(block.minutes)) > 1
        ]
        inside = sum(within) / len(within) if within else 0.0
        steps = [(b - a) ** 2 / 2.0 for a, b in itertools.pairwise(blocks)]
        between = (sum(steps) + PRIOR * inside) / (len(steps) + PRIOR)
        few = 1.0 + SMALL / len(blocks)
        return few * math.sqrt(inside + between), few * math.sqrt(between)


class Guard:
    """Monitors the LRAs of one trial."""

    def __init__(self, lras: tuple[str, ...], bound_pct: float, used_s: float) -> None:
        self._lras = {name: _Watched() for name in lras}
        self._bound = bound_pct / 100.0
        self._window_s = min(WINDOW_S, used_s)

    def take(self, mode: Mode, readings: Mapping[str, LraReading], seconds: float, used: bool) -> str:
        """Process one sample of ``seconds``; ``used``: the sample lies after the washout.

        Returns the harm as text, or an empty text.
        """
        for name, watched in self._lras.items():
            reading = readings.get(name, LraReading())
            if used:
                watched.block.add(reading, seconds)
            if mode is Mode.OBSERVE:
                if used:
                    self._refer(watched, reading, seconds)
            elif text := self._look(name, watched, reading, seconds):
                return text
        return ""

    def end_block(self, mode: Mode, counts: bool) -> str:
        """Process the end of a block; ``counts``: False if it is void. Returns the harm as text, or an empty text."""
        found = ""
        for name, watched in self._lras.items():
            if counts and watched.block.covered_s > 0:
                mean = watched.block.mean()
                if mode is Mode.OBSERVE:
                    watched.observed.append(_Observed(mean, tuple(watched.minutes)))
                else:
                    factor = max(1.0 + self._bound, math.exp(BLOCK_SIGMAS * watched.sigmas()[1]))
                    harm = _harm(name, mean, watched.reference(), factor)
                    seen = watched.seen()[1]
                    if harm and _is_beyond(mean, seen, 1.0 + self._bound):
                        watched.harmful += 1
                    elif not (harm and _is_busier(mean, seen)):  # inconclusive: the load was higher
                        watched.harmful = 0
                    if watched.harmful >= HARMFUL_BLOCKS:
                        found = found or f"{harm} over {HARMFUL_BLOCKS} enforced blocks in a row"
            watched.block, watched.minute, watched.minutes = _Sums(), _Sums(), []
            watched.last.clear()
            watched.last_s = 0.0
        return found

    def _refer(self, watched: _Watched, reading: LraReading, seconds: float) -> None:
        watched.minute.add(reading, seconds)
        if watched.minute.covered_s >= self._window_s:
            delay = watched.minute.mean().delay
            if delay is not None:
                watched.minutes.append(math.log(delay))
            watched.minute = _Sums()

    def _look(self, name: str, watched: _Watched, reading: LraReading, seconds: float) -> str:
        watched.last.append((seconds, reading))
        watched.last_s += seconds
        while watched.last_s - watched.last[0][0] >= self._window_s:
            watched.last_s -= watched.last.popleft()[0]
        reference = watched.reference()
        if reference is None or watched.last_s < _ENOUGH * self._window_s:
            return ""
        sums = _Sums()
        for length_s, one in watched.last:
            sums.add(one, length_s)
        mean = sums.mean()
        if _is_stalled(mean, reference):
            return f"{name} answered nothing for {self._window_s:g} s although it was as busy as before"
        factor = max(1.0 + AT_ONCE * self._bound, math.exp(MINUTE_SIGMAS * watched.sigmas()[0]))
        text = _harm(name, mean, reference, factor)
        if text and _is_beyond(mean, watched.seen()[0], 1.0 + self._bound):
            return f"{text} for {self._window_s:g} s"
        return ""


def _harm(name: str, now: _Mean, before: _Mean | None, factor: float) -> str:
    """The harm as text if ``now`` is worse by more than ``factor``; else empty."""
    if before is None:
        return ""
    delay_ratio = now.delay / before.delay if now.delay and before.delay else None
    if delay_ratio is not None and delay_ratio > factor:
        return f"{name}: delay {100 * (delay_ratio - 1):.0f} % higher than in observe"
    if now.work is None or not before.work:
        return ""
    busy = now.in_flight / before.in_flight if now.in_flight is not None and before.in_flight else None
    ratio = contended_ratio(now.work / before.work, delay_ratio, busy, closed=False)
    if delay_ratio is None and busy is not None and busy < BUSY_SHARE:
        return ""  # lower load
    if ratio < 1.0 / factor:
        return f"{name}: work {100 * (1 - ratio):.0f} % lower than in observe"
    return ""


def _is_beyond(now: _Mean, seen: _Seen, factor: float) -> bool:
    """True unless the delay is within the range seen in observe; a higher load extends that range."""
    if _is_busier(now, seen):
        factor *= BUSIER_DELAY
    return now.delay is None or seen.delay is None or now.delay > seen.delay * factor


def _is_busier(now: _Mean, seen: _Seen) -> bool:
    return now.work is not None and seen.work is not None and now.work > BUSIER * seen.work


def _over(means: list[_Mean]) -> _Mean | None:
    if not means:
        return None
    delays = [math.log(m.delay) for m in means if m.delay]
    works = [m.work for m in means if m.work is not None]
    busy = [m.in_flight for m in means if m.in_flight is not None]
    return _Mean(
        math.exp(sum(delays) / len(delays)) if delays else None,
        sum(works) / len(works) if works else None,
        sum(busy) / len(busy) if busy else None,
    )


def _is_stalled(now: _Mean, before: _Mean) -> bool:
    """True if the LRA is busy but answers nothing."""
    if now.delay is not None or now.work or not before.work or before.delay is None:
        return False
    return bool(now.in_flight and before.in_flight and now.in_flight >= BUSY_SHARE * before.in_flight)
