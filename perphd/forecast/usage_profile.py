"""Usage profiles of applications, learned on every node and merged between nodes (Optum, EuroSys 2023).

CPU. For two pods p of application A and q of B on one host, sampled at the same instant:

    RO(p, q, t) = (usage_p + usage_q) / (request_p + request_q)
    ERO(A, B)   = max over p, q, t of RO

Usage is clamped to the pod's limit, and may exceed the request: RO may exceed 1. An unseen pair has ERO 1. A
maximum over all time would never forget one bad sample, so maxima are kept per period and forgotten after
``KEPT_PERIODS``.

Memory. An application counts with its greatest observed utilisation if its pods' memory utilisation has a
coefficient of variation of at most .01; any other application counts with its full request.

``merged`` is commutative, associative and idempotent: nodes can exchange profiles in any order and
repeatedly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

KEPT_PERIODS: Final = 7
"""Number of periods whose maxima count: a week, with periods of one day."""
FORMAT: Final = "perphd usage profile 1"
UNSEEN_RATIO: Final = 1.0
STABLE_VARIATION: Final = 0.01
"""Maximum coefficient of variation of memory utilisation that counts as stable."""


@dataclass(frozen=True, slots=True)
class PodSample:
    """One pod at one instant, CPU in cores. ``limit_cores`` is infinite if there is no limit."""

    application: str
    request_cores: float
    usage_cores: float
    limit_cores: float = math.inf


@dataclass(frozen=True, slots=True)
class MemorySpread:
    """Memory utilisations (used over requested) of one application's pods on one node.

    ``generation`` counts the node's own updates; the newer of two records of a node wins.
    """

    generation: int
    pods: int
    mean_ratio: float
    squares: float
    greatest_ratio: float


@dataclass(frozen=True, slots=True)
class UsageProfile:
    """Greatest RO per pair of applications (sorted) and period; memory spread per application and node."""

    peaks: Mapping[tuple[str, str], Mapping[int, float]] = field(default_factory=dict)
    memory: Mapping[tuple[str, str], MemorySpread] = field(default_factory=dict)


def observed(profile: UsageProfile, pods: Sequence[PodSample], period: int) -> UsageProfile:
    """``profile`` with one sample of all pods of a host; the same object if no maximum changed."""
    if len(pods) < 2:
        return profile
    request = np.array([pod.request_cores for pod in pods])
    usage = np.array([min(pod.usage_cores, pod.limit_cores) for pod in pods])
    first, second = np.triu_indices(len(pods), 1)
    requested = request[first] + request[second]
    ratios = (usage[first] + usage[second])[requested > 0] / requested[requested > 0]
    changed: dict[tuple[str, str], Mapping[int, float]] = {}
    places = zip(first[requested > 0].tolist(), second[requested > 0].tolist(), ratios.tolist(), strict=True)
    for i, j, ratio in places:
        pair = pair_of(pods[i].application, pods[j].application)
        known = changed.get(pair, profile.peaks.get(pair, {}))
        if ratio > known.get(period, -math.inf):
            changed[pair] = {**known, period: ratio}
    if not changed:
        return profile
    return _forgetful(UsageProfile({**profile.peaks, **changed}, profile.memory))


def with_memory(profile: UsageProfile, node: str, ratios: Mapping[str, Sequence[float]]) -> UsageProfile:
    """``profile`` with the present memory utilisations of ``node``'s pods, per application."""
    memory = dict(profile.memory)
    for application, found in ratios.items():
        if not found:
            continue
        known = memory.get((application, node))
        mean = sum(found) / len(found)
        memory[application, node] = MemorySpread(
            known.generation + 1 if known else 1,
            len(found),
            mean,
            sum((ratio - mean) ** 2 for ratio in found),
            max(*found, known.greatest_ratio if known else 0.0),
        )
    return UsageProfile(profile.peaks, memory)


