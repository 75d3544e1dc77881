"""How workloads fare on a node: usage, delay and performance emerge from cpusets, weights and limits.

Pure functions of one moment; ``host`` carries the state. Calibrated on MariaDB under sysbench next to
CPU-bound batch on two cores (tests/sim holds the measured figures); orders and ratios are meant, not digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.sim.cpu import Claim, classes, divide
from perphd.sim.workload import Batch, Lra

# How much more CPU a request costs when batch runs between its bursts on the same CPUs (private caches, switches);
# an idle-class neighbour is preempted at every wake-up, so it does not damage less, only delay less.
_MIX_COST: Final = 0.52
_MIX_RELIEF: Final = 0.20  # of that, spared when batch is an equal with long slices
_MIX_HALF: Final = 0.10  # share of batch at which half of the damage is done
_NEIGHBOUR_COST: Final = 0.34  # batch on the other CPUs of the same last-level cache
# Wake-up delay per request: ms when batch weighs as much as a waking thread, and how it grows from there.
_WAKE_MS: Final = 0.75
_WAKE_POWER: Final = 1.9
_WAKE_FLOOR_MS: Final = 0.12  # even an idle-class task must first be switched away from
_WAKE_CEILING: Final = 6.0  # slices end: a bigger ratio does not delay more
_WAKER_BONUS: Final = 1.5  # in shares, for those that sleep between bursts
_BURST_CREDIT: Final = 0.6
_BURSTS: Final = 3.3  # (1 + cv^2) / 2 of arrivals and service: real load comes in bursts
_SMT_SPEED: Final = 0.62  # of a core, for each of two busy siblings
_SPREAD_OPEN: Final = 0.50  # log-normal spread of undisturbed latencies
_SPREAD_CLOSED: Final = 0.34
_SPREAD_CONTENDED: Final = 0.30
_ITERATIONS: Final = 30
_BUSY_MAX: Final = 0.97  # an open loop beyond this share of its CPUs builds a backlog
_Z95: Final = NormalDist().inv_cdf(0.95)
_Z99: Final = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True, slots=True)
class Entity:
    """One level on the way from the root to a workload, as the scheduler sees it."""

    key: str
    weight: float
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Tenant:
    """One running workload at one moment, as its cgroup files say.

    ``way``: its scheduling entities from the top down. ``limit_cores``: cpu.max. ``cost``: CPU per request over
    that of an undisturbed one, as it has settled. ``stall_ms``: waiting for memory, per request
    (LRA) or per ms of CPU work (batch). ``load``: factor on what is asked. ``backlog``: requests still waiting.
    ``flat``: it has no scheduling entity of its own: each of its ``runnable`` threads competes for itself.
    """

    work: Lra | Batch
    cpus: CpuSet
    way: tuple[Entity, ...]
    limit_cores: float = math.inf
    cost: float = 1.0
    stall_ms: float = 0.0
    load: float = 1.0
    backlog: float = 0.0
    flat: bool = False
    runnable: float = 1.0

    @property
    def weight(self) -> float:
        """What the last entity on its way weighs."""
        return self.way[-1].weight * (max(1.0, self.runnable) if self.flat else 1.0)


@dataclass(frozen=True, slots=True)
class Activity:
    """What became of a tenant. Latencies are 0 for batch; ``cost`` is what an LRA's CPU per request tends to.

    ``runnable``: threads that run or want to; ``work_per_s``: requests, or batch's units of work, which it does
    at ``speed`` (1 = undisturbed) while it runs.
    """

    usage_cores: float = 0.0
    run_delay_cores: float = 0.0
    throttled: float = 0.0
    runnable: float = 0.0
    work_per_s: float = 0.0
    offered_per_s: float = 0.0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0
    cost: float = 1.0
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class _Contention:
    """What batch does to one LRA: by wake-up delay (``ratio``), private caches (``mix``), shared cache (``near``)."""

    ratio: float
    hit: float
    mix: float
    near: float


def step(tenants: Sequence[Tenant], caches: Sequence[CpuSet], siblings: int = 1) -> list[Activity]:
    """How every tenant fares now. ``caches``: CPUs of each last-level cache; ``siblings``: hardware threads a core."""
    wanted = [_wanted_cores(tenant) for tenant in tenants]
    weights = _flat_weights(tenants, wanted)
    claims = [Claim(t.cpus, w, d) for t, w, d in zip(tenants, weights, wanted, strict=True)]
    # First what each LRA could have if it asked for everything, then its performance with that, then the
    # division with what it really uses: what an LRA leaves goes to batch.
    fates: dict[int, _Fate] = {}
    costs: dict[int, float] = {}
    first = divide(claims)
    for index, tenant in enumerate(tenants):
        if isinstance(tenant.work, Lra):
            greedy = list(claims)
            most = _parallel_cores(tenant, tenant.work)
            greedy[index] = replace(claims[index], demand_cores=most)
            entitled = sum(divide(greedy)[index])
            contention = _contention(tenants, claims, first, index, caches)
            costs[index] = _cost(contention)
            fates[index] = _serve(tenant, tenant.work, max(entitled, 1e-3), most, contention)
            claims[index] = replace(claims[index], demand_cores=fates[index].usage_cores)
    final = divide(claims)
    busy = _busy_share(claims, final)
    activities: list[Activity] = []
    for index, tenant in enumerate(tenants):
        usage = sum(final[index])
        smt = 1.0 - (1.0 - _SMT_SPEED) * _sibling_share(tenant.cpus, busy, siblings)
        if isinstance(tenant.work, Batch):
            activities.append(_batch(tenant, tenant.work, usage, smt))
        else:
            activities.append(fates[index].activity(usage, costs[index] / smt))
    return activities


def _wanted_cores(tenant: Tenant) -> float:
    work = tenant.work
    room = min(len(tenant.cpus), tenant.limit_cores)
    if isinstance(work, Batch):
        return float(min(work.threads, room))
    service_s = work.service_ms * tenant.cost / 1000.0
    if work.rate_per_s is not None:
        rate = work.rate_per_s * tenant.load + tenant.backlog
        return min(rate * service_s, float(room))
    most = _parallel_cores(tenant, work)
    return _closed_loop(work, tenant, most, max(1.0, most), 0.0).rate * service_s


def _parallel_cores(tenant: Tenant, work: Lra) -> float:
    """Most CPUs that an LRA can use at once."""
    return min(float(work.threads), float(len(tenant.cpus)), tenant.limit_cores)


def _flat_weights(tenants: Sequence[Tenant], wanted: Sequence[float]) -> list[float]:
    """Each tenant's share of the whole, from the weights of all entities on its way that want to run."""
    flat = [0.0] * len(tenants)

    def descend(members: list[int], depth: int, share: float) -> None:
        groups: dict[str, list[int]] = {}
        for index in members:
            groups.setdefault(tenants[index].way[depth].key, []).append(index)
        weights = {key: weight_at(group[0], depth) for key, group in groups.items()}
        for key, group in groups.items():
            part = share * weights[key] / sum(weights.values())
            if len(group) == 1:
                flat[group[0]] = part
            else:
                descend(group, depth + 1, part)

    def weight_at(index: int, depth: int) -> float:
        tenant = tenants[index]
        bonus = _WAKER_BONUS if isinstance(tenant.work, Lra) else 1.0
        return bonus * (tenant.weight if depth == len(tenant.way) - 1 else tenant.way[depth].weight)

    active = [index for index, cores in enumerate(wanted) if cores > 0]
    if active:
        descend(active, 0, 100.0)
    return flat


