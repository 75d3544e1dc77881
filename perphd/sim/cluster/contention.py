"""Interference on many nodes at once: the detailed node's laws on flat columns, with one shared pool of CPUs
per node.

The laws of one operation's CPU time, of queues for memory channels, disk and link, and of waiting for a CPU are those
of ``perphd.sim.node``, called element by element. Three simplifications make thousands of nodes affordable:

- A node has at most two pools of CPUs: the shared one and one that confines batch. Pods may also have CPUs of
  their own. There are no other cpusets.
- The sockets of a node are alike: every pod uses all of them evenly.
- Foreign work in private caches counts as the work of n equal neighbours, with n = (sum of use)^2 / sum of
  squares.

A few rounds suffice to get from the previous balance to the next one. ``tools.bench.fleet`` compares the
result with the detailed node.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from perphd.sim.cluster.division import Division, Floats, Places, divided
from perphd.sim.node import cache, congestion, latency
from perphd.sim.node.grant import IDLE_WEIGHT
from perphd.sim.node.machine import Machine
from perphd.sim.node.population import Population

_CHANNEL_DELAY: Final = 0.30
_QUEUED_CYCLES: Final = 0.6
_WAKER_BONUS: Final = 1.5
_SERVICE_RIVAL: Final = 0.3
_WAKE_S: Final = 0.75e-3
_WAKE_POWER: Final = 1.9
_WAKE_FLOOR_S: Final = 0.12e-3
_WAKE_CEILING: Final = 6.0
"""The detailed node's constants (``perphd.sim.node.balance``, ``division``)."""
_KERNEL_RATIO: Final = 0.03
_DAMPING: Final = 0.6
_TINY: Final = 1e-12


@dataclass(slots=True)
class Control:
    """Every node's settings for its batch, as an agent on the node would make them.

    ``confined_cores``: CPUs to which batch is confined, away from services; 0: batch shares all CPUs.
    ``idle``: batch has the weight of the idle class. ``cache_ratio``: share of the last-level cache that
    batch may fill; 1: no division.
    ``bandwidth_ratio``: speed of batch under a limit on its memory bandwidth; 1: no limit. ``own_cpus``:
    exclusive CPUs of each pod; 0: the pod shares CPUs; None: all pods share CPUs.
    """

    confined_cores: Floats
    idle: Floats
    cache_ratio: Floats
    bandwidth_ratio: Floats
    own_cpus: Floats | None = None

    NODES = ("confined_cores", "idle", "cache_ratio", "bandwidth_ratio")


def no_control(nodes: int) -> Control:
    """Settings that restrict nothing on any node."""
    return Control(np.zeros(nodes), np.zeros(nodes), np.ones(nodes), np.ones(nodes))


@dataclass(slots=True, eq=False)
class Balance:
    """State that carries over to the next evaluation: by pod, and congestion by node."""

    rate: Floats
    free_rate: Floats
    service: Floats
    occupancy: Floats
    stalled: Floats
    runnable: Floats
    mix_cost: Floats
    channels: Floats
    disk: Floats
    link: Floats

    NODES = ("channels", "disk", "link")


@dataclass(slots=True, eq=False)
class Conditions:
    """Every pod's state after an evaluation.

    ``cores``: CPUs in use; ``rate``: operations per second; ``service_s``: CPU time of one operation;
    ``stall``: share of the time in which the pod waits for a CPU (PSI, some); ``p50_s``, ``p95_s``: latencies
    of a service's requests; ``lag``: share of an open loop's requests that is not served; ``bandwidth``:
    bytes per second to and from memory; ``wanted``: CPUs that the pod would use alone on a node.
    """

    cores: Floats
    rate: Floats
    service_s: Floats
    stall: Floats
    p50_s: Floats
    p95_s: Floats
    lag: Floats
    bandwidth: Floats
    wanted: Floats


