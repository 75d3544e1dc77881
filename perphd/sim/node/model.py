"""The node: from what is in force and what is asked to usage, performance and pressure of every workload.

All parts meet in one balance: the CPU time of an operation depends on cache, memory channels, neighbours and
hyperthreads; how much of them others use depends on their operations per second; and so on around. ``Node.solve``
iterates to the balance of a steady state, for one moment or for thousands of alternatives at once; ``Node.step``
lets a state move on by a little time, with the cache filling, backlogs growing and memory following.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from perphd.sim.node import cache, congestion, latency
from perphd.sim.node.cpu import divide, divide_one
from perphd.sim.node.grant import Array, CpuLayout, Grant, Grants, grants
from perphd.sim.node.machine import Machine
from perphd.sim.node.outcome import Outcomes
from perphd.sim.node.population import Population, population
from perphd.sim.node.workload import NodeWorkload

# Memory channels: latency grows to about twice the idle one at four fifths of the peak.
_CHANNEL_DELAY: Final = 0.30
_HIT_TRAFFIC: Final = (
    0.5  # of a cache hit's line counts against a throttled core: the delay sits before the cache
)
# Wake-up delay per request: ms when batch weighs as much as a waking thread, and how it grows from there.
_WAKE_S: Final = 0.75e-3
_WAKE_POWER: Final = 1.9
_WAKE_FLOOR_S: Final = 0.12e-3  # even an idle-class task must first be switched away from
_WAKE_CEILING: Final = 6.0  # slices end: a bigger ratio does not delay more
_WAKER_BONUS: Final = 1.5  # in shares, for those that sleep between bursts
_LRA_RIVAL: Final = 0.3  # of that delay, when the neighbour is an LRA: it soon sleeps again
_MIX_HALF: Final = 0.10  # share of batch at which half of the damage to private caches is done
_SPREAD_CONTENDED: Final = 0.30
_RESERVE: Final = 0.03  # of the host's memory, for the kernel
_STUCK_SPEED: Final = 0.15  # over its limit with nothing to reclaim
_SETTLE_S: Final = 0.4  # private caches and load balancing follow a change within this time constant
_OVERLOAD_S: Final = 20.0  # how long an overloaded open loop is watched in a steady-state question
_ROUNDS: Final = 40  # at most; few alternatives need more than six
_INNER: Final = 3
_STILL: Final = 3e-4  # relative change in a round at which an alternative has settled
_TINY: Final = 1e-12
_SHARED: Final = frozenset({"channels", "disk", "link"})  # of a state: the node's, not a workload's


@dataclass(slots=True)
class State:
    """What a node remembers from one step to the next, for B alternatives."""

    rate: Array
    free_rate: Array
    occupancy: Array
    channels: Array
    disk: Array
    link: Array
    mix_cost: Array
    runnable: Array
    backlog: Array
    resident: Array
    service: Array
    stalled: Array
    """Waiting for disk, link and memory per operation (s)."""

    def take(self, rows: npt.NDArray[np.bool_]) -> State:
        """A copy of these alternatives."""
        return State(*(getattr(self, f.name)[rows] for f in fields(self)))

    def put(self, rows: npt.NDArray[np.int64], other: State) -> None:
        """Overwrite these alternatives with those of ``other``."""
        for f in fields(self):
            getattr(self, f.name)[rows] = getattr(other, f.name)


@dataclass(slots=True)
class _Cpu:
    """How the CPUs are divided now."""

    entitled: Array
    most: Array
    usage: Array
    """[B,W]: with what everybody wants now."""
    domain: Array
    """[B,W,D]: share of each one's time in each domain."""
    smt: Array
    overlap: Array
    ratio: Array
    hit: Array
    mix: Array
    near: Array
    weight: Array
    wanted: Array


@dataclass(slots=True)
class _Flow:
    """What one pass over the balance found."""

    ips: Array
    mpki: Array
    service: Array
    loop: latency.Loop
    wake: Array
    rate: Array
    usage: Array
    stall_memory: Array
    stall_io: Array
    bandwidth: Array
    pressure: Array
    free_rate: Array
    cpi: Array
    asked: Array
    delay: Array
    own_disk_s: Array
    own_link_s: Array
    faults: Array
    speed: Array