def _rivals(one: Tenant, other: Tenant) -> tuple[Entity, Entity]:
    """The two entities that compete where the ways of two tenants part."""
    for mine, theirs in zip(one.way, other.way, strict=False):
        if mine.key != theirs.key:
            return mine, theirs
    return one.way[-1], other.way[-1]


def _contention(
    tenants: Sequence[Tenant],
    claims: Sequence[Claim],
    usage: Sequence[Sequence[float]],
    index: int,
    caches: Sequence[CpuSet],
) -> _Contention:
    me = tenants[index]
    mine = usage[index]
    total = sum(mine)
    groups = classes(tuple(claim.cpus for claim in claims))
    ratio = hit = mix = near = 0.0
    near_cpus = _near(me.cpus, tuple(caches))
    awake = max(1.0, min(me.runnable, float(len(me.cpus))))  # CPUs that its threads want at once
    for other_index, other in enumerate(tenants):
        if not isinstance(other.work, Batch) or total <= 0:
            continue
        my_entity, their_entity = _rivals(me, other)
        one_thread = my_entity.weight if me.flat else my_entity.weight / awake
        their_weight = other.weight if other.flat else their_entity.weight
        per_cpu = their_weight / len(other.cpus)
        share = 0.0
        for group, own, theirs in zip(groups, mine, usage[other_index], strict=True):
            if group.cpus <= near_cpus and own <= 0:
                near += other.work.pollution * theirs / near_cpus.mask.bit_count()
            if own <= 0 or theirs <= 0 or index not in group.members:
                continue
            part = own / total  # of my running time, spent on CPUs of this class
            present = min(1.0, theirs / max(group.size - own, 0.05 * group.size))
            share += part * present * present  # a waking thread finds another CPU while some are free
            between = other.work.pollution * theirs / (own + theirs)
            mix += part * between / (between + _MIX_HALF) * (1 + _MIX_HALF)
        ratio += share * per_cpu / one_thread
        hit += share
    return _Contention(ratio, min(1.0, hit), mix, near)


