"""Backoff of copper on a contended device: disk, network or memory bandwidth (Prophet, ICAC 2016).

A device that is busy but moves much less than it can is over-allocated: it seeks, retransmits or thrashes. This test
needs no model:

    contended = busy ratio >= BUSY and effective bandwidth < THETA * uncontended peak,  for two samples

Backoff then proceeds in rounds. The antagonists are the copper jobs with the greatest profiled demand, as few
as are needed for the rest to fit the peak. Each round restricts them by one rung; if the device is still
contended at its end, the next round applies the next rung:

    hint to the framework -> ceiling of the device (io.max, MBA, egress) -> cpu.max -> freeze in a duty cycle

Backoff ends at the end of a round in which the device recovered, or after three rounds. The threshold for
recovery (0.9 of the peak, or not busy) is above the one for contention. If contention returns soon after a
recovery, the next restriction is held for twice as many rounds. After three unsuccessful rounds, the pause
before the next attempt doubles: a device can also be slow because its requests are small and random.

Gold, silver and the system are never restricted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from perphd.domain.backoff import BackoffRule
from perphd.domain.reading import Reading, available
from perphd.qos.bands import QosBand

BUSY_RATIO: Final = 0.95
CALM_BUSY_RATIO: Final = 0.8
THETA: Final = 0.7
RECOVERED: Final = 0.9
SAMPLES: Final = 2
"""Number of successive samples that must agree before the verdict changes."""
ROUND_S: Final = 5.0
MAX_ROUNDS: Final = 3
RETURNS_WITHIN_S: Final = 30.0
MAX_HELD_ROUNDS: Final = 12
PAUSES: Final = BackoffRule(60.0, 3600.0)
PEAK_DECAY: Final = 0.01
"""Share of the difference between peak and present throughput by which the peak falls at each sample while the device
is busy and not contended. The peak falls because hardware ages.
"""
FIRST_SHARE: Final = 0.3
"""Share of its demand that an antagonist keeps in the first round, and of that limit in each further round, if all
demands fit the device's peak in bytes. The device then lacks operations, seeks or cache, and limits in proportion to
bytes would free nothing.
"""
LEAST_SHARE: Final = 0.1
"""Minimum share of its demand that the device's ceiling leaves to an antagonist."""
TIGHTER: Final = 0.3
"""Factor by which each further rung reduces the previous limit."""


class RestrictionRung(StrEnum):
    """Restrictions of an antagonist, mildest first."""

    HINT = "hint"
    DEVICE_CEILING = "device ceiling"
    CPU_CEILING = "cpu ceiling"
    FREEZE_CYCLE = "freeze cycle"


