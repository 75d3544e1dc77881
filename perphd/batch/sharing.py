"""Divides a contended host's CPU among tasks, and orders evictions (DistSched, 5.1.3, 5.4.1).

CPU is soft. Every task is entitled to capacity * request / sum of requests. The unused part of a task's
entitlement is divided among tasks that need more, in proportion to their requests, until all are satisfied or
nothing is left (water-filling).

Memory is hard. Only copper is evicted: the workload furthest beyond its entitlement first, and the largest first
among equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perphd.qos.bands import QosBand

_NOTHING = 1e-12


def divided(capacity: float, requests: Sequence[float], demands: Sequence[float]) -> tuple[float, ...]:
    """The share of each task by water-filling; never more than its demand."""
    given = [0.0] * len(demands)
    hungry = {
        n for n, (request, demand) in enumerate(zip(requests, demands, strict=True)) if request > 0 < demand
    }
    left = capacity
    while hungry and left > _NOTHING * capacity:
        total = sum(requests[n] for n in hungry)
        shares = {n: left * requests[n] / total for n in hungry}
        satisfied = {n for n in hungry if demands[n] - given[n] <= shares[n]}
        for n in satisfied or hungry:
            share = demands[n] - given[n] if satisfied else shares[n]
            given[n] += share
            left -= share
        if not satisfied:
            break
        hungry -= satisfied
    return tuple(given)


def actual_cpu(
    capacity: float, request: float, others_request: float, needed: float, others_needed: float
) -> float:
    """The CPU that a new task gets beside the running ones (5.2.1).

    its need                       if that is within its share of the host
    its share                      otherwise, if the running tasks need more than their own share
    min(idle CPU, its need)        otherwise
    """
    share = capacity * request / (request + others_request)
    if needed <= share:
        return needed
    if others_needed > capacity - share:
        return share
    return min(needed, capacity - others_needed)


@dataclass(frozen=True, slots=True)
class MemoryUser:
    """A workload that holds memory, and its entitlement."""

    name: str
    band: QosBand
    used_bytes: int
    entitled_bytes: int


def evicted(users: Sequence[MemoryUser], limit_bytes: int) -> tuple[str, ...]:
    """Workloads to evict, in order, until the rest is within ``limit_bytes``. Only copper is ever evicted."""
    used = sum(user.used_bytes for user in users)
    chosen: list[str] = []
    copper = [user for user in users if not user.band.protected]
    for user in sorted(
        copper, key=lambda one: (one.entitled_bytes - one.used_bytes, -one.used_bytes, one.name)
    ):
        if used <= limit_bytes:
            break
        chosen.append(user.name)
        used -= user.used_bytes
    return tuple(chosen)