@lru_cache(maxsize=64)
def _near(cpus: CpuSet, caches: tuple[CpuSet, ...]) -> CpuSet:
    """All CPUs behind the last-level caches that these CPUs use."""
    near = CpuSet()
    for cache in caches:
        if cache & cpus:
            near = near | cache
    return near


def _cost(contention: _Contention) -> float:
    """CPU per request over that of an undisturbed one."""
    mixed = (_MIX_COST - _MIX_RELIEF * min(1.0, contention.ratio)) * min(1.0, contention.mix)
    return 1.0 + mixed + _NEIGHBOUR_COST * contention.near


@dataclass(frozen=True, slots=True)
class _Loop:
    rate: float
    response_ms: float
    cpu_wait_ms: float


@dataclass(frozen=True, slots=True)
class _Fate:
    """An LRA's performance with the CPUs that it can have."""

    usage_cores: float
    run_delay_cores: float
    runnable: float
    work_per_s: float
    offered_per_s: float
    quantiles_ms: tuple[float, float, float]

    def activity(self, usage_cores: float, cost: float) -> Activity:
        """The same as an ``Activity``, with the CPU time that the final division gave."""
        p50, p95, p99 = self.quantiles_ms
        return Activity(
            usage_cores=usage_cores,
            run_delay_cores=self.run_delay_cores,
            runnable=self.runnable,
            work_per_s=self.work_per_s,
            offered_per_s=self.offered_per_s,
            p50_ms=p50,
            p95_ms=p95,
            p99_ms=p99,
            cost=cost,
        )


def _serve(tenant: Tenant, work: Lra, entitled: float, most: float, contention: _Contention) -> _Fate:
    servers = max(1.0, most)  # a quota of half a CPU is one server at half speed
    wake_ms = _WAKE_FLOOR_MS * contention.hit + _WAKE_MS * min(contention.ratio**_WAKE_POWER, _WAKE_CEILING)
    spread = _SPREAD_CONTENDED * min(1.0, contention.ratio) ** (1 / 3) * (1.0 if contention.hit else 0.0)
    service_s = work.service_ms * tenant.cost / 1000.0
    if work.clients is not None:
        loop = _closed_loop(work, tenant, entitled, servers, wake_ms)
        tail = (0.0, 0.0)
        sigma = _SPREAD_CLOSED + spread * 0.8
        offered = loop.rate
    else:
        loop, tail = _open_loop(work, tenant, entitled, servers, wake_ms)
        sigma = _SPREAD_OPEN + spread * 0.5
        offered = (work.rate_per_s or 0.0) * tenant.load
    delay = loop.rate * (loop.cpu_wait_ms + wake_ms) / 1000.0
    return _Fate(
        usage_cores=loop.rate * service_s,
        run_delay_cores=delay,
        runnable=loop.rate * service_s + delay,
        work_per_s=loop.rate,
        offered_per_s=offered,
        quantiles_ms=_quantiles(loop.response_ms, sigma, *tail),
    )


def _pace(busy: float, entitled: float, servers: float) -> float:
    """Speed of one running thread: full while its group is modest, its fair share when it wants all it can get."""
    return 1.0 - (1.0 - min(1.0, entitled / servers)) * min(1.0, busy) ** 2


