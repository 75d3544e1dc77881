"""Divides the CPUs as the scheduler does: weighted max-min fairness, restricted by cpusets, without waste.

In rounds, every claim asks for the CPU time that it lacks, first on CPUs without other claims, then on any
CPU with free time; contended CPUs are divided by weight. A group's weight is spread over the CPUs that it
asks for, as the kernel does with a group's shares. The division is computed over classes of equivalent CPUs:
with plain numbers for a single moment, with arrays for many alternatives. Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from perphd.sim.node.grant import Array

_EPSILON: Final = 1e-9
_OWN_SHARE: Final = 0.85
"""Share to which a claim fills CPUs without competitors before it uses shared ones, because wake-ups come in
bursts.
"""


def divide_one(
    sizes: Sequence[float],
    members: Sequence[Sequence[int]],
    weights: Sequence[float],
    demands: Sequence[float],
) -> list[list[float]]:
    """CPUs of each class for each claim.

    Args:
        sizes: CPUs of each class.
        members: indices of the claims that may use each class.
        weights: weight of each claim relative to the others.
        demands: cores that each claim wants.
    """
    free = list(sizes)
    got = [[0.0] * len(free) for _ in weights]
    most = [0.0] * len(weights)
    for size, group in zip(sizes, members, strict=True):
        for who in group:
            most[who] += size
    most = [min(demand, limit) for demand, limit in zip(demands, most, strict=True)]
    lack = list(most)
    for _ in range(2 * len(free) + len(weights) + 1):
        wants = _wants(members, free, lack)
        if not any(wants):
            break
        for index, group_wants in enumerate(wants):
            if not group_wants:
                continue
            if len(group_wants) == 1:
                ((who, want),) = group_wants.items()
                share = min(want, free[index])
                got[who][index] += share
                free[index] -= share
                continue
            by_weight = {who: weights[who] * want / lack[who] + _EPSILON for who, want in group_wants.items()}
            for who, share in fair_shares(free[index], group_wants, by_weight).items():
                got[who][index] += share
                free[index] -= share
        lack = [limit - sum(row) for limit, row in zip(most, got, strict=True)]
        if max(lack) <= _EPSILON or max(free) <= _EPSILON:
            break
    return got


def _wants(
    members: Sequence[Sequence[int]], free: Sequence[float], lack: Sequence[float]
) -> list[dict[int, float]]:
    wants: list[dict[int, float]] = [{} for _ in members]
    classes: list[tuple[list[int], list[int]]] = [([], []) for _ in lack]
    for index, group in enumerate(members):
        if free[index] <= _EPSILON:
            continue
        askers = [who for who in group if lack[who] > _EPSILON]
        if len(askers) == 1:
            classes[askers[0]][0].append(index)
        else:
            for who in askers:
                classes[who][1].append(index)
    for who, (own, shared) in enumerate(classes):
        if not own and not shared:
            continue
        need = lack[who]
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
    """Weighted max-min fairness: no claim gets more than it wants; the rest is divided by weight."""
    shares: dict[int, float] = {}
    order = sorted(wants, key=lambda who: wants[who] / weights[who])
    total = sum(weights[who] for who in order)
    for who in order:
        share = min(wants[who], room * weights[who] / total) if total > 0 else 0.0
        shares[who] = share
        room -= share
        total -= weights[who]
    return shares


def divide(size: Array, member: Array, weight: Array, demand: Array) -> Array:
    """``divide_one`` for B alternatives: ``size`` [B,K]; ``member`` [B,W,K]; ``weight``, ``demand`` [B,W].

    Returns the cores of each claim on each class of CPUs, [B,W,K].
    """
    free = size.copy()
    got = np.zeros_like(member)
    most = np.minimum(demand, np.einsum("bwk,bk->bw", member, size))
    lack = most.copy()
    for _ in range(2 * size.shape[1] + weight.shape[1] + 1):
        want = _want(member, free, lack)
        if not want.any():
            break
        by_weight = np.where(
            want > 0, (weight / np.maximum(lack, _EPSILON))[:, :, None] * want + _EPSILON, _EPSILON**2
        )
        share = _fair(free, want, by_weight)
        got += share
        free = np.maximum(free - share.sum(1), 0.0)
        lack = most - got.sum(2)
    return got


def _want(member: Array, free: Array, lack: Array) -> Array:
    asking = member * (lack > _EPSILON)[:, :, None] * (free > _EPSILON)[:, None, :]
    askers = asking.sum(1)[:, None, :]
    own = asking * (askers == 1) * free[:, None, :]
    shared = asking * (askers > 1) * free[:, None, :]
    own_room, shared_room = own.sum(2), shared.sum(2)
    at_own = np.minimum(lack, np.where(shared_room > 0, own_room * _OWN_SHARE, own_room))
    at_shared = np.minimum(lack - at_own, shared_room)
    own_part = at_own / np.maximum(own_room, _EPSILON)
    shared_part = at_shared / np.maximum(shared_room, _EPSILON)
    want: Array = np.maximum(own_part[:, :, None] * own + shared_part[:, :, None] * shared, 0.0)
    return want


def _fair(room: Array, want: Array, weight: Array) -> Array:
    order = np.argsort(want / weight, axis=1)
    wants, weights = np.take_along_axis(want, order, 1), np.take_along_axis(weight, order, 1)
    spent, passed = np.cumsum(wants, 1) - wants, np.cumsum(weights, 1) - weights
    level = np.maximum(room[:, None, :] - spent, 0.0) / np.maximum(
        weights.sum(1)[:, None, :] - passed, _EPSILON**2
    )
    unmet = wants > level * weights
    first = unmet.argmax(1)[:, None, :]
    cut = np.where(unmet.any(1)[:, None, :], np.take_along_axis(level, first, 1), np.inf)
    share: Array = np.where(want > 0, np.minimum(want, cut * weight), 0.0)
    return share
