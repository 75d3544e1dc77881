"""One pass over the balance of a node.

It computes CPU time of an operation, rates, traffic, and the resulting change of state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from perphd.sim.node import cache, congestion, latency
from perphd.sim.node.division import Cpu
from perphd.sim.node.grant import Array, Grants
from perphd.sim.node.machine import Machine
from perphd.sim.node.population import Population
from perphd.sim.node.state import DRAIN_S, State

# Memory channels: latency at four fifths of the peak is about twice the idle latency.
_CHANNEL_DELAY: Final = 0.30
_QUEUED_CYCLES: Final = 0.6
_HIT_TRAFFIC: Final = 0.5
"""Traffic of a hit in the shared cache under a core's bandwidth throttle, as a fraction of a cache line. The
throttle acts between the core and the shared cache, so it delays hits too.
"""
# Wake-up delay per request, in seconds, when batch has a waking thread's weight, and the exponent of its
# growth with that weight.
_WAKE_S: Final = 0.75e-3
_WAKE_POWER: Final = 1.9
_WAKE_FLOOR_S: Final = 0.12e-3  # the time to preempt even an idle-class task
_WAKE_CEILING: Final = 6.0  # time slices end, so that a larger ratio adds no delay
_STUCK_SPEED: Final = 0.15  # relative speed of a workload over its memory limit that has nothing to reclaim
_RUNNABLE_DAMPING: Final = 0.4  # close to saturation, a small change in the rate changes queues a lot
_TINY: Final = 1e-12


@dataclass(slots=True)
class Flow:
    """Results of one pass over the balance: [B,W], with a domain axis [B,W,D] where values differ by domain.

    ``ips``: instructions per second of a busy CPU [B,W,D]; ``service``: CPU time of an operation; ``wake``: delay of
    a waking thread; ``stall_memory``, ``stall_io``: waiting per operation (s); ``bandwidth``, ``pressure``: bytes per
    second to and from memory, and into the cache [B,W,D]; ``own_disk_s``, ``own_link_s``: an operation's time on an
    idle disk and link; ``speed``: instructions per CPU second over all domains; ``usage_cap``: CPU time
    possible under the limits of disk and link; ``on_link_s``: an operation's time on the present link.
    """

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
    own_disk_s: Array
    own_link_s: Array
    faults: Array
    speed: Array
    usage_cap: Array
    on_link_s: Array

    def hold_to(self, usage: Array, lra: npt.NDArray[np.bool_]) -> None:
        """Scale the results to the CPU time that was available."""
        usage = np.minimum(usage, self.usage_cap)
        scale = np.where(self.usage > 0, usage / np.maximum(self.usage, _TINY), 1.0)
        self.bandwidth = self.bandwidth * scale[..., None]
        self.usage, self.rate = usage, self.rate * scale
        self.loop.rate = np.where(lra, self.rate, self.loop.rate)


class Balance:
    """The balance of one machine and one population."""

    def __init__(self, machine: Machine, people: Population) -> None:
        self._machine, self._people = machine, people
        # Additional cycles of a miss per unit of congestion: the hidden part of its latency stays hidden until the
        # channels are full.
        self._queueing = _CHANNEL_DELAY * people.miss_cycles[:, None] + _QUEUED_CYCLES
        self._any_open = bool((people.lra * (1.0 - people.closed)).any())
        # Values that depend only on population and machine are computed once, not in every step.
        self._is_lra, self._is_batch, self._is_closed = people.lra > 0, people.lra < 1, people.closed > 0
        self._cpi, self._miss_cycles = people.cpi[:, None], people.miss_cycles[:, None]
        self._written, self._refs_pki = people.written[:, None], people.refs_pki[:, None]
        self._own_disk = (
            people.disk_ops * machine.disk_ms / 1000.0 + people.disk_bytes / machine.disk_bytes_per_s
        )
        self._own_link = people.net_bytes / machine.net_bytes_per_s
        self._disk_bytes = np.maximum(people.disk_bytes, _TINY)
        self._net_bytes = np.maximum(people.net_bytes, _TINY)
        self._own_use = (
            people.disk_ops / machine.disk_ops_per_s + people.disk_bytes / machine.disk_bytes_per_s
        )
        self._page_s = machine.disk_ms / 1000.0 + 4096.0 / machine.disk_bytes_per_s
        self._page_use = 1.0 / machine.disk_ops_per_s + 4096.0 / machine.disk_bytes_per_s
        self._has_cache, self._cache = people.cache > 0, np.maximum(people.cache, 1.0)
        self._hot, self._cold = (
            np.maximum(people.hot_share, _TINY),
            np.maximum(1.0 - people.hot_share, _TINY),
        )
        self._is_hot, self._cold_hits = people.hot_share < 1, 1.0 - people.hot_hits

    def look(self, state: State, rows: Grants, cpu: Cpu, load: Array, needs: Array | None = None) -> Flow:
        """Run one pass over the balance: CPU time of an operation, rates, traffic."""
        people, machine = self._people, self._machine
        # Instructions per second of a busy CPU: base, misses at the channels' congestion, throttle.
        mpki = cache.misses_pki(people, state.occupancy, machine.physics)
        per_miss = self._miss_cycles + self._queueing * state.channels[:, None, :]
        cpi = self._cpi + per_miss * mpki / 1000.0
        missed = mpki * self._written
        line = cache.LINE / 1000.0
        asked = (missed + _HIT_TRAFFIC * np.maximum(self._refs_pki - mpki, 0.0)) * line
        ips = machine.ghz * 1e9 / cpi * cpu.smt[..., None]
        limit = rows.core_limit * (1.0 - 0.5 * np.sqrt(cpu.overlap))[..., None]
        ips = ips / (1.0 + (ips * asked / limit) ** 8) ** 0.125
        speed = (cpu.domain * ips).sum(2)
        crowd = np.maximum(1.0 - cpu.most / np.maximum(state.runnable, _TINY), 0.0)
        cost = state.mix_cost + people.switch_cost * crowd
        cost = cost + people.crosstalk * np.maximum(state.rate * state.service - 1.0, 0.0)
        service = people.instructions / speed * cost
        if needs is not None:
            service = service * needs
        # Other waits of an operation: page faults, disk, link.
        faults = self._faults(state)
        stuck = rows.memory_bytes < people.anon
        slow = 1.0 + state.disk
        disk_s = (faults * machine.disk_ms / 1000.0 + faults * 4096.0 / machine.disk_bytes_per_s) * slow
        stall_memory = disk_s + np.where(stuck, service * (1.0 / _STUCK_SPEED - 1.0), 0.0)
        own_disk, own_link = self._own_disk, self._own_link
        on_link = own_link * (1.0 + state.link)
        stall_io = own_disk * slow + on_link
        caps = np.minimum(
            rows.disk_cap / self._disk_bytes,
            rows.net_cap / self._net_bytes,
        )
        # A job limited to a rate waits for its disk or link, not for a CPU.
        held = people.threads * load / np.maximum(caps, _TINY) - service - stall_memory
        stall_io = np.where(self._is_lra, stall_io, np.maximum(stall_io, held))
        wake = _WAKE_FLOOR_S * cpu.hit + _WAKE_S * np.minimum(cpu.ratio**_WAKE_POWER, _WAKE_CEILING)
        # Rates.
        waits = people.wait_s + people.think_s + stall_memory + stall_io
        if machine.physics.halt_ms > 0.0:
            waits = waits + machine.physics.halt_ms / 1000.0 * cpu.idle
        servers = np.maximum(1.0, cpu.most)
        clients = np.maximum(people.clients * load, _TINY)
        shared = (service, people.serial_s, waits + wake, cpu.entitled, servers)
        loop = latency.closed_step(state.rate, clients, *shared)
        if self._any_open:
            arriving = people.rate * load + state.backlog / DRAIN_S
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
                machine.physics,
            )
            loop = _chosen(self._is_closed, loop, opened)
        free = latency.closed_step(
            state.free_rate, clients, service, people.serial_s, waits, servers, servers
        )
        batch_rate = cpu.usage / service
        loop.rate = np.minimum(loop.rate, caps)
        rate = np.where(self._is_lra, loop.rate, np.minimum(batch_rate, caps))
        usage = rate * service
        # Traffic.
        by_domain = usage[..., None] * cpu.domain * ips
        bandwidth = by_domain * missed * line
        return Flow(
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
            own_disk,
            own_link,
            faults,
            speed,
            caps * service,
            on_link,
        )

    def follow(
        self, state: State, rows: Grants, flow: Flow, damping: float, dt_s: float | None = None
    ) -> None:
        """Move the state towards the results. If ``dt_s`` is given, cache contents move only as far as they can in
        this time (s).
        """
        people, machine = self._people, self._machine
        is_batch = self._is_batch
        state.rate, state.free_rate = flow.rate, flow.free_rate
        state.service = state.service + damping * (flow.service - state.service)
        state.stalled = flow.stall_memory + flow.stall_io
        runnable = np.where(
            is_batch,
            people.threads * flow.service / (flow.service + state.stalled),
            flow.usage + flow.rate * (flow.loop.cpu_wait_s + flow.wake),
        )
        state.runnable = state.runnable + _RUNNABLE_DAMPING * (runnable - state.runnable)
        # Reactions to a longer queue: batch and closed loops slow down; open loops only when they lag.
        lag = (people.rate > 0) & (flow.loop.rate < people.rate * 0.999)
        yields = np.where(is_batch | lag, 1.0, 0.5 * people.closed)
        share = self._queueing * flow.mpki / 1000.0 / flow.cpi
        peak = machine.memory_bytes_per_s
        state.channels = congestion.balance(
            state.channels,
            flow.bandwidth.sum(1) / peak,
            -(flow.bandwidth * share * yields[..., None]).sum(1) / peak,
            machine.physics,
        )
        cycle = np.where(is_batch, flow.service + state.stalled, flow.loop.response_s)
        disk = flow.rate * (self._own_use + flow.faults * self._page_use)
        # A closed loop that mostly waits for disk or link slows down fully. If its slope is assumed too flat,
        # steps are too long, and rates oscillate.
        waits = np.where(is_batch | lag | self._is_closed, 1.0, 0.0)
        # Batch that mostly waits uses little CPU: the granted CPU limits it before the division follows.
        waiting = (flow.own_disk_s + flow.faults * self._page_s) / cycle
        state.disk = congestion.balance(
            state.disk, disk.sum(1, keepdims=True), -(disk * waits * waiting).sum(1, keepdims=True)
        )
        link = flow.rate * flow.own_link_s
        state.link = congestion.balance(
            state.link,
            link.sum(1, keepdims=True),
            -(link * waits * flow.own_link_s / cycle).sum(1, keepdims=True),
        )
        size = float(machine.l3_bytes)
        target = cache.occupancy_target(people, rows.mask, flow.pressure, machine.way_bytes)
        share = cache.safe_share(people, flow.mpki, state.occupancy, target, size, machine.physics)
        if dt_s is not None:
            share = np.minimum(share, cache.settled_share(flow.pressure, size, dt_s))
        state.occupancy = state.occupancy + share * (target - state.occupancy)

    def _faults(self, state: State) -> Array:
        """Pages per operation that are not in memory."""
        people = self._people
        held = np.where(self._has_cache, state.resident / self._cache, 1.0)
        hot = np.minimum(held / self._hot, 1.0)
        cold = np.minimum(np.maximum((held - people.hot_share) / self._cold, 0.0), 1.0)
        found = people.hot_hits * hot + self._cold_hits * np.where(self._is_hot, cold, hot)
        faults: Array = people.pages * (1.0 - found)
        return faults


def _chosen(first: npt.NDArray[np.bool_], one: latency.Loop, other: latency.Loop) -> latency.Loop:
    return latency.Loop(
        np.where(first, one.rate, other.rate),
        np.where(first, one.response_s, other.response_s),
        np.where(first, one.cpu_wait_s, other.cpu_wait_s),
        np.where(first, one.queued, other.queued),
        np.where(first, one.burst_s, other.burst_s),
    )
