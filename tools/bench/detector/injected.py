"""The detector's verdict when an LRA loses one resource and nothing else changes.

The node model runs in virtual time while perphd's own models learn. Nothing is enforced; only verdicts are examined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from perphd.admission.perph import PerphPolicy
from perphd.agent.learning import observations
from perphd.domain.allocation import Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Cause, Decision, Health
from perphd.domain.policy import Policy, Snapshot, WorkloadView
from perphd.predictor import Registry
from perphd.sim.node.archetypes import archetype
from perphd.sim.node.grant import Grant
from perphd.sim.node.load import Steps
from perphd.sim.node.machine import SILVER_4114, Machine
from perphd.sim.node.model import Node
from perphd.sim.node.workload import Code, MemoryUse, NodeWorkload
from tools.bench.policies.driver import KNOBS
from tools.bench.policies.scene import Actor, Scenario
from tools.bench.policies.world import World, host_view

MACHINE: Final = SILVER_4114
SINGLE: Final = replace(MACHINE, threads_per_core=1)
"""The same with hyperthreading switched off."""
NARROW: Final = replace(MACHINE, memory_bytes_per_s=20e9)
"""The same with half of its memory channels empty, so that streamers on four cores can saturate the rest."""
STARTS_S: Final = 90.0
ENDS_S: Final = 170.0
_OPEN: Final = ("xapian", "img-dnn", "masstree", "specjbb", "memcached")
_CACHED: Final = ("mysql-oltp", "mysql-olap", "mysql-short", "kafka-stream", "masstree")
_HOME: Final = MACHINE.first_cores(6)
_AWAY: Final = MACHINE.first_cores(4, 6)


@dataclass(frozen=True, slots=True)
class Injection:
    """Events at ``STARTS_S``: the workloads that start and the settings that are found. ``cause``: the true cause."""

    cause: Cause
    actors: tuple[Actor, ...]
    before: Mapping[str, Settings] = field(default_factory=dict)
    after: Mapping[str, Settings] = field(default_factory=dict)
    machine: Machine = MACHINE


@dataclass(frozen=True, slots=True)
class Found:
    """The detector's verdicts. ``delay_samples``: from the injection to DEGRADED, None if not reached.

    ``suffered``: the true score's worst mean over ten samples; ``first``, ``later``: causes reported then and five
    samples later; ``false_before``: samples judged DEGRADED before the injection; ``culprit``: the antagonist named
    five samples later.
    """

    cause: Cause
    lra: str
    suffered: float
    delay_samples: int | None
    first: Cause
    later: Cause
    culprit: str | None
    false_before: int


def play(
    actors: tuple[Actor, ...],
    seed: int,
    ends_s: float,
    policy: Policy | None = None,
    before: Mapping[str, Settings] | None = None,
    after: Mapping[str, Settings] | None = None,
    at_s: float = STARTS_S,
    machine: Machine = MACHINE,
    see: Callable[[Snapshot, Decision, dict[str, Any]], None] = lambda *_: None,
) -> None:
    """Run actors on the machine, observing only; calls ``see`` with every decision and the true outcomes."""
    scenario = Scenario("injected", "detector", "", machine, actors, ends_s, step_s=0.5)
    world, registry, policy = World(scenario, seed), Registry(), policy or PerphPolicy()
    memory: Any = None
    tick = 0
    world.apply(before or {})
    while world.now_s < ends_s - 1e-9:
        if after is not None and at_s <= world.now_s < at_s + 1.0:
            world.apply({**(before or {}), **after})
        interval = world.advance(1.0)
        samples = {s.workload: s for s in world.samples(interval)}
        link = sum(o.net_bytes_per_s for o in interval.outcomes.values()) / machine.net_bytes_per_s
        host = replace(host_view(machine, world.busy_cores(interval)), network_pct=100.0 * link)
        views = tuple(
            WorkloadView(
                a.spec, samples.get(a.name), registry.model(a.name) if a.is_lra else None, enforceable=KNOBS
            )
            for a in actors
        )
        snapshot = Snapshot(tick, world.now_s, 1.0, host, views, memory)
        for name, seen in observations(snapshot, [], 0.05):
            registry.model(name).observe(seen)
        target = policy.decide(snapshot)
        memory, tick = target.memory, tick + 1
        for decision in target.decisions:
            see(snapshot, decision, dict(interval.outcomes))


def run(injection: Injection, seed: int) -> Found:
    """One injection, once."""
    lra = next(a for a in injection.actors if a.is_lra)
    told: list[tuple[float, Decision]] = []
    truth: list[tuple[float, float, float]] = []

    def see(snapshot: Snapshot, decision: Decision, outcomes: dict[str, Any]) -> None:
        told.append((snapshot.at_s, decision))
        truth.append((snapshot.at_s, outcomes[lra.name].work_per_s, outcomes[lra.name].p95_ms))

    play(
        injection.actors,
        seed,
        ENDS_S,
        None,
        injection.before,
        injection.after,
        machine=injection.machine,
        see=see,
    )
    usual = [t for t in truth if 30.0 < t[0] <= STARTS_S]
    work, p95 = (sum(t[n] for t in usual) / len(usual) for n in (1, 2))
    hurt = [t for t in truth if t[0] > STARTS_S + 5.0]
    worst = min(
        min(
            sum(t[1] for t in hurt[i : i + 10]) / 10 / work / 0.9,
            1.5 * p95 * 10 / max(sum(t[2] for t in hurt[i : i + 10]), 1e-9),
        )
        for i in range(len(hurt) - 9)
    )
    after = [(at_s, d) for at_s, d in told if at_s > STARTS_S]
    sick = [i for i, (_, d) in enumerate(after) if d.verdict.health is Health.DEGRADED]
    first = later = Cause.NONE
    culprit = None
    if sick:
        first = after[sick[0]][1].verdict.cause
        rest = [after[i][1].verdict for i in sick if i >= sick[0] + 5] or [after[sick[-1]][1].verdict]
        later, culprit = rest[0].cause, rest[0].culprit
    false_before = sum(1 for at_s, d in told if at_s <= STARTS_S and d.verdict.health is Health.DEGRADED)
    return Found(
        injection.cause, lra.name, worst, sick[0] + 1 if sick else None, first, later, culprit, false_before
    )


# -- what is taken away ---------------------------------------------------------------------------------


def _lra(random: Random, names: tuple[str, ...] = _OPEN, low: float = 0.15, high: float = 0.4) -> Actor:
    """A service at a share of the load that the whole machine can serve; closed loops are unchanged."""
    work = archetype(random.choice(names)).workload
    if work.requests is not None and work.requests.rate_per_s is not None:
        work = work.asked(rate_per_s=work.requests.rate_per_s * random.uniform(low, high))
    return Actor(work)


def _bystander() -> Actor:
    """A little harmless batch work that starts at the moment of the injection."""
    work = replace(archetype("batch-compress").named("bystander"), threads=1)
    return Actor(work, starts_s=STARTS_S)


def _batch(name: str, threads: int) -> Actor:
    return Actor(replace(archetype(name).workload, threads=threads), starts_s=STARTS_S)


def _apart(lra: Actor, *others: Actor, **more: Any) -> dict[str, Settings]:
    """The LRA on six cores, all other workloads on the other four."""
    homes = {lra.name: Settings(cpus=_HOME, **more)}
    return homes | {o.name: Settings(cpus=_AWAY) for o in others}


def cpu(random: Random) -> Injection:
    """Compute jobs on the same CPUs, with more threads than CPUs. Hyperthreading is off, because it would be a second
    cause.
    """
    jobs = _batch("batch-pi", random.choice((14, 20, 30)))
    return Injection(Cause.CPU, (_lra(random), jobs), machine=SINGLE)


def smt(random: Random) -> Injection:
    """Compute jobs on the siblings of the LRA's CPUs, none on its own."""
    lra, pi = (
        _lra(random, ("xapian", "masstree", "specjbb", "img-dnn", "mysql-oltp", "mysql-short"), 0.55, 0.65),
        _batch("batch-pi", 10),
    )
    first = CpuSet.of(range(MACHINE.cores))
    homes = {lra.name: Settings(cpus=first), pi.name: Settings(cpus=MACHINE.online - first)}
    return Injection(Cause.SMT, (lra, pi), homes)


