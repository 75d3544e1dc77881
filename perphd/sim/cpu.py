"""How the scheduler divides the CPUs: weighted max-min fairness, restricted by cpusets, wasting nothing.

CPUs that the same claims may use are alike; so the division is computed over such classes, not over CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from perphd.domain.cpuset import CpuSet

_EPSILON = 1e-9
_OWN_SHARE = 0.85
"""How far a claim fills CPUs that nobody else wants before it turns to shared ones: wake-ups come in bursts."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody who wants ``demand_cores`` of these CPUs; ``weight`` counts against the others' weights."""

    cpus: CpuSet
    weight: float
    demand_cores: float


@dataclass(frozen=True, slots=True)
class CpuClass:
    """CPUs that exactly the claims ``members`` (their indices) may use."""

    cpus: CpuSet
    size: int
    members: tuple[int, ...]


@lru_cache(maxsize=256)
def classes(cpusets: tuple[CpuSet, ...]) -> tuple[CpuClass, ...]:
    """The CPUs of all these sets, grouped by who may use them."""
    found: dict[tuple[int, ...], int] = {}
    everything = CpuSet()
    for cpus in cpusets:
        everything = everything | cpus
    for cpu in everything:
        members = tuple(index for index, cpus in enumerate(cpusets) if cpu in cpus)
        found[members] = found.get(members, 0) | 1 << cpu
    return tuple(CpuClass(CpuSet(mask), mask.bit_count(), members) for members, mask in found.items())


def divide(claims: Sequence[Claim]) -> list[list[float]]:
    """CPUs that each claim gets of each class (``classes`` of the claims' cpusets, in that order).

    Rounds: everybody asks for what it lacks, first where nobody else asks, else wherever something is free;
    what is asked for too often is given by weight. A group's weight is spread over the CPUs that it asks for,
    as the kernel does with a group's shares. Ends when nobody lacks anything or nothing usable is free.
    """
    groups = classes(tuple(claim.cpus for claim in claims))
    free = [float(group.size) for group in groups]
    got = [[0.0] * len(groups) for _ in claims]
    lack = [min(claim.demand_cores, float(len(claim.cpus))) for claim in claims]
    most = list(lack)
    for _ in range(2 * len(groups) + len(claims) + 1):
        wants = _wants(groups, free, lack)
        if not any(wants):
            break
        for index, group_wants in enumerate(wants):
            weights = {
                who: claims[who].weight * want / lack[who] + _EPSILON for who, want in group_wants.items()
            }
            for who, share in fair_shares(free[index], group_wants, weights).items():
                got[who][index] += share
                free[index] -= share
        lack = [limit - sum(row) for limit, row in zip(most, got, strict=True)]
    return got


def _wants(
    groups: Sequence[CpuClass], free: Sequence[float], lack: Sequence[float]
) -> list[dict[int, float]]:
    wants: list[dict[int, float]] = [{} for _ in groups]
    asking = [
        [who for who in group.members if lack[who] > _EPSILON] if room > _EPSILON else []
        for group, room in zip(groups, free, strict=True)
    ]
    for who, need in enumerate(lack):
        if need <= _EPSILON:
            continue
        own = [index for index, askers in enumerate(asking) if askers == [who]]
        shared = [index for index, askers in enumerate(asking) if who in askers and len(askers) > 1]
        own_room = sum(free[index] for index in own)
        shared_room = sum(free[index] for index in shared)
        at_own = min(need, own_room if not shared else own_room * _OWN_SHARE)
        at_shared = min(need - at_own, shared_room)
        for index in own:
            wants[index][who] = at_own * free[index] / own_room
        for index in shared:
            wants[index][who] = at_shared * free[index] / shared_room
    return wants


def fair_shares(room: float, wants: dict[int, float], weights: dict[int, float]) -> dict[int, float]:
    """Weighted max-min: nobody gets more than it wants; what is left is divided by weight."""
    shares: dict[int, float] = {}
    order = sorted(wants, key=lambda who: wants[who] / weights[who])
    total = sum(weights[who] for who in order)
    for who in order:
        share = min(wants[who], room * weights[who] / total) if total > 0 else 0.0
        shares[who] = share
        room -= share
        total -= weights[who]
    return shares