class NodeModel:
    """Nodes of one kind of machine, and application types as one ``Population``."""

    def __init__(self, machine: Machine, types: Population, nodes: int) -> None:
        self.machine, self.types, self.nodes = machine, types, nodes
        missing = machine.physics.missing(machine.l3_bytes / types.mpki_scale)
        best = types.mpki_floor + types.mpki_swing * missing
        self._full_speed = machine.ghz * 1e9 / (types.cpi + types.miss_cycles * best / 1000.0)
        self.alone_s = types.instructions / self._full_speed

    def started(self, kind: Places, load: Floats) -> Balance:
        """The balance of pods that have just started, on idle nodes."""
        types, n = self.types, len(kind)
        service = self.alone_s[kind]
        clients = types.clients[kind] * load
        waits = types.wait_s[kind] + types.think_s[kind] + types.serial_s[kind]
        alone = clients / (service + waits)
        rate = np.where(types.closed[kind] > 0, alone, types.rate[kind] * load)
        return Balance(
            rate, alone, service.copy(), np.full(n, self.machine.l3_bytes / 8.0), np.zeros(n), np.ones(n),
            np.ones(n), np.full(self.nodes, 0.05), np.full(self.nodes, 0.01), np.full(self.nodes, 0.01),
        )  # fmt: skip

    def evaluate(
        self,
        node: Places,
        kind: Places,
        load: Floats,
        weight: Floats,
        balance: Balance,
        control: Control | None = None,
        rounds: int = 4,
    ) -> Conditions:
        """Move ``balance`` to the steady state of these pods and return their conditions.

        Args:
            node: node of each pod.
            kind: type of each pod, an index into the population.
            load: factor on each pod's specified load (batch: on its threads).
            weight: scheduler weight of each pod, on cpu.weight's scale.
            balance: changed in place.
            control: settings in force on each node.
            rounds: number of rounds; two are enough from a balance of nearly the same pods, about 25 from
                ``started``.
        """
        look = _Look(
            self, node, kind, load, weight, control if control is not None else no_control(self.nodes)
        )
        for _ in range(rounds):
            look.round(balance)
        return look.conditions(balance)


