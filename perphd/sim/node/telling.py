"""Computes outcomes from the balance: latencies, pressure and counters of the same state."""

from __future__ import annotations

from typing import Final

import numpy as np

from perphd.sim.node import latency
from perphd.sim.node.balance import Flow
from perphd.sim.node.division import Cpu
from perphd.sim.node.grant import Array, Grants
from perphd.sim.node.outcome import Outcomes
from perphd.sim.node.physics import PRESENT, Physics
from perphd.sim.node.population import Population
from perphd.sim.node.state import State

_SPREAD_CONTENDED: Final = 0.30
_OVERLOAD_S: Final = 20.0  # seconds for which an overloaded open loop is observed in a steady state
_TINY: Final = 1e-12


def outcomes(
    people: Population,
    cycles_per_s: float,
    full_speed: Array,
    state: State,
    rows: Grants,
    cpu: Cpu,
    flow: Flow,
    load: Array,
    *,
    steady: bool,
    physics: Physics = PRESENT,
) -> Outcomes:
    """The outcomes of a pass for every workload. ``steady``: the state is a steady one, in which an overload lasts."""
    loop = flow.loop
    lra = people.lra > 0
    is_open = lra & (people.closed < 1)
    threads = people.threads * load
    waiting = np.maximum(threads * flow.service / (flow.service + state.stalled) - flow.usage - 1e-9, 0.0)
    delay = np.where(lra, flow.rate * (loop.cpu_wait_s + flow.wake), waiting)
    cpu_some = np.where(lra, 1.0 - np.exp(-delay), np.minimum(delay, 1.0))
    loop.response_s = loop.response_s - people.think_s
    spread = _SPREAD_CONTENDED * np.cbrt(np.minimum(1.0, cpu.ratio)) * (cpu.hit > 0)
    sigma = people.spread + spread * np.where(people.closed > 0, 0.8, 0.5)
    p50, p95, p99 = latency.quantiles(loop, sigma, physics)
    offered = np.where(is_open, people.rate * load, flow.rate)
    if steady:
        late = np.where(is_open, np.maximum(offered / np.maximum(flow.rate, _TINY) - 1.0, 0.0), 0.0)
        waiting_s = people.queue_limit / np.maximum(flow.rate, _TINY)
        late = np.where(late > 1e-6, np.minimum(late * _OVERLOAD_S, waiting_s), 0.0)
        p50, p95, p99 = p50 + 0.5 * late, p95 + 0.95 * late, p99 + 0.99 * late
    room = np.minimum(rows.layout.cpus, threads)
    held = (rows.limit_cores < room) & (flow.usage > 0.9 * rows.limit_cores)
    throttled = np.where(held, 1.0 - rows.limit_cores / np.maximum(room, _TINY), 0.0)
    memory = _stalled_share(flow.rate * flow.stall_memory, flow.usage, delay)
    # The kernel counts threads that wait for a disk; threads that wait for the network just sleep.
    io = _stalled_share(flow.rate * np.maximum(state.stalled - flow.on_link_s, 0.0), flow.usage, delay)
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
        speed=flow.speed / full_speed,
        p50_ms=np.where(lra, p50 * 1000.0, 0.0),
        p95_ms=np.where(lra, p95 * 1000.0, 0.0),
        p99_ms=np.where(lra, p99 * 1000.0, 0.0),
        mips=flow.rate * people.instructions / 1e6,
        cpi=np.where(lra, flow.service, people.instructions / flow.speed)
        * cycles_per_s
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


def _stalled_share(stalled: Array, usage: Array, delay: Array) -> tuple[Array, Array]:
    """``some`` and ``full`` shares of time, given the mean numbers of stalled and running threads."""
    active = stalled + usage + delay
    some = 1.0 - np.exp(-stalled)
    full = some * (stalled / np.maximum(active, _TINY)) ** np.maximum(active, 1.0)
    return some, full