_RUNGS: Final = tuple(RestrictionRung)


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One sample of a device: the share of time in which it was busy, and its throughput in bytes/s."""

    at_s: float
    busy_ratio: Reading
    effective_bytes_s: Reading


@dataclass(frozen=True, slots=True)
class Contender:
    """A workload that uses the device, with its present demand according to its profile."""

    name: str
    band: QosBand
    demand_bytes_s: float
    takes_hints: bool = False


@dataclass(frozen=True, slots=True)
class Restriction:
    """A restricted antagonist, the rung in force, and its limit in bytes/s (``limit_ratio``: as a share of
    its demand).
    """

    name: str
    rung: RestrictionRung
    limit_bytes_s: float
    limit_ratio: float


@dataclass(frozen=True, slots=True)
class DeviceContention:
    """State of one device between samples.

    ``round`` is 0 while no workload is restricted. ``held``: number of rounds for which a recovered device
    stays restricted; ``left``: number of those still to come.
    """

    peak_bytes_s: float = 0.0
    low: int = 0
    calm: int = 0
    round: int = 0
    held: int = 1
    left: int = 1
    round_ends_s: float = 0.0
    recovered_s: float | None = None
    pause_s: float = PAUSES.first_s
    paused_until_s: float = 0.0
    restrictions: tuple[Restriction, ...] = ()


@dataclass(frozen=True, slots=True)
class ContentionStep:
    """The next state and its restrictions. ``reason`` is empty if nothing changed."""

    state: DeviceContention
    reason: str = ""

    @property
    def restrictions(self) -> tuple[Restriction, ...]:
        """The restrictions in force."""
        return self.state.restrictions


def observed(
    state: DeviceContention, sample: DeviceSample, contenders: Sequence[Contender]
) -> ContentionStep:
    """The state after ``sample``. A sample without readings can only end a round."""
    busy, moved = sample.busy_ratio, sample.effective_bytes_s
    if available(busy) and available(moved):
        state = _judged(state, busy, moved)
    if state.round:
        return (
            _round_over(state, sample.at_s, contenders)
            if sample.at_s >= state.round_ends_s
            else ContentionStep(state)
        )
    if state.low < SAMPLES or sample.at_s < state.paused_until_s:
        return ContentionStep(state)
    soon = state.recovered_s is not None and sample.at_s - state.recovered_s <= RETURNS_WITHIN_S
    held = min(MAX_HELD_ROUNDS, 2 * state.held) if soon else 1
    return _restricted(replace(state, held=held, left=held), 1, sample.at_s, contenders)


def _judged(state: DeviceContention, busy: float, moved: float) -> DeviceContention:
    """The state after a sample: its counters of successive samples, and the peak throughput."""
    low = busy >= BUSY_RATIO and moved < THETA * state.peak_bytes_s
    calm = busy < CALM_BUSY_RATIO or moved >= RECOVERED * state.peak_bytes_s
    peak = max(state.peak_bytes_s, moved)
    if busy >= BUSY_RATIO and not low and not state.round:
        peak = max(moved, state.peak_bytes_s - PEAK_DECAY * (state.peak_bytes_s - moved))
    return replace(
        state, peak_bytes_s=peak, low=state.low + 1 if low else 0, calm=state.calm + 1 if calm else 0
    )


def _round_over(state: DeviceContention, at_s: float, contenders: Sequence[Contender]) -> ContentionStep:
    if state.calm >= SAMPLES:
        if state.left > 1:
            return ContentionStep(replace(state, left=state.left - 1, round_ends_s=at_s + ROUND_S))
        ended = replace(state, round=0, restrictions=(), low=0, recovered_s=at_s, pause_s=PAUSES.first_s)
        return ContentionStep(ended, f"the device recovered in round {state.round}")
    if state.round < MAX_ROUNDS:
        return _restricted(state, state.round + 1, at_s, contenders)
    ended = replace(
        state,
        round=0,
        restrictions=(),
        low=0,
        held=1,
        recovered_s=None,
        paused_until_s=at_s + state.pause_s,
        pause_s=PAUSES.after(state.pause_s),
    )
    return ContentionStep(
        ended, f"{MAX_ROUNDS} rounds did not help: next attempt in {state.pause_s:.0f} s at the earliest"
    )


def _restricted(
    state: DeviceContention, round_: int, at_s: float, contenders: Sequence[Contender]
) -> ContentionStep:
    """The state in round ``round_``; without restrictions if no copper uses the device."""
    antagonists, rest = _antagonists(contenders, state.peak_bytes_s)
    if not antagonists:
        return ContentionStep(replace(state, round=0, restrictions=(), low=0), "no copper uses the device")
    wanted = sum(each.demand_bytes_s for each in antagonists)
    ratio = min(1.0, max(LEAST_SHARE, (state.peak_bytes_s - rest) / wanted))
    if ratio >= 1.0:
        ratio = max(LEAST_SHARE, FIRST_SHARE**round_)
    restrictions = tuple(_restriction(each, _rung(each, round_), ratio) for each in antagonists)
    names = ", ".join(map(_told, restrictions))
    started = replace(state, round=round_, round_ends_s=at_s + ROUND_S, calm=0, restrictions=restrictions)
    return ContentionStep(
        started,
        f"round {round_}: the device is busy at less than {THETA:.0%} of its peak; restricting {names}",
    )


def _restriction(antagonist: Contender, rung: RestrictionRung, ratio: float) -> Restriction:
    beyond = max(0, _RUNGS.index(rung) - _RUNGS.index(RestrictionRung.DEVICE_CEILING))
    ratio *= TIGHTER**beyond
    return Restriction(antagonist.name, rung, antagonist.demand_bytes_s * ratio, ratio)


def _told(restriction: Restriction) -> str:
    """A restriction in words: the antagonist, the rung and the limit."""
    left = f"{restriction.limit_bytes_s / 1e6:.1f} MB/s, {restriction.limit_ratio:.0%} of its demand"
    return f"{restriction.name} by {restriction.rung} ({left})"


def _rung(antagonist: Contender, round_: int) -> RestrictionRung:
    """The rung of a round. A job that reads no hints begins with the device's ceiling."""
    return _RUNGS[min(len(_RUNGS) - 1, round_ - 1 + (not antagonist.takes_hints))]


def _antagonists(contenders: Sequence[Contender], peak_bytes_s: float) -> tuple[list[Contender], float]:
    """The fewest copper jobs, by demand, without which the rest fits the peak, and the demand of that rest."""
    rest = sum(each.demand_bytes_s for each in contenders)
    antagonists: list[Contender] = []
    copper = [each for each in contenders if each.band is QosBand.COPPER and each.demand_bytes_s > 0]
    for each in sorted(copper, key=lambda one: (-one.demand_bytes_s, one.name)):
        if antagonists and rest <= peak_bytes_s:
            break
        antagonists.append(each)
        rest -= each.demand_bytes_s
    return antagonists, rest
