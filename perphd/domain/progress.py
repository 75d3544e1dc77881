"""Progress of batch: its CPU time over the last seconds, and for how long it has made no progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perphd.domain.quick import maker
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.sample import Quality, Sample

OVER_S: Final = 10.0
"""Seconds over which CPU use is averaged before it is compared with a guaranteed share."""
IDLE_CORES: Final = 0.01
"""CPU use, in cores, below which a workload makes no progress."""
WAITS_PCT: Final = 20.0
"""CPU pressure, in %, from which a workload is assumed to want more CPU than it gets."""
STARVES_PCT: Final = 50.0
"""CPU pressure, in %, from which a workload without progress counts as starved rather than idle."""


@dataclass(frozen=True, slots=True)
class UsageInterval:
    """CPU time that a workload used in the ``seconds`` before ``at_s``. ``waits``: it wanted more than it got."""

    at_s: float
    seconds: float
    cpu_s: float
    waits: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """CPU use of one workload over the last ``OVER_S`` seconds.

    ``starved_since_s``: when it began to wait for a CPU without getting any; None if it does not.
    """

    spells: tuple[UsageInterval, ...] = ()
    starved_since_s: float | None = None

    def cores(self, now_s: float, seconds: float = OVER_S) -> Reading:
        """Mean CPU use over the last seconds, in cores."""
        recent = [spell for spell in self.spells if spell.at_s > now_s - seconds + 1e-6]
        covered_s = sum(spell.seconds for spell in recent)
        if covered_s <= 0.0:
            return Unavailable("no sample yet")
        return sum(spell.cpu_s for spell in recent) / covered_s

    @property
    def waits(self) -> bool:
        """True if it wanted more CPU than it got in the last sample."""
        return bool(self.spells) and self.spells[-1].waits

    def starved_s(self, now_s: float) -> float:
        """Seconds for which it has waited for a CPU without getting any; 0 if it is not starved."""
        return 0.0 if self.starved_since_s is None else max(0.0, now_s - self.starved_since_s)


NO_PROGRESS: Final = Progress()

_make_interval, _make_progress = maker(UsageInterval), maker(Progress)


def waits_pct(sample: Sample) -> float:
    """Share of the time in which some thread waits for a CPU, in %.

    Without PSI it is derived from run-queue delay.
    """
    if available(sample.cpu_some_pct):
        return sample.cpu_some_pct
    return min(100.0, 100.0 * value_or(sample.run_delay_cores, 0.0))


def is_starved(sample: Sample) -> bool:
    """True if the workload waits for a CPU most of the time and gets less than ``IDLE_CORES``."""
    used = sample.cpu_usage_cores
    return available(used) and used < IDLE_CORES and waits_pct(sample) >= STARVES_PCT


def advance(before: Progress, sample: Sample | None) -> Progress:
    """Progress after one more sample. A missing sample resets it, as does a control group that is new or gone."""
    if sample is None or sample.has(Quality.GONE, Quality.RESTARTED, Quality.FIRST):
        return NO_PROGRESS
    used = sample.cpu_usage_cores
    if isinstance(used, Unavailable) or sample.interval_s <= 0.0:
        return before
    waits = waits_pct(sample) >= WAITS_PCT
    spell = _make_interval(sample.at_s, sample.interval_s, used * sample.interval_s, waits)
    kept = _kept((*before.spells, spell))
    if not is_starved(sample):
        return _make_progress(kept)
    since_s = before.starved_since_s
    return _make_progress(kept, sample.at_s - sample.interval_s if since_s is None else since_s)


def _kept(spells: Sequence[UsageInterval]) -> tuple[UsageInterval, ...]:
    """The intervals of the last ``OVER_S`` seconds, the newest last."""
    oldest_s = spells[-1].at_s - OVER_S + 1e-6
    return tuple([spell for spell in spells if spell.at_s > oldest_s])