def merged(profiles: Iterable[UsageProfile]) -> UsageProfile:
    """The union of these profiles."""
    peaks: dict[tuple[str, str], dict[int, float]] = {}
    memory: dict[tuple[str, str], MemorySpread] = {}
    for profile in profiles:
        for pair, periods in profile.peaks.items():
            kept = peaks.setdefault(pair, {})
            for period, ratio in periods.items():
                kept[period] = max(ratio, kept.get(period, ratio))
        for place, spread in profile.memory.items():
            memory[place] = max(spread, memory.get(place, spread), key=_rank)
    return _forgetful(UsageProfile(peaks, memory))


def pair_of(first: str, second: str) -> tuple[str, str]:
    """The key of a pair of applications, in either order."""
    return (first, second) if first <= second else (second, first)


def effective_ratio(profile: UsageProfile, first: str, second: str) -> float:
    """ERO of two applications, or of one with itself: the greatest ratio of the kept periods; 1 for an unseen
    pair.
    """
    periods = profile.peaks.get(pair_of(first, second))
    return max(periods.values()) if periods else UNSEEN_RATIO


def memory_ratio(profile: UsageProfile, application: str) -> float:
    """The share of its memory request at which a pod of ``application`` counts: 1 unless its use is stable."""
    spreads = [spread for (name, _), spread in profile.memory.items() if name == application]
    pods = sum(spread.pods for spread in spreads)
    if not pods:
        return 1.0
    mean = sum(spread.mean_ratio * spread.pods for spread in spreads) / pods
    squares = sum(spread.squares + spread.pods * (spread.mean_ratio - mean) ** 2 for spread in spreads)
    stable = mean > 0 and math.sqrt(squares / pods) / mean <= STABLE_VARIATION
    return max(spread.greatest_ratio for spread in spreads) if stable else 1.0


def _rank(spread: MemorySpread) -> tuple[float, ...]:
    return spread.generation, spread.pods, spread.greatest_ratio, spread.mean_ratio, spread.squares


def _forgetful(profile: UsageProfile) -> UsageProfile:
    newest = max((period for periods in profile.peaks.values() for period in periods), default=0)
    kept = {
        pair: {period: ratio for period, ratio in periods.items() if period > newest - KEPT_PERIODS}
        for pair, periods in profile.peaks.items()
    }
    return UsageProfile({pair: periods for pair, periods in kept.items() if periods}, profile.memory)


def as_record(profile: UsageProfile) -> dict[str, Any]:
    """The profile as JSON values."""
    return {
        "format": FORMAT,
        "peaks": [
            [first, second, [[period, ratio] for period, ratio in sorted(periods.items())]]
            for (first, second), periods in sorted(profile.peaks.items())
        ],
        "memory": [
            [application, node, *_rank_fields(spread)]
            for (application, node), spread in sorted(profile.memory.items())
        ],
    }


def from_record(record: Mapping[str, Any]) -> UsageProfile:
    """The profile that ``as_record`` described.

    Raises:
        ValueError, KeyError, TypeError: the record is invalid.
    """
    if record["format"] != FORMAT:
        raise ValueError(f"its format is {str(record['format'])[:40]!r}, not {FORMAT!r}")
    peaks: dict[tuple[str, str], dict[int, float]] = {}
    for first, second, periods in record["peaks"]:
        peaks[pair_of(str(first), str(second))] = {int(period): _positive(ratio) for period, ratio in periods}
    memory = {
        (str(application), str(node)): MemorySpread(
            int(generation), int(pods), _positive(mean), _positive(squares), _positive(greatest)
        )
        for application, node, generation, pods, mean, squares, greatest in record["memory"]
    }
    return UsageProfile(peaks, memory)


def _rank_fields(spread: MemorySpread) -> tuple[float, ...]:
    return spread.generation, spread.pods, spread.mean_ratio, spread.squares, spread.greatest_ratio


def _positive(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{number} must be a finite number, 0 or more")
    return number