def _closed_loop(work: Lra, tenant: Tenant, entitled: float, servers: float, wake_ms: float) -> _Loop:
    """Approximate mean-value analysis: CPU with ``servers`` threads, the serial section, waiting elsewhere."""
    clients = float(work.clients or 0) * tenant.load
    service = work.service_ms * tenant.cost
    # Other clients' requests that one finds before it. Only what exceeds the servers is waited for.
    others = (clients - 1.0) / clients if clients > 1 else 0.0
    crowding = math.sqrt(2 * (servers + 1)) - 2
    slot_ms = service / entitled
    at_cpu = at_lock = rate = wait = 0.0
    for _ in range(_ITERATIONS):
        busy = min(1.0, rate * slot_ms)
        wait = service / _pace(busy, entitled, servers) - service + slot_ms * others * at_cpu * busy**crowding
        lock_ms = work.serial_ms * (1.0 + others * at_lock)
        response = service + wait + lock_ms + work.wait_ms + tenant.stall_ms + wake_ms
        step_by = 0.5 * (min(clients / response, 1.0 / slot_ms) - rate)
        rate += step_by
        at_cpu, at_lock = rate * (slot_ms + wait), rate * lock_ms
        if abs(step_by) < 1e-4 * rate:
            break
    return _Loop(rate * 1000.0, clients / rate, wait)


def _open_loop(
    work: Lra, tenant: Tenant, entitled: float, servers: float, wake_ms: float
) -> tuple[_Loop, tuple[float, float]]:
    """The undisturbed part of the response, and (probability, mean ms) of waiting for a CPU in a burst."""
    service = work.service_ms * tenant.cost
    offered = ((work.rate_per_s or 0.0) * tenant.load + tenant.backlog) / 1000.0
    rate = min(offered, _BUSY_MAX * entitled / service)
    # A burst is served by more than the fair share: threads that slept are owed time.
    burst_cores = entitled + _BURST_CREDIT * (servers - entitled)
    busy = rate * service / burst_cores
    alone_ms = service / _pace(busy, entitled, servers)
    queued = busy ** (math.sqrt(2 * (servers + 1)) - 1)
    burst_ms = _BURSTS * service / (burst_cores * (1.0 - busy))
    lock_ms = work.serial_ms / (1.0 - min(0.9, rate * work.serial_ms))
    backlog_ms = tenant.backlog / rate if rate > 0 else 0.0
    response = alone_ms + lock_ms + work.wait_ms + tenant.stall_ms + wake_ms + backlog_ms
    wait = alone_ms - service + min(queued * burst_ms / _BURSTS, 50.0) + backlog_ms * 0.1
    return _Loop(rate * 1000.0, response, wait), (queued, burst_ms)


def _quantiles(mean_ms: float, sigma: float, queued: float, burst_ms: float) -> tuple[float, float, float]:
    """p50, p95, p99 of a log-normal response, plus an exponential wait that ``queued`` of the requests have."""
    median = mean_ms / math.exp(sigma * sigma / 2)

    def above(level: float, z: float) -> float:
        body = median * math.exp(sigma * z)
        if queued <= level:
            return body
        tail = mean_ms + burst_ms * math.log(queued / level)
        return max(body, tail)

    return above(0.5, 0.0), above(0.05, _Z95), above(0.01, _Z99)


def _batch(tenant: Tenant, work: Batch, usage: float, smt: float) -> Activity:
    awake = 1.0 / (1.0 + tenant.stall_ms)
    waiting = max(0.0, work.threads - usage)
    room = min(float(len(tenant.cpus)), float(work.threads))
    throttled = max(0.0, 1.0 - tenant.limit_cores / room) if tenant.limit_cores < room else 0.0
    return Activity(
        usage_cores=usage * awake,
        run_delay_cores=waiting * awake,
        throttled=throttled,
        runnable=work.threads * awake,
        work_per_s=usage * awake * smt * work.work_per_core_s,
        speed=smt,
    )


def _busy_share(claims: Sequence[Claim], usage: Sequence[Sequence[float]]) -> dict[CpuSet, float]:
    groups = classes(tuple(claim.cpus for claim in claims))
    return {group.cpus: sum(row[index] for row in usage) / group.size for index, group in enumerate(groups)}


def _sibling_share(cpus: CpuSet, busy: dict[CpuSet, float], siblings: int) -> float:
    """How often the other hardware thread is busy too. The scheduler fills whole cores first, not perfectly."""
    if siblings < 2:
        return 0.0
    over = [(len(group & cpus), share) for group, share in busy.items() if group & cpus]
    total = sum(count for count, _ in over)
    mean = sum(count * share for count, share in over) / total if total else 0.0
    return mean * mean