def llc(random: Random) -> Injection:
    """A cache thrasher on its own cores; the memory channels are far from full."""
    lra = _lra(random, _CACHED, 0.56, 0.64)
    code = lra.work.code
    # Steeper miss curves than those of the archetypes, which hardly react to a lost cache.
    needy = replace(code, mpki_swing=code.mpki_swing * random.uniform(3.0, 4.0))
    lra = replace(lra, work=replace(lra.work, code=needy))
    thrash = _batch("batch-thrash", random.choice((4, 6, 8)))
    return Injection(Cause.LLC, (lra, thrash), _apart(lra, thrash))


def mbw(random: Random) -> Injection:
    """Streamers on their own cores, in one way of the cache."""
    lra = _lra(random, _CACHED, 0.56, 0.64)
    stream = _batch("batch-stream", random.choice((6, 8)))
    found = _apart(lra, stream)
    ways = MACHINE.llc_ways
    found[lra.name] = replace(found[lra.name], llc_masks=((0, (1 << ways) - 2),))
    found[stream.name] = replace(found[stream.name], llc_masks=((0, 1),))
    return Injection(Cause.MBW, (lra, stream), found, machine=NARROW)


def memory(random: Random) -> Injection:
    """A job whose memory leaves the LRA's page cache no room."""
    lra = _lra(random, ("xapian", "mysql-oltp", "kafka-stream"))
    left = lra.work.memory.anon_bytes + random.uniform(0.02, 0.08) * lra.work.memory.cache_bytes
    anon = MACHINE.memory_bytes * 0.97 - left
    hog = NodeWorkload("hog", Code(1e7), threads=1, memory=MemoryUse(anon_bytes=anon))
    actor = Actor(hog, starts_s=STARTS_S)
    return Injection(Cause.MEMORY, (lra, actor), _apart(lra, actor))


