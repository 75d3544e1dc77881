"""Divides CPU time, and computes how neighbours on the same and adjacent CPUs affect an LRA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.sim.node.cpu import divide, divide_one
from perphd.sim.node.grant import Array, CpuLayout, Grants
from perphd.sim.node.machine import Machine
from perphd.sim.node.population import Population
from perphd.sim.node.state import DRAIN_S, State

_WAKER_BONUS: Final = 1.5  # factor on the share of threads that sleep between bursts (LRAs)
_LRA_RIVAL: Final = 0.3  # fraction of the wake-up delay if the neighbour is an LRA, which soon sleeps again
_PLAIN_SIZE: Final = 40  # number of workloads x classes up to which plain numbers are faster than arrays
_TINY: Final = 1e-12


@dataclass(slots=True)
class Cpu:
    """The present division of the CPUs: [B,W] unless stated otherwise.

    ``entitled``: cores that each workload gets if it asks for all that it can use (``most``); ``usage``:
    cores in use at the present demands; ``domain`` [B,W,D]: share of each workload's time in each domain;
    ``smt``: speed relative to that with idle siblings; ``overlap``: share of the time in which siblings are busy;
    ``hit``: probability that another thread runs where a thread of the workload wakes; ``ratio``: that thread's weight
    relative to the waking thread's; ``idle``: share of the workload's allowed CPUs that are idle (0 where that does
    not matter); ``mix``: foreign work in its private caches; ``near``: foreign work on adjacent CPUs.
    """

    entitled: Array
    most: Array
    usage: Array
    domain: Array
    smt: Array
    overlap: Array
    ratio: Array
    hit: Array
    mix: Array
    near: Array
    weight: Array
    wanted: Array
    idle: Array


class Division:
    """Divides the CPUs of one machine among one population."""

    def __init__(self, machine: Machine, people: Population) -> None:
        self._machine, self._people, self._physics = machine, people, machine.physics
        self._lras = np.flatnonzero(people.lra).tolist()
        # Values that depend only on the population are computed once, not in every step.
        self._is_lra = people.lra > 0
        self._is_open = people.lra * (1.0 - people.closed) > 0
        self._bonus = np.where(self._is_lra, _WAKER_BONUS, 1.0)
        self._pair = 1.0 - np.eye(people.count)
        self._rival = np.where(self._is_lra, _LRA_RIVAL, 1.0)
        self._feels_near = bool(people.neighbour_cost.any())

    def divide(self, state: State, rows: Grants, load: Array) -> Cpu:
        """The division for the demands in the state."""
        people, layout = self._people, rows.layout
        room = np.minimum(layout.cpus, rows.limit_cores)
        is_lra = self._is_lra
        most = np.minimum(people.threads * np.where(is_lra, 1.0, load), room)
        service = state.service
        asked = people.rate * load + state.backlog / DRAIN_S
        lra_cores = np.where(self._is_open, asked, state.free_rate) * service
        batch_cores = people.threads * load * service / (service + state.stalled)
        wanted = np.minimum(np.where(is_lra, lra_cores, batch_cores), most)
        weight = rows.weight * self._bonus
        # First the CPU time that each would get if an LRA demanded everything; then the actual use.
        crowded = [index for index in self._lras if layout.shares[index]]
        demands = [wanted]
        for index in crowded:
            greedy = wanted.copy()
            greedy[:, index] = most[:, index]
            demands.append(greedy)
        first, *greedies = self._divisions(layout, weight, demands)
        entitled = most.copy()
        for index, got in zip(crowded, greedies, strict=True):
            entitled[:, index] = got[:, index].sum(1)
        entitled = np.maximum(entitled, 1e-3)
        if state.last is not None and state.last[0] is rows:
            final = state.last[1]
        else:
            used = np.where(is_lra, np.minimum(state.rate * service, entitled), wanted)
            (final,) = self._divisions(layout, weight, [used])
        usage = final.sum(2)
        overlap = np.zeros_like(usage)
        if self._machine.threads_per_core > 1:
            busy = np.minimum(final.sum(1) / layout.size_floor, 1.0)
            beside = np.einsum("bkl,bl->bk", layout.sibling, busy)
            spread = np.einsum("bwk,bk->bw", layout.member, layout.size * beside)
            overlap = (spread / layout.cpus_floor) ** self._physics.overlap_power
        ratio, hit, mix, near = self._contention(state, rows, first)
        by_domain = np.einsum("bwk,bkd->bwd", final, layout.domain)
        total = usage[..., None]
        domain = np.where(total > 1e-6, by_domain / np.maximum(total, 1e-6), layout.spread)
        smt = 1.0 - people.smt_loss * overlap
        idle = np.zeros_like(usage)
        if self._physics.halt_ms > 0.0:
            free = layout.size * (1.0 - np.minimum(final.sum(1) / layout.size_floor, 1.0))
            idle = np.einsum("bwk,bk->bw", layout.member, free) / layout.cpus_floor
        return Cpu(entitled, most, usage, domain, smt, overlap, ratio, hit, mix, near, weight, wanted, idle)

    def share_out(self, state: State, rows: Grants, cpu: Cpu, used: Array) -> Array:
        """Cores of each workload [B,W] if LRAs use ``used`` and batch uses the rest; never more than available."""
        lra = self._is_lra
        if not any(rows.layout.shares):
            return np.where(lra, np.minimum(used, cpu.most), cpu.usage)
        (got,) = self._divisions(rows.layout, cpu.weight, [np.where(lra, used, cpu.wanted)])
        state.last = (rows, got)
        shared: Array = np.minimum(got.sum(2), np.where(lra, used, np.inf))
        return shared

    def _contention(self, state: State, rows: Grants, got: Array) -> tuple[Array, Array, Array, Array]:
        """Effects on each LRA of neighbours on the same CPUs, and next to them: see ``mix_cost``."""
        people, layout = self._people, rows.layout
        zero = np.zeros_like(state.rate)
        if not any(layout.shares[index] for index in self._lras) and not self._feels_near:
            return zero, zero, zero, zero
        total = got.sum(2)
        own, theirs = got[:, :, None, :], got[:, None, :, :]
        met = (own > 0) & (theirs > 0)
        part = own / np.maximum(total, _TINY)[:, :, None, None]
        size = layout.size[:, None, None, :]
        present = np.minimum(1.0, theirs / np.maximum(size - own, np.maximum(0.05 * size, _TINY)))
        pair = self._pair
        # A waking thread finds another CPU while some are idle.
        share = np.where(met, part * present * present, 0.0).sum(3) * pair
        hits = people.pollution * share
        between = people.pollution[None, None, :, None] * theirs / np.maximum(own + theirs, _TINY)
        half = self._physics.mix_half
        dirt = np.where(met, part * between / (between + half) * (1.0 + half), 0.0).sum(3) * pair
        awake = np.minimum(np.maximum(state.runnable, 1.0), layout.cpus)
        mine = rows.weight[:, :, None] if rows.mine is None else rows.mine
        theirs_w = rows.weight[:, None, :] if rows.theirs is None else rows.theirs
        one_thread = mine / awake[:, :, None]
        if rows.flat is not None:
            one_thread = np.where(rows.flat[:, :, None] > 0, mine, one_thread)
        ratio = (share * self._rival * theirs_w / layout.cpus[:, None, :] / one_thread).sum(2)
        near = zero
        if self._feels_near:
            beside = np.where(own <= 0, layout.near[:, :, None, :] * theirs, 0.0).sum(3) * pair
            around = np.einsum("bwk,bk->bw", layout.near, layout.size)
            near = (people.pollution * beside).sum(2) / np.maximum(around, 1.0)
        return ratio, np.minimum(1.0, hits.sum(2)), np.minimum(1.0, dirt.sum(2)), near

    def mix_cost(self, cpu: Cpu) -> Array:
        """CPU time of a request relative to an undisturbed one, due to neighbours in the private caches."""
        people = self._people
        mixed = (people.mix_cost - people.mix_relief * np.minimum(1.0, cpu.ratio)) * cpu.mix
        mixed = mixed * self._physics.mix_scale
        cost: Array = 1.0 + people.lra * (mixed + people.neighbour_cost * cpu.near)
        return cost

    @staticmethod
    def _divisions(layout: CpuLayout, weight: Array, demands: list[Array]) -> list[Array]:
        size, member = layout.size, layout.member
        batch, workloads, classes = member.shape
        if batch == 1 and workloads * classes <= _PLAIN_SIZE:
            weights = weight[0].tolist()
            sizes, members = layout.plain
            return [np.array([divide_one(sizes, members, weights, demand[0].tolist())]) for demand in demands]
        count = len(demands)
        if count == 1:
            return [divide(size, member, weight, demands[0])]
        got = divide(
            np.concatenate([size] * count),
            np.concatenate([member] * count),
            np.concatenate([weight] * count),
            np.concatenate(demands),
        )
        return [got[batch * index : batch * (index + 1)] for index in range(count)]