class Node:
    """A machine and the workloads on it. Everything is noise-free and deterministic."""

    def __init__(self, machine: Machine, workloads: Sequence[NodeWorkload]) -> None:
        self.machine = machine
        self.people: Population = population(workloads)
        self._lras = np.flatnonzero(self.people.lra)
        self._any_open = bool((self.people.lra * (1.0 - self.people.closed)).any())
        people, ghz = self.people, machine.ghz * 1e9
        best = people.mpki_floor + people.mpki_swing * np.exp(-machine.l3_bytes / people.mpki_scale)
        self._full_speed = ghz / (people.cpi + people.miss_cycles * best / 1000.0)

    # -- questions -------------------------------------------------------------------------------------

    def solve(
        self,
        alternatives: Grants | Sequence[Grant] | Sequence[Sequence[Grant]],
        loads: Sequence[float] | Array | None = None,
        *,
        chunk: int = 256,
    ) -> Outcomes:
        """The steady state under each alternative.

        Args:
            alternatives: one grant per workload; or several such rows; or arrays of them (``grant.product``).
            loads: factor on what is asked of each workload (batch: on its threads); 1 if not given.
            chunk: alternatives computed at once.
        """
        table = self._table(alternatives)
        factor = np.ones(self.people.count) if loads is None else np.asarray(loads, dtype=float)
        parts = []
        for start in range(0, table.count, chunk):
            rows = table.take(slice(start, start + chunk)) if table.count > chunk else table
            load = np.broadcast_to(factor, (rows.count, self.people.count))
            state = self._balanced(rows, load)
            cpu = self._divide(state, rows, load)
            flow = self._pass(state, rows, cpu, load)
            self._share_out(rows, cpu, flow)
            parts.append(self._outcomes(state, rows, cpu, flow, load, steady=True))
        return parts[0] if len(parts) == 1 else _joined(parts)

    def start(self, count: int = 1, *, warm: bool = False) -> State:
        """The state of a node on which everybody has just started; ``warm``: with its cache already there."""
        people, domains = self.people, self.machine.sockets
        shape = (count, people.count)
        service = people.instructions / self._full_speed
        alone = people.clients / (service + people.wait_s + people.think_s + people.serial_s)
        share = self.machine.l3_bytes / people.count if warm else 0.0
        resident = people.cache if warm else np.zeros(people.count)
        return State(
            rate=np.tile(np.where(people.closed > 0, alone, people.rate), (count, 1)),
            free_rate=np.tile(alone, (count, 1)),
            occupancy=np.full((*shape, domains), share),
            channels=np.full((count, domains), 0.05),
            disk=np.full((count, 1), 0.01),
            link=np.full((count, 1), 0.01),
            mix_cost=np.ones(shape),
            runnable=np.ones(shape),
            backlog=np.zeros(shape),
            resident=np.tile(resident, (count, 1)),
            service=np.tile(service, (count, 1)),
            stalled=np.zeros(shape),
        )

    def carry_on(self, state: State, other: Node) -> State:
        """The state of this node when workloads came and went since ``state``, which was ``other``'s."""
        new = self.start(state.rate.shape[0])
        before = {work.name: index for index, work in enumerate(other.people.workloads)}
        stay = [(i, before[w.name]) for i, w in enumerate(self.people.workloads) if w.name in before]
        for f in fields(State):
            to, what = getattr(new, f.name), getattr(state, f.name)
            if f.name in _SHARED:
                to[:] = what
                continue
            for index, old in stay:
                to[:, index] = what[:, old]
        return new

    def step(
        self,
        state: State,
        in_force: Grants,
        dt_s: float,
        loads: Array,
        needs: Array | None = None,
        max_backlog: Array | float = 200.0,
    ) -> Outcomes:
        """Move ``state`` on by ``dt_s`` seconds and say how everybody fares in that time.

        ``state.resident`` (page cache in memory) is the caller's: it knows limits and reclaim.

        Args:
            state: changed in place; one alternative.
            in_force: what may be used.
            dt_s: seconds.
            loads: factor on what is asked, [W].
            needs: factor on the CPU time of an operation, [W].
            max_backlog: requests; an application refuses more.
        """
        load = loads[None, :]
        cpu = self._divide(state, in_force, load)
        flow = self._pass(state, in_force, cpu, load, needs)
        self._move(state, in_force, flow, 0.7)
        flow = self._pass(state, in_force, cpu, load, needs)
        self._move(state, in_force, flow, 0.7, dt_s)
        state.mix_cost += (self._mix(cpu) - state.mix_cost) * (1.0 - math.exp(-dt_s / _SETTLE_S))
        self._share_out(in_force, cpu, flow)
        outcomes = self._outcomes(state, in_force, cpu, flow, load, steady=False)
        people = self.people
        is_open = people.lra * (1.0 - people.closed)
        lacking = people.rate * load - flow.loop.rate
        state.backlog = np.clip(state.backlog + lacking * dt_s, 0.0, max_backlog) * is_open
        return outcomes

    def _balanced(self, rows: Grants, load: Array) -> State:
        """The state at which nothing moves any more; alternatives that got there are left alone."""
        state = self.start(rows.count, warm=True)
        self._remember(state, rows)
        whole, todo = state, np.arange(rows.count)
        for turn in range(_ROUNDS):
            before = np.concatenate([state.rate, state.service, state.occupancy.sum(2)], axis=1)
            cpu = self._divide(state, rows, load)
            for _ in range(_INNER):
                self._move(state, rows, self._pass(state, rows, cpu, load), 0.6)
            state.mix_cost += 0.7 * (self._mix(cpu) - state.mix_cost)
            if turn < 2:
                continue
            after = np.concatenate([state.rate, state.service, state.occupancy.sum(2)], axis=1)
            moving = (np.abs(after - before) > _STILL * (np.abs(after) + _TINY)).any(1)
            if not moving.any():
                break
            if 2 * np.count_nonzero(moving) < len(todo):
                whole.put(todo, state)
                todo, rows, load = todo[moving], rows.take(moving), load[moving]
                state = state.take(moving)
        whole.put(todo, state)
        return whole

    # -- the parts of the balance ------------------------------------------------------------------------

    def _table(self, alternatives: Grants | Sequence[Grant] | Sequence[Sequence[Grant]]) -> Grants:
        if isinstance(alternatives, Grants):
            return alternatives
        rows = [[row] if isinstance(row, Grant) else list(row) for row in alternatives]
        if isinstance(alternatives[0], Grant):
            rows = [[grant for row in rows for grant in row]]
        if any(len(row) != self.people.count for row in rows):
            raise ValueError(f"give one grant for each of the {self.people.count} workloads")
        return grants(self.machine, rows)

    def _remember(self, state: State, rows: Grants) -> None:
        """Page cache that stays in memory in a steady state, under own limits and the host's size."""
        people = self.people
        wanted = np.clip(rows.memory_bytes - people.anon, 0.0, people.cache)
        room = self.machine.memory_bytes * (1.0 - _RESERVE)
        over = (wanted + people.anon).sum(1, keepdims=True) - room
        kept = np.clip(rows.protected_bytes - people.anon, 0.0, wanted)
        spare = wanted - kept
        share = np.clip(over / np.maximum(spare.sum(1, keepdims=True), 1.0), 0.0, 1.0)
        rest = over - spare.sum(1, keepdims=True)
        further = np.clip(rest / np.maximum(kept.sum(1, keepdims=True), 1.0), 0.0, 1.0)
        state.resident = wanted - spare * share - kept * further

    def _faults(self, state: State) -> Array:
        """Pages per operation that are not in memory."""
        people = self.people
        held = np.where(people.cache > 0, state.resident / np.maximum(people.cache, 1.0), 1.0)
        hot = np.minimum(held / np.maximum(people.hot_share, _TINY), 1.0)
        cold = np.clip((held - people.hot_share) / np.maximum(1.0 - people.hot_share, _TINY), 0.0, 1.0)
        found = people.hot_hits * hot + (1.0 - people.hot_hits) * np.where(people.hot_share < 1, cold, hot)
        faults: Array = people.pages * (1.0 - found)
        return faults

    def _divide(self, state: State, rows: Grants, load: Array) -> _Cpu:
        people, layout = self.people, rows.layout
        room = np.minimum(layout.cpus, rows.limit_cores)
        most = np.minimum(people.threads * np.where(people.lra > 0, 1.0, load), room)
        service = state.service
        is_open = people.lra * (1.0 - people.closed)
        asked = people.rate * load + state.backlog
        lra_cores = np.where(is_open > 0, asked, state.free_rate) * service
        batch_cores = people.threads * load * service / (service + state.stalled)
        wanted = np.minimum(np.where(people.lra > 0, lra_cores, batch_cores), most)
        weight = rows.weight * np.where(people.lra > 0, _WAKER_BONUS, 1.0)
        # First what everybody could have, and each LRA if it asked for everything; then what is really used.
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
        used = np.where(people.lra > 0, np.minimum(state.rate * service, entitled), wanted)
        (final,) = self._divisions(layout, weight, [used])
        usage = final.sum(2)
        overlap = np.zeros_like(usage)
        if self.machine.threads_per_core > 1:
            busy = np.minimum(final.sum(1) / np.maximum(layout.size, _TINY), 1.0)
            beside = np.einsum("bkl,bl->bk", layout.sibling, busy)
            spread = np.einsum("bwk,bk->bw", layout.member, layout.size * beside)
            overlap = (spread / np.maximum(layout.cpus, 1.0)) ** 2
        ratio, hit, mix, near = self._contention(state, rows, first)
        by_domain = np.einsum("bwk,bkd->bwd", final, layout.domain)
        where = np.einsum("bwk,bk,bkd->bwd", layout.member, layout.size, layout.domain)
        where = where / np.maximum(layout.cpus, 1.0)[..., None]
        total = usage[..., None]
        domain = np.where(total > 1e-6, by_domain / np.maximum(total, 1e-6), where)
        smt = 1.0 - people.smt_loss * overlap
        return _Cpu(entitled, most, usage, domain, smt, overlap, ratio, hit, mix, near, weight, wanted)

    @staticmethod
    def _divisions(layout: CpuLayout, weight: Array, demands: list[Array]) -> list[Array]:
        size, member = layout.size, layout.member
        batch, workloads, classes = member.shape
        if batch == 1 and workloads * classes <= 40:
            sizes, weights = size[0].tolist(), weight[0].tolist()
            members = [np.flatnonzero(member[0, :, k]).tolist() for k in range(classes)]
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

    def _contention(self, state: State, rows: Grants, got: Array) -> tuple[Array, Array, Array, Array]:
        """What neighbours on the same CPUs, and beside them, do to each LRA: see ``_wake`` and ``_mix``."""
        people, layout = self.people, rows.layout
        zero = np.zeros_like(state.rate)
        if not any(layout.shares[index] for index in self._lras) and not people.neighbour_cost.any():
            return zero, zero, zero, zero
        total = got.sum(2)
        own, theirs = got[:, :, None, :], got[:, None, :, :]
        met = (own > 0) & (theirs > 0)
        part = own / np.maximum(total, _TINY)[:, :, None, None]
        size = layout.size[:, None, None, :]
        present = np.minimum(1.0, theirs / np.maximum(size - own, np.maximum(0.05 * size, _TINY)))
        pair = 1.0 - np.eye(people.count)
        # A waking thread finds another CPU while some are free.
        share = np.where(met, part * present * present, 0.0).sum(3) * pair
        hits = people.pollution * share
        between = people.pollution[None, None, :, None] * theirs / np.maximum(own + theirs, _TINY)
        dirt = np.where(met, part * between / (between + _MIX_HALF) * (1.0 + _MIX_HALF), 0.0).sum(3) * pair
        awake = np.clip(state.runnable, 1.0, layout.cpus)
        mine = rows.weight[:, :, None] if rows.mine is None else rows.mine
        theirs_w = rows.weight[:, None, :] if rows.theirs is None else rows.theirs
        one_thread = mine / awake[:, :, None]
        if rows.flat is not None:
            one_thread = np.where(rows.flat[:, :, None] > 0, mine, one_thread)
        rival = np.where(people.lra > 0, _LRA_RIVAL, 1.0)
        ratio = (share * rival * theirs_w / layout.cpus[:, None, :] / one_thread).sum(2)
        near = zero
        if people.neighbour_cost.any():
            beside = np.where(own <= 0, layout.near[:, :, None, :] * theirs, 0.0).sum(3) * pair
            around = np.einsum("bwk,bk->bw", layout.near, layout.size)
            near = (people.pollution * beside).sum(2) / np.maximum(around, 1.0)
        return ratio, np.minimum(1.0, hits.sum(2)), np.minimum(1.0, dirt.sum(2)), near

    def _mix(self, cpu: _Cpu) -> Array:
        """CPU time of a request over that of an undisturbed one, by neighbours in the private caches."""
        people = self.people
        mixed = (people.mix_cost - people.mix_relief * np.minimum(1.0, cpu.ratio)) * cpu.mix
        cost: Array = 1.0 + people.lra * (mixed + people.neighbour_cost * cpu.near)
        return cost

    def _pass(self, state: State, rows: Grants, cpu: _Cpu, load: Array, needs: Array | None = None) -> _Flow:
        """Once through the balance: CPU time of an operation, rates, traffic."""
        people, machine = self.people, self.machine
        # Instructions per second of a busy CPU: base, misses on channels as crowded as they are, throttle.
        mpki = cache.misses_pki(people, state.occupancy)
        delay = 1.0 + _CHANNEL_DELAY * state.channels[:, None, :]
        cpi = people.cpi[:, None] + people.miss_cycles[:, None] * mpki / 1000.0 * delay
        missed = mpki * people.written[:, None]
        line = cache.LINE / 1000.0
        asked = (missed + _HIT_TRAFFIC * np.maximum(people.refs_pki[:, None] - mpki, 0.0)) * line
        ips = machine.ghz * 1e9 / cpi * cpu.smt[..., None]
        limit = rows.core_limit * (1.0 - 0.5 * cpu.overlap)[..., None]
        ips = ips / (1.0 + (ips * asked / limit) ** 4) ** 0.25
        speed = (cpu.domain * ips).sum(2)
        crowd = np.maximum(1.0 - cpu.most / np.maximum(state.runnable, _TINY), 0.0)
        cost = state.mix_cost + people.switch_cost * crowd
        cost = cost + people.crosstalk * np.maximum(state.rate * state.service - 1.0, 0.0)
        service = people.instructions / speed * cost
        if needs is not None:
            service = service * needs
        # What an operation waits for besides: page faults, disk, link.
        faults = self._faults(state)
        stuck = rows.memory_bytes < people.anon
        slow = 1.0 + state.disk
        disk_s = (faults * machine.disk_ms / 1000.0 + faults * 4096.0 / machine.disk_bytes_per_s) * slow
        stall_memory = disk_s + np.where(stuck, service * (1.0 / _STUCK_SPEED - 1.0), 0.0)
        own_disk = people.disk_ops * machine.disk_ms / 1000.0 + people.disk_bytes / machine.disk_bytes_per_s
        own_link = people.net_bytes / machine.net_bytes_per_s
        stall_io = own_disk * slow + own_link * (1.0 + state.link)
        wake = _WAKE_FLOOR_S * cpu.hit + _WAKE_S * np.minimum(cpu.ratio**_WAKE_POWER, _WAKE_CEILING)
        # Rates.
        waits = people.wait_s + people.think_s + stall_memory + stall_io
        servers = np.maximum(1.0, cpu.most)
        clients = np.maximum(people.clients * load, _TINY)
        shared = (service, people.serial_s, waits + wake, cpu.entitled, servers)
        loop = latency.closed_step(state.rate, clients, *shared)
        if self._any_open:
            arriving = people.rate * load + state.backlog
            held = stall_memory + stall_io + wake
            opened = latency.open_loop(
                arriving,
                state.backlog,
                service,
                people.serial_s,
                waits + wake,
                held,
                people.threads,
                cpu.entitled,
                servers,
                people.bursts,
            )
            loop = _chosen(people.closed > 0, loop, opened)
        free = latency.closed_step(
            state.free_rate, clients, service, people.serial_s, waits, servers, servers
        )
        caps = np.minimum(
            rows.disk_cap / np.maximum(people.disk_bytes, _TINY),
            rows.net_cap / np.maximum(people.net_bytes, _TINY),
        )
        batch_rate = cpu.usage / service
        loop.rate = np.minimum(loop.rate, caps)
        rate = np.where(people.lra > 0, loop.rate, np.minimum(batch_rate, caps))
        usage = rate * service
        # Traffic.
        by_domain = usage[..., None] * cpu.domain * ips
        bandwidth = by_domain * missed * line
        return _Flow(
            ips,
            mpki,
            service,
            loop,
            wake,
            rate,
            usage,
            stall_memory,
            stall_io,
            bandwidth,
            by_domain * mpki * line,
            free.rate,
            cpi,
            asked,
            delay,
            own_disk,
            own_link,
            faults,
            speed,
        )

    def _move(
        self, state: State, rows: Grants, flow: _Flow, damping: float, dt_s: float | None = None
    ) -> None:
        """Let the state follow what was found; the cache only as far as ``dt_s`` allows, if given."""
        people, machine = self.people, self.machine
        is_batch = people.lra < 1
        state.rate, state.free_rate = flow.rate, flow.free_rate
        state.service = state.service + damping * (flow.service - state.service)
        state.stalled = flow.stall_memory + flow.stall_io
        state.runnable = np.where(
            is_batch,
            people.threads * flow.service / (flow.service + state.stalled),
            flow.usage + flow.rate * (flow.loop.cpu_wait_s + flow.wake),
        )
        # Who gives way when a queue gets longer: batch and closed loops; open ones only when they lag behind.
        lag = (people.rate > 0) & (flow.loop.rate < people.rate * 0.999)
        yields = np.where(is_batch | lag, 1.0, 0.5 * people.closed)
        share = people.miss_cycles[:, None] * flow.mpki / 1000.0 * _CHANNEL_DELAY / flow.cpi
        peak = machine.memory_bytes_per_s
        state.channels = congestion.balance(
            state.channels,
            flow.bandwidth.sum(1) / peak,
            -(flow.bandwidth * share * yields[..., None]).sum(1) / peak,
        )
        cycle = np.where(is_batch, flow.service + state.stalled, flow.loop.response_s)
        page_s = machine.disk_ms / 1000.0 + 4096.0 / machine.disk_bytes_per_s
        page_use = 1.0 / machine.disk_ops_per_s + 4096.0 / machine.disk_bytes_per_s
        own_use = people.disk_ops / machine.disk_ops_per_s + people.disk_bytes / machine.disk_bytes_per_s
        disk = flow.rate * (own_use + flow.faults * page_use)
        # Batch that only waits uses little CPU: the CPU that it was given bounds it before the division follows.
        waiting = (flow.own_disk_s + flow.faults * page_s) / cycle
        state.disk = congestion.balance(
            state.disk, disk.sum(1, keepdims=True), -(disk * yields * waiting).sum(1, keepdims=True)
        )
        link = flow.rate * flow.own_link_s
        state.link = congestion.balance(
            state.link,
            link.sum(1, keepdims=True),
            -(link * yields * flow.own_link_s / cycle).sum(1, keepdims=True),
        )
        target = cache.occupancy_target(people, rows.mask, flow.pressure, machine.way_bytes)
        part: Array | float = damping
        if dt_s is not None:
            part = cache.settled_share(flow.pressure, float(machine.l3_bytes), dt_s)
        state.occupancy = state.occupancy + part * (target - state.occupancy)

    def _share_out(self, rows: Grants, cpu: _Cpu, flow: _Flow) -> None:
        """Hold what was found to the CPUs that there are: LRAs first asked for what they use, batch gets the rest."""
        layout, lra = rows.layout, self.people.lra > 0
        if not any(layout.shares):
            return
        (got,) = self._divisions(layout, cpu.weight, [np.where(lra, flow.usage, cpu.wanted)])
        usage = np.minimum(got.sum(2), np.where(lra, flow.usage, np.inf))
        scale = usage / np.maximum(flow.usage, _TINY)
        scale = np.where(flow.usage > 0, scale, 1.0)
        flow.bandwidth = flow.bandwidth * scale[..., None]
        flow.usage, flow.rate = usage, flow.rate * scale
        flow.loop.rate = np.where(lra, flow.rate, flow.loop.rate)

    def _outcomes(
        self, state: State, rows: Grants, cpu: _Cpu, flow: _Flow, load: Array, *, steady: bool
    ) -> Outcomes:
        people, loop = self.people, flow.loop
        lra = people.lra > 0
        is_open = lra & (people.closed < 1)
        threads = people.threads * load
        waiting = np.maximum(threads * flow.service / (flow.service + state.stalled) - flow.usage, 0.0)
        delay = np.where(lra, flow.rate * (loop.cpu_wait_s + flow.wake), waiting)
        cpu_some = np.where(lra, 1.0 - np.exp(-delay), np.minimum(delay, 1.0))
        loop.response_s = loop.response_s - people.think_s
        spread = _SPREAD_CONTENDED * np.cbrt(np.minimum(1.0, cpu.ratio)) * (cpu.hit > 0)
        sigma = people.spread + spread * np.where(people.closed > 0, 0.8, 0.5)
        p50, p95, p99 = latency.quantiles(loop, sigma)
        offered = np.where(is_open, people.rate * load, flow.rate)
        if steady:
            late = np.where(is_open, np.maximum(offered / np.maximum(flow.rate, _TINY) - 1.0, 0.0), 0.0)
            late = np.where(late > 1e-6, late * _OVERLOAD_S, 0.0)
            p50, p95, p99 = p50 + 0.5 * late, p95 + 0.95 * late, p99 + 0.99 * late
        room = np.minimum(rows.layout.cpus, threads)
        held = (rows.limit_cores < room) & (flow.usage > 0.9 * rows.limit_cores)
        throttled = np.where(held, 1.0 - rows.limit_cores / np.maximum(room, _TINY), 0.0)
        memory = self._stalled_share(flow.rate * flow.stall_memory, flow.usage, delay)
        io = self._stalled_share(flow.rate * state.stalled, flow.usage, delay)
        instructions = flow.usage * flow.speed
        mpki = (cpu.domain * flow.mpki).sum(2)
        disk_ops = flow.rate * (people.disk_ops + flow.faults)
        return Outcomes(
            usage_cores=flow.usage,
            run_delay_cores=delay,
            runnable=flow.usage + delay,
            throttled=throttled,
            work_per_s=flow.rate,
            offered_per_s=offered,
            service_s=flow.service,
            speed=flow.speed / self._full_speed,
            p50_ms=np.where(lra, p50 * 1000.0, 0.0),
            p95_ms=np.where(lra, p95 * 1000.0, 0.0),
            p99_ms=np.where(lra, p99 * 1000.0, 0.0),
            mips=flow.rate * people.instructions / 1e6,
            cpi=np.where(lra, flow.service, people.instructions / flow.speed)
            * self.machine.ghz
            * 1e9
            / people.instructions,
            mpki=mpki,
            occupancy_bytes=state.occupancy.sum(2),
            bandwidth_bytes_per_s=flow.bandwidth.sum(2),
            llc_refs_per_s=instructions * np.maximum(people.refs_pki, mpki) / 1000.0,
            refaults_per_s=flow.rate * flow.faults,
            resident_bytes=state.resident + np.minimum(people.anon, rows.memory_bytes),
            disk_bytes_per_s=flow.rate * (people.disk_bytes + flow.faults * 4096.0),
            disk_ops_per_s=disk_ops,
            net_bytes_per_s=flow.rate * people.net_bytes,
            cpu_some=cpu_some,
            cpu_full=cpu_some * np.maximum(0.0, 1.0 - flow.usage),
            memory_some=memory[0],
            memory_full=memory[1],
            io_some=io[0],
            io_full=io[1],
            oom=(rows.memory_bytes < people.anon).astype(float),
            domain_occupancy=state.occupancy,
            domain_bandwidth=flow.bandwidth,
        )

    @staticmethod
    def _stalled_share(stalled: Array, usage: Array, delay: Array) -> tuple[Array, Array]:
        """``some`` and ``full`` of the time, when on average so many threads are stalled beside those that run."""
        active = stalled + usage + delay
        some = 1.0 - np.exp(-stalled)
        full = some * (stalled / np.maximum(active, _TINY)) ** np.maximum(active, 1.0)
        return some, full


def _chosen(first: npt.NDArray[np.bool_], one: latency.Loop, other: latency.Loop) -> latency.Loop:
    return latency.Loop(
        *(np.where(first, getattr(one, f.name), getattr(other, f.name)) for f in fields(latency.Loop))
    )


def _joined(parts: Sequence[Outcomes]) -> Outcomes:
    return Outcomes(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Outcomes)))