def disk(random: Random) -> Injection:
    """Random reads with many in flight."""
    lra, fio = _lra(random, ("mysql-oltp",)), _batch("batch-fio", random.choice((128, 192, 256)))
    return Injection(Cause.IO, (lra, fio), _apart(lra, fio))


def network(random: Random) -> Injection:
    """Bulk transfers that fill the link."""
    base = archetype("kafka-stream").workload
    lra = Actor(replace(base, io=replace(base.io, net_bytes=base.io.net_bytes * random.uniform(1.0, 2.0))))
    bulk = _batch("batch-network", random.choice((24, 32, 48)))
    return Injection(Cause.NETWORK, (lra, bulk), _apart(lra, bulk))


def throttled(random: Random) -> Injection:
    """The LRA's own cpu.max is lowered."""
    lra, other = (
        _lra(random, ("xapian", "img-dnn", "specjbb", "mysql-oltp", "mysql-short"), 0.3, 0.45),
        _bystander(),
    )
    alone = Node(MACHINE, [lra.work]).solve([[Grant(cpus=_HOME)]]).of(0)
    limit = random.uniform(0.7, 0.9) * alone.usage_cores
    found = _apart(lra, other)
    later = {lra.name: replace(found[lra.name], cpu_max_cores=round(limit, 1))}
    return Injection(Cause.THROTTLED, (lra, other), found, later)


def remote(random: Random) -> Injection:
    """The service that the LRA calls responds more slowly; harmless batch work starts at the same moment."""
    lra, other = _lra(random, ("xapian", "specjbb", "mysql-oltp", "img-dnn")), _bystander()
    requests = lra.work.requests
    assert requests is not None
    slower = replace(requests, wait_ms=requests.wait_ms + random.uniform(6.0, 20.0))
    lra = replace(lra, becomes=((STARTS_S, replace(lra.work, requests=slower)),))
    return Injection(Cause.REMOTE, (lra, other), _apart(lra, other))


INJECTIONS: Final[Mapping[str, Callable[[Random], Injection]]] = {
    "CPU run-queue": cpu,
    "SMT": smt,
    "LLC": llc,
    "memory bandwidth": mbw,
    "memory capacity": memory,
    "disk": disk,
    "network": network,
    "own throttling": throttled,
    "remote": remote,
}


# -- who is to blame ------------------------------------------------------------------------------------


def pulses(random: Random, until_s: float) -> Steps:
    """Starts and stops at random, as jobs do; mostly stopped before the injection."""
    steps: list[tuple[float, float]] = [(0.0, 0.02)]
    at_s = random.uniform(5.0, 20.0)
    while at_s < until_s:
        length_s = random.uniform(6.0, 20.0)
        steps += [(at_s, 1.0), (at_s + length_s, 0.02)]
        at_s += length_s + random.uniform(6.0, 25.0)
    return Steps(tuple(steps))
