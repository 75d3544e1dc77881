"""Back-off of copper on a contended device: disk, network or memory bandwidth (Prophet, ICAC 2016).

A device that is busy, yet moves much less than it does at its best, is over-allocated: it seeks, retransmits or
thrashes. That test needs no model:

    contended = busy ratio >= BUSY and effective bandwidth < THETA * uncontended peak,  for two samples

Back-off then goes in rounds. The culprits are the copper jobs with the greatest profiled demand, as few as are needed
for the rest to fit the peak. A round restricts them by one rung; if the device is still contended at its end, the next
round takes the next rung:

    hint to the framework -> ceiling of the device (io.max, MBA, egress) -> cpu.max -> freeze in a duty cycle

Back-off ends at the end of a round in which the device recovered, or after three rounds. The threshold for recovery
(0.9 of the peak, or not busy) is above the one for contention. Contention that returns soon after a recovery is held
back for twice as many rounds. After three rounds in vain, the pause before the next attempt doubles: a device can also
be slow because its work is small and random.

Gold, silver and the system are never restricted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from perphd.domain.reading import Reading, available
from perphd.qos.bands import QosBand

BUSY_RATIO: Final = 0.95
CALM_BUSY_RATIO: Final = 0.8
THETA: Final = 0.7
RECOVERED: Final = 0.9
SAMPLES: Final = 2
"""Successive samples that a change of judgement needs."""
ROUND_S: Final = 5.0
MAX_ROUNDS: Final = 3
RETURNS_WITHIN_S: Final = 30.0
MAX_HELD_ROUNDS: Final = 12
FIRST_PAUSE_S: Final = 60.0
MAX_PAUSE_S: Final = 3600.0
PEAK_DECAY: Final = 0.01
"""While the device is busy and not contended, its peak sinks by this share of the difference: media and links age."""
FIRST_SHARE: Final = 0.3
"""What a culprit keeps in the first round, and of that in each further one, if all demands fit the device's peak in
bytes: the device then lacks operations, seeks or cache, and a share of the bytes frees nothing."""
LEAST_SHARE: Final = 0.1
"""A culprit keeps at least this share of its demand by the device's ceiling ..."""
TIGHTER: Final = 0.3
"""... and this much of that with each rung that follows: the one before was not enough."""


class RestrictionRung(StrEnum):
    """How a culprit is restricted, mildest first."""

    HINT = "hint"
    DEVICE_CEILING = "device ceiling"
    CPU_CEILING = "cpu ceiling"
    FREEZE_CYCLE = "freeze cycle"


_RUNGS: Final = tuple(RestrictionRung)


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One device at one time: the share of time in which it was busy, and the bytes/s that it moved."""

    at_s: float
    busy_ratio: Reading
    effective_bytes_s: Reading


@dataclass(frozen=True, slots=True)
class Contender:
    """A workload that uses the device, and what its profile says it demands now."""

    name: str
    band: QosBand
    demand_bytes_s: float
    takes_hints: bool = False


@dataclass(frozen=True, slots=True)
class Restriction:
    """One culprit, the rung in force, and the bytes/s that it may still move; its share is ``limit_ratio``."""

    name: str
    rung: RestrictionRung
    limit_bytes_s: float
    limit_ratio: float


@dataclass(frozen=True, slots=True)
class DeviceContention:
    """What is remembered of one device between samples.

    ``round`` is 0 while nothing is restricted. ``held`` is how many rounds a recovered device is held, and ``left`` how
    many of them are to come.
    """

    peak_bytes_s: float = 0.0
    low: int = 0
    calm: int = 0
    round: int = 0
    held: int = 1
    left: int = 1
    round_ends_s: float = 0.0
    recovered_s: float | None = None
    pause_s: float = FIRST_PAUSE_S
    paused_until_s: float = 0.0
    restrictions: tuple[Restriction, ...] = ()


@dataclass(frozen=True, slots=True)
class ContentionStep:
    """What is remembered and restricted from now on. ``reason`` is empty if nothing changed."""

    state: DeviceContention
    reason: str = ""

    @property
    def restrictions(self) -> tuple[Restriction, ...]:
        """The restrictions in force."""
        return self.state.restrictions


def observed(
    state: DeviceContention, sample: DeviceSample, contenders: Sequence[Contender]
) -> ContentionStep:
    """The state after ``sample``. A sample without a reading changes nothing but the end of a round."""
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
    """The state with its counters and its peak brought up to date."""
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
        ended = replace(state, round=0, restrictions=(), low=0, recovered_s=at_s, pause_s=FIRST_PAUSE_S)
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
        pause_s=min(MAX_PAUSE_S, 2 * state.pause_s),
    )
    return ContentionStep(
        ended, f"{MAX_ROUNDS} rounds did not help: next attempt in {state.pause_s:.0f} s at the earliest"
    )


def _restricted(
    state: DeviceContention, round_: int, at_s: float, contenders: Sequence[Contender]
) -> ContentionStep:
    """The state in its round ``round_``; as before if no copper uses the device."""
    culprits, rest = _culprits(contenders, state.peak_bytes_s)
    if not culprits:
        return ContentionStep(replace(state, round=0, restrictions=(), low=0), "no copper uses the device")
    wanted = sum(each.demand_bytes_s for each in culprits)
    ratio = min(1.0, max(LEAST_SHARE, (state.peak_bytes_s - rest) / wanted))
    if ratio >= 1.0:
        ratio = max(LEAST_SHARE, FIRST_SHARE**round_)
    restrictions = tuple(_restriction(each, _rung(each, round_), ratio) for each in culprits)
    names = ", ".join(f"{each.name} by {each.rung}" for each in restrictions)
    started = replace(state, round=round_, round_ends_s=at_s + ROUND_S, calm=0, restrictions=restrictions)
    return ContentionStep(
        started, f"round {round_}: the device is busy below {THETA:.0%} of its peak; restricts {names}"
    )


def _restriction(culprit: Contender, rung: RestrictionRung, ratio: float) -> Restriction:
    beyond = max(0, _RUNGS.index(rung) - _RUNGS.index(RestrictionRung.DEVICE_CEILING))
    ratio *= TIGHTER**beyond
    return Restriction(culprit.name, rung, culprit.demand_bytes_s * ratio, ratio)


def _rung(culprit: Contender, round_: int) -> RestrictionRung:
    """The rung of a round; who takes no hints begins with the device's ceiling."""
    return _RUNGS[min(len(_RUNGS) - 1, round_ - 1 + (not culprit.takes_hints))]


def _culprits(contenders: Sequence[Contender], peak_bytes_s: float) -> tuple[list[Contender], float]:
    """The fewest copper jobs of greatest demand without which the rest fits the peak, and the demand of that rest."""
    rest = sum(each.demand_bytes_s for each in contenders)
    culprits: list[Contender] = []
    copper = [each for each in contenders if each.band is QosBand.COPPER and each.demand_bytes_s > 0]
    for each in sorted(copper, key=lambda one: (-one.demand_bytes_s, one.name)):
        if culprits and rest <= peak_bytes_s:
            break
        culprits.append(each)
        rest -= each.demand_bytes_s
    return culprits, rest