class _Look:
    """One evaluation: columns of the pods' types, and one round of the balance."""

    def __init__(
        self, model: NodeModel, node: Places, kind: Places, load: Floats, weight: Floats, control: Control
    ) -> None:
        self._machine, self._nodes, self._node, self._load = model.machine, model.nodes, node, load
        self._types = t = _taken(model.types, kind)
        self._service = t.lra > 0
        self._open = self._service & (t.closed < 1)
        batch = ~self._service
        cpus = float(model.machine.cpus)
        confined = np.minimum(control.confined_cores, cpus - 1.0)
        self._apart = batch & (confined[node] > 0)
        self._pool = 2 * node + self._apart
        shared = cpus - confined
        own = control.own_cpus
        if own is not None:
            shared = np.maximum(shared - np.bincount(node, own, model.nodes), _TINY)
        self._size = np.stack([shared, np.maximum(confined, _TINY)], axis=1).ravel()
        if own is not None:
            self._pool = np.where(own > 0, len(self._size) + np.arange(len(node)), self._pool)
            self._size = np.concatenate([self._size, np.maximum(own, _TINY)])
        self._cpus = self._size[self._pool]
        self._plain_weight = np.where(batch & (control.idle[node] > 0), IDLE_WEIGHT, weight)
        self._weight = self._plain_weight * np.where(self._service, _WAKER_BONUS, 1.0)
        self._cache = np.where(batch, control.cache_ratio[node], 1.0)
        self._divided_cache = control.cache_ratio[node] < 1.0
        self._slowed = np.where(batch, control.bandwidth_ratio[node], 1.0)
        self._most = np.minimum(t.threads * np.where(self._service, 1.0, load), self._cpus)
        machine = model.machine
        self._own_disk = t.disk_ops * machine.disk_ms / 1000.0 + t.disk_bytes / machine.disk_bytes_per_s
        self._own_link = t.net_bytes / machine.net_bytes_per_s
        self._disk_use = t.disk_ops / machine.disk_ops_per_s + t.disk_bytes / machine.disk_bytes_per_s
        self._page_use = 1.0 / machine.disk_ops_per_s + 4096.0 / machine.disk_bytes_per_s
        self._page_s = machine.disk_ms / 1000.0 + 4096.0 / machine.disk_bytes_per_s
        self._queueing = _CHANNEL_DELAY * t.miss_cycles + _QUEUED_CYCLES
        self._faults = self._missing_pages()

    def _sum(self, values: Floats) -> Floats:
        """Sum over the pods of each node, given to each of its pods."""
        return np.asarray(np.bincount(self._node, values, self._nodes), dtype=np.float64)[self._node]

    def _missing_pages(self) -> Floats:
        """Pages per operation that are not in memory, assuming that the host divides its page cache evenly."""
        t = self._types
        room = self._machine.memory_bytes * (1.0 - _KERNEL_RATIO)
        cached = self._sum(t.cache)
        share = np.clip((cached + self._sum(t.anon) - room) / np.maximum(cached, 1.0), 0.0, 1.0)
        held = 1.0 - share
        hot = np.minimum(held / np.maximum(t.hot_share, _TINY), 1.0)
        cold = np.clip((held - t.hot_share) / np.maximum(1.0 - t.hot_share, _TINY), 0.0, 1.0)
        found = t.hot_hits * hot + (1.0 - t.hot_hits) * np.where(t.hot_share < 1, cold, hot)
        result: Floats = t.pages * (1.0 - found)
        return result

    def _division(self, b: Balance) -> tuple[Division, Floats]:
        t, load = self._types, self._load
        asked = np.where(self._open, t.rate * load, b.free_rate) * b.service
        threads = t.threads * load * b.service / (b.service + b.stalled)
        wanted = np.minimum(np.where(self._service, asked, threads), self._most)
        self._wanted = wanted
        first = divided(self._pool, self._size, self._weight, wanted)
        entitled = np.maximum(np.minimum(first.entitled, self._most), 1e-3)
        used = np.where(self._service, np.minimum(b.rate * b.service, entitled), wanted)
        return Division(divided(self._pool, self._size, self._weight, used).got, entitled), first.got

    def _neighbours(self, b: Balance, got: Floats) -> tuple[Floats, Floats, Floats]:
        """For each service: weight of the rivals on the CPU where it wakes, probability that a rival runs there,
        and foreign work in its private caches.
        """
        t = self._types
        pools = len(self._size)

        def others(values: Floats) -> Floats:
            found: Floats = np.maximum(np.bincount(self._pool, values, pools)[self._pool] - values, 0.0)
            return found

        room = np.maximum(self._cpus - got, 0.05 * self._cpus)
        met = got > 0
        rival = np.where(self._service, _SERVICE_RIVAL, 1.0) * self._plain_weight
        awake = np.clip(b.runnable, 1.0, self._cpus)
        square = got * got
        ratio = others(square * rival) / (room * room) / self._cpus * awake / self._plain_weight
        hit = np.minimum(1.0, others(t.pollution * square) / (room * room))
        sum_1, sum_2 = others(t.pollution * got), others((t.pollution * got) ** 2)
        count = np.maximum(sum_1 * sum_1 / np.maximum(sum_2, _TINY), 1.0)
        each = sum_1 / count
        half = self._machine.physics.mix_half
        between = each / np.maximum(got + each, _TINY)
        dirt = np.minimum(1.0, count * between / (between + half) * (1.0 + half))
        return np.where(met, ratio, 0.0), np.where(met, hit, 0.0), np.where(met, dirt, 0.0)

    def round(self, b: Balance) -> None:
        """One round: CPUs, then the CPU time of an operation, rates, and the queues that they fill."""
        t, machine, load, physics = self._types, self._machine, self._load, self._machine.physics
        division, first = self._division(b)
        ratio, hit, dirt = self._neighbours(b, first)
        mixed = (t.mix_cost - t.mix_relief * np.minimum(1.0, ratio)) * dirt * physics.mix_scale
        b.mix_cost += 0.7 * (1.0 + t.lra * mixed - b.mix_cost)
        overlap = np.zeros(len(load))
        if machine.threads_per_core > 1:
            busy = np.bincount(self._pool, division.got, len(self._size)) / self._size
            overlap = np.minimum(busy[self._pool], 1.0) ** physics.overlap_power
        mpki = t.mpki_floor + t.mpki_swing * physics.missing(b.occupancy / t.mpki_scale)
        per_miss = t.miss_cycles + self._queueing * b.channels[self._node]
        cpi = t.cpi + per_miss * mpki / 1000.0
        ips = machine.ghz * 1e9 / cpi * (1.0 - t.smt_loss * overlap)
        line = cache.LINE / 1000.0
        asked = (mpki * t.written + 0.5 * np.maximum(t.refs_pki - mpki, 0.0)) * line
        limit = machine.core_bytes_per_s * self._slowed * (1.0 - 0.5 * np.sqrt(overlap))
        speed = ips / (1.0 + (ips * asked / limit) ** 8) ** 0.125
        crowd = np.maximum(1.0 - self._most / np.maximum(b.runnable, _TINY), 0.0)
        cost = b.mix_cost + t.switch_cost * crowd + t.crosstalk * np.maximum(b.rate * b.service - 1.0, 0.0)
        service = t.instructions / speed * cost
        slow = 1.0 + b.disk[self._node]
        paged = self._faults * self._page_s * slow
        b.stalled = paged + self._own_disk * slow + self._own_link * (1.0 + b.link[self._node])
        wake = _WAKE_FLOOR_S * hit + _WAKE_S * np.minimum(ratio**_WAKE_POWER, _WAKE_CEILING)
        waits = t.wait_s + t.think_s + b.stalled
        servers = np.maximum(1.0, self._most)
        clients = np.maximum(t.clients * load, _TINY)
        closed = latency.closed_step(
            b.rate, clients, service, t.serial_s, waits + wake, division.entitled, servers
        )
        opened = latency.open_loop(
            t.rate * load, np.zeros(len(load)), service, t.serial_s, waits + wake, b.stalled + wake, t.threads,
            division.entitled, servers, t.bursts, physics,
        )  # fmt: skip
        loop = latency.Loop(
            *(np.where(self._open, getattr(opened, f.name), getattr(closed, f.name)) for f in fields(opened))
        )
        free = latency.closed_step(b.free_rate, clients, service, t.serial_s, waits, servers, servers)
        b.rate, b.free_rate = np.where(self._service, loop.rate, division.got / service), free.rate
        b.service = b.service + _DAMPING * (service - b.service)
        self._loop, self._wake, self._ratio, self._hit = loop, wake, ratio, hit
        usage = b.rate * b.service
        waiting = t.threads * load * b.service / (b.service + b.stalled)
        runnable = np.where(self._service, usage + b.rate * (loop.cpu_wait_s + wake), waiting)
        b.runnable = b.runnable + 0.4 * (runnable - b.runnable)
        self._queues(b, usage, speed, mpki, cpi, waits)

    def _queues(
        self, b: Balance, usage: Floats, speed: Floats, mpki: Floats, cpi: Floats, waits: Floats
    ) -> None:
        """Cache contents, and the congestion of channels, disk and link."""
        t, machine, nodes, physics = self._types, self._machine, self._nodes, self._machine.physics
        sockets = machine.sockets
        line = cache.LINE / 1000.0
        instructions = usage * speed / sockets
        self._bandwidth = instructions * mpki * t.written * line
        pressure = instructions * mpki * line
        batch = ~self._service
        size = float(machine.l3_bytes)
        everyone, of_batch = self._sum(pressure), self._sum(np.where(batch, pressure, 0.0))
        rivals = np.where(self._divided_cache, np.where(batch, of_batch, everyone - of_batch), everyone)
        part = np.where(self._divided_cache, np.where(batch, self._cache, 1.0 - self._sum_cache()), 1.0)
        target = np.minimum(size * part * pressure / np.maximum(rivals, 1.0), t.footprint)
        curved = 1.0 - t.mpki_floor / np.maximum(mpki, _TINY)
        steep = physics.steepness(b.occupancy / t.mpki_scale)
        bend = np.maximum(target * (1.0 - target / size) * curved / t.mpki_scale * steep, 0.0)
        b.occupancy = b.occupancy + 0.9 / (1.0 + self._sum(bend)) * (target - b.occupancy)
        lag = self._open & (b.rate < t.rate * self._load * 0.999)
        yields = np.where(batch | lag, 1.0, 0.5 * t.closed)
        share = self._queueing * mpki / 1000.0 / cpi
        peak = machine.memory_bytes_per_s

        def total(values: Floats) -> Floats:
            return np.asarray(np.bincount(self._node, values, nodes), dtype=np.float64)

        b.channels = congestion.balance(
            b.channels,
            total(self._bandwidth) / peak,
            -total(self._bandwidth * share * yields) / peak,
            physics,
        )
        cycle = np.where(batch, b.service + b.stalled, b.service + waits)
        gives = np.where(batch | lag | (t.closed > 0), 1.0, 0.0)
        disk = b.rate * (self._disk_use + self._faults * self._page_use)
        waiting = (self._own_disk + self._faults * self._page_s) / cycle
        b.disk = congestion.balance(b.disk, total(disk), -total(disk * gives * waiting))
        link = b.rate * self._own_link
        b.link = congestion.balance(b.link, total(link), -total(link * gives * self._own_link / cycle))

    def _sum_cache(self) -> Floats:
        """Share of the cache that batch may fill on a node that divides its cache."""
        least = np.ones(self._nodes)
        np.minimum.at(least, self._node, self._cache)
        found: Floats = least[self._node]
        return found

    def conditions(self, b: Balance) -> Conditions:
        """Conditions of the pods in this balance."""
        t, loop = self._types, self._loop
        delay = np.where(
            self._service,
            b.rate * (loop.cpu_wait_s + self._wake),
            np.maximum(b.runnable - b.rate * b.service - 1e-9, 0.0),
        )
        stall = np.where(self._service, 1.0 - np.exp(-delay), np.minimum(delay, 1.0))
        loop.response_s = loop.response_s - t.think_s
        spread = 0.30 * np.cbrt(np.minimum(1.0, self._ratio)) * (self._hit > 0)
        sigma = t.spread + spread * np.where(t.closed > 0, 0.8, 0.5)
        p50, p95, _ = latency.quantiles(loop, sigma, self._machine.physics)
        offered = t.rate * self._load
        lag = np.where(self._open, np.maximum(1.0 - b.rate / np.maximum(offered, _TINY), 0.0), 0.0)
        late = np.where(lag > 1e-6, 20.0 * np.maximum(offered / np.maximum(b.rate, _TINY) - 1.0, 0.0), 0.0)
        late = np.minimum(late, t.queue_limit / np.maximum(b.rate, _TINY))
        return Conditions(
            b.rate * b.service, b.rate, b.service, stall, np.where(self._service, p50 + 0.5 * late, 0.0),
            np.where(self._service, p95 + 0.95 * late, 0.0), lag, self._bandwidth * self._machine.sockets, self._wanted,
        )  # fmt: skip


def _taken(types: Population, kind: Places) -> Population:
    """The columns of these pods' types."""
    columns = {f.name: getattr(types, f.name)[kind] for f in fields(types) if f.name != "workloads"}
    return Population(workloads=(), **columns)


BY_POD: Final = tuple(f.name for f in fields(Balance) if f.name not in Balance.NODES)
"""Fields of a balance that have a value for each pod."""


def part_of(whole: Balance, pods: Places, nodes: Places) -> Balance:
    """The part of ``whole`` that belongs to these pods and nodes."""
    return Balance(
        **{name: getattr(whole, name)[pods] for name in BY_POD},
        **{name: getattr(whole, name)[nodes] for name in Balance.NODES},
    )


def put_back(whole: Balance, part: Balance, pods: Places, nodes: Places) -> None:
    """Write ``part`` back into ``whole`` for these pods and nodes."""
    for name in BY_POD:
        getattr(whole, name)[pods] = getattr(part, name)
    for name in Balance.NODES:
        getattr(whole, name)[nodes] = getattr(part, name)
