"""The node model in virtual time under a policy's settings, observed through noisy samples.

There are no kernel trees here, so thousands of runs are cheap: settings go directly into the node model's grants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import numpy as np

from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, UNTOUCHED, Settings
from perphd.domain.host_account import CpuAccount, GroupUse, HostAccount
from perphd.domain.policy import HostView
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.domain.sample import Quality, Sample
from perphd.sim.accounting import Drift
from perphd.sim.node.grant import Grant, Grants, grants
from perphd.sim.node.machine import Machine
from perphd.sim.node.model import Node
from perphd.sim.node.outcome import Outcome
from perphd.sim.node.state import State
from perphd.sim.node.workload import NodeWorkload
from tools.bench.policies.counting import SLICE_S, STALL_S, count, factor, percentiles
from tools.bench.policies.scene import Actor, Noise, Scenario

_LATENCY_NOISE: Final = 0.06  # for a quarter of a second; less for a longer time
_NOISE_S: Final = 0.25
_COUNTER_NOISE: Final = 0.004
_BANDWIDTH_NOISE: Final = 0.022  # measured between runs of MLC on cloud machines
_OCCUPANCY_NOISE: Final = 0.05
_PAGE_FILL_BYTES_PER_S: Final = 400e6
_LEAST_BACKLOG: Final = 20.0
_UNCOUNTED: Final = 2
"""Number of samples without rates after threads have come or moved: one until their resctrl group exists, and one for a
first rate.
"""
_NO_GROUP: Final = Unavailable("its threads are not in their own resctrl group yet")
_NO_RATE: Final = Unavailable("no earlier sample to compare with")


def host_view(machine: Machine, busy_cores: Reading = NOT_MEASURED) -> HostView:
    """A policy's view of the machine."""
    return HostView(machine.topology(), busy_cores, machine.llc_ways, 1, tuple(range(10, 101, 10)))


def grant_of(machine: Machine, settings: Settings) -> Grant:
    """The grant for these settings, without ``frozen``: the world gives frozen workloads no load."""
    weight = 100.0 if settings.cpu_weight in (KEEP, IDLE) else float(settings.cpu_weight)
    high = settings.memory_high_bytes
    top = settings.memory_max_bytes
    limits = [float(v) for v in (high, top) if v is not KEEP and v is not NO_LIMIT]
    low = 0.0 if settings.memory_low_bytes is KEEP else float(settings.memory_low_bytes)
    least = 0.0 if settings.memory_min_bytes is KEEP else float(settings.memory_min_bytes)
    masks = dict(settings.llc_masks) if settings.llc_masks is not KEEP else {}
    levels = dict(settings.mba_pct) if settings.mba_pct is not KEEP else {}
    domains = range(machine.sockets)
    return Grant(
        cpus=machine.online if settings.cpus is KEEP else settings.cpus,
        weight=weight,
        idle=settings.cpu_weight is IDLE,
        limit_cores=math.inf if settings.cpu_max_cores is KEEP else settings.cpu_max_cores,
        memory_bytes=min(limits, default=math.inf),
        protected_bytes=max(low, least),
        masks=tuple(masks.get(d, machine.full_mask) for d in domains) if masks else (),
        mba_pct=tuple(levels.get(d, 100) for d in domains) if levels else (),
    )


def _has_group(settings: Settings) -> bool:
    """True if these settings take a control group of resctrl."""
    return settings.llc_masks is not KEEP or settings.mba_pct is not KEEP


@dataclass(slots=True)
class Interval:
    """The true outcomes over an interval: means by name. Latencies are weighted by work.

    ``phases``: mean factor on an LRA's cycles by its program's own phases; ``steal``: share that the hypervisor took.
    """

    at_s: float
    seconds: float
    outcomes: dict[str, Outcome]
    loads: dict[str, float]
    phases: dict[str, float] = field(default_factory=dict)
    steal: float = 0.0


@dataclass(slots=True)
class _Life:
    """State of one present actor. ``fresh``: it arrived within this interval and was not sampled yet.

    ``uncounted``: samples until its resctrl group gives a rate again.
    """

    actor: Actor
    work: NodeWorkload
    fresh: bool
    uncounted: int
    asked: Drift = field(default_factory=Drift)
    needed: Drift = field(default_factory=Drift)
    done: float = 0.0
    level: float = 0.0
    phase: float = 1.0


class World:
    """One run of a scenario: ``apply`` settings, ``advance`` by an interval, read ``samples``.

    The same seed and the same settings give the same run.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.machine = scenario, scenario.machine
        self.now_s = 0.0
        self.finished_s: dict[str, float] = {}
        self._random = Random(f"{scenario.drawn_as}:{seed}")
        self._lives: dict[str, _Life] = {}
        self._settings: dict[str, Settings] = {}
        self._node: Node | None = None
        self._state: State | None = None
        self._grants: Grants | None = None
        self._latency: dict[str, tuple[float, float, float]] = {}
        self._populate()

    # -- changing ----------------------------------------------------------------------------------

    def apply(self, settings: Mapping[str, Settings]) -> int:
        """Apply settings; workloads that are not named keep their original ones. Returns the number of knobs that
        changed.
        """
        moved = 0
        for actor in self.scenario.actors:
            old = self._settings.get(actor.name, UNTOUCHED)
            new = settings.get(actor.name, UNTOUCHED)
            if old != new:
                if _has_group(old) != _has_group(new) and actor.name in self._lives:
                    self._lives[
                        actor.name
                    ].uncounted = _UNCOUNTED  # its threads move to another resctrl group
                moved += sum(getattr(old, k) != getattr(new, k) for k in Settings.__slots__)
                self._settings[actor.name] = new
        if moved:
            self._grants = None
        return moved

    @property
    def settings(self) -> Mapping[str, Settings]:
        """The settings in force."""
        return self._settings

    def advance(self, seconds: float) -> Interval:
        """Advance time; returns the true outcomes."""
        steps = max(1, round(seconds / self.scenario.step_s))
        dt_s = seconds / steps
        noise = _LATENCY_NOISE * math.sqrt(_NOISE_S / dt_s)
        told: dict[str, list[Outcome]] = {}
        asked: dict[str, list[float]] = {}
        noises: dict[str, list[float]] = {}
        phases: dict[str, list[float]] = {}
        steal = 0.0
        for _ in range(steps):
            self._populate()
            for name, (outcome, load) in self._step(dt_s).items():
                told.setdefault(name, []).append(outcome)
                asked.setdefault(name, []).append(load)
                noises.setdefault(name, []).append(math.exp(self._random.gauss(0.0, noise)))
            steal += self.scenario.steal.at(self.now_s) / steps
            for name, life in self._lives.items():
                if life.actor.phases is not None:
                    phases.setdefault(name, []).append(life.phase)
            self.now_s += dt_s
        outcomes = {name: _mean(items) for name, items in told.items()}
        if self.scenario.noise is Noise.COUNTED:
            self._count_latencies(outcomes, seconds)
        else:
            self._latency = {name: _latencies(items, noises[name]) for name, items in told.items()}
        loads = {name: sum(items) / len(items) for name, items in asked.items()}
        mean_phases = {name: sum(items) / len(items) for name, items in phases.items()}
        return Interval(self.now_s, seconds, outcomes, loads, mean_phases, steal)

    # -- looking -----------------------------------------------------------------------------------

    def samples(self, interval: Interval) -> tuple[Sample, ...]:
        """The samples that a monitor would have taken over the interval."""
        kind, declared = self.scenario.kind, {a.name for a in self.scenario.actors if a.declared}
        return tuple(
            kind.seen(self._sample(interval, name)) for name in interval.outcomes if name in declared
        )

    def account(self, interval: Interval) -> HostAccount:
        """The host's CPU use by owner over the interval; time that the hypervisor took belongs to no owner."""
        capacity, left = float(self.machine.cpus), 1.0 - interval.steal
        parts = dict.fromkeys(("lras", "batch", "undeclared"), 0.0)
        groups: list[GroupUse] = []
        for actor in self.scenario.actors:
            if actor.name not in interval.outcomes:
                continue
            used = interval.outcomes[actor.name].usage_cores * left
            parts["undeclared" if not actor.declared else "lras" if actor.is_lra else "batch"] += used
            if not actor.declared:
                groups.append(GroupUse(f"/undeclared/{actor.name}", used))
        steal = sum(outcome.usage_cores for outcome in interval.outcomes.values()) * interval.steal
        idle = max(0.0, capacity - sum(parts.values()) - steal)
        cpu = CpuAccount(capacity, kernel=0.0, steal=steal, idle=idle, **parts)
        groups.sort(key=lambda group: -group.cpu_cores)
        return HostAccount(interval.at_s, interval.seconds, cpu, tuple(groups))

    def _count_latencies(self, outcomes: Mapping[str, Outcome], seconds: float) -> None:
        for name, outcome in outcomes.items():
            truth = outcome.p50_ms, outcome.p95_ms, outcome.p99_ms
            asked = outcome.work_per_s * seconds
            counts = min(truth) > 0.0 and asked > 0.0
            self._latency[name] = percentiles(self._random, asked, truth) if counts else (0.0, 0.0, 0.0)

    def busy_cores(self, interval: Interval) -> float:
        """Total CPU use."""
        return sum(outcome.usage_cores for outcome in interval.outcomes.values())

    def _sample(self, interval: Interval, name: str) -> Sample:
        life = self._lives.get(name)
        outcome = interval.outcomes[name]
        actor = next(a for a in self.scenario.actors if a.name == name)
        p50, p95, p99 = self._latency[name]
        lra, nothing = actor.is_lra, Unavailable("a batch job has no indicators")
        if interval.steal:
            outcome = replace(outcome, usage_cores=outcome.usage_cores * (1.0 - interval.steal))
        if self.scenario.noise is Noise.COUNTED:
            outcome = _counted(self._random, outcome, interval.seconds, lra)
        if lra and not actor.sli:
            nothing = Unavailable("no source of indicators is configured")
        tells = lra and actor.sli
        answered = outcome.work_per_s > 0
        silent = Unavailable("nothing was answered")
        is_open = tells and actor.work.requests is not None and not actor.work.requests.closed
        fresh = life is not None and life.fresh
        no_cache = no_rate = None
        if life is not None:
            life.fresh = False
            no_cache = _NO_GROUP if life.uncounted == _UNCOUNTED else None
            no_rate = _NO_RATE if life.uncounted else None
            life.uncounted = max(0, life.uncounted - 1)

        def counted(value: float, noise: float = _COUNTER_NOISE) -> float:
            return value * math.exp(self._random.gauss(0.0, noise))

        occupancy = counted(outcome.occupancy_bytes, _OCCUPANCY_NOISE)
        bandwidth = counted(outcome.bandwidth_bytes_per_s, _BANDWIDTH_NOISE)
        return Sample(
            workload=name,
            at_s=interval.at_s,
            interval_s=interval.seconds,
            cpu_usage_cores=outcome.usage_cores,
            cpu_throttled_pct=100.0 * outcome.throttled,
            run_delay_cores=outcome.run_delay_cores if lra else NOT_MEASURED,
            threads=float(actor.work.threads),
            cpu_some_pct=100.0 * outcome.cpu_some,
            memory_some_pct=100.0 * outcome.memory_some,
            memory_full_pct=100.0 * outcome.memory_full,
            io_some_pct=100.0 * outcome.io_some,
            io_full_pct=100.0 * outcome.io_full,
            memory_current_bytes=outcome.resident_bytes,
            memory_working_set_bytes=outcome.resident_bytes,
            refaults_per_s=outcome.refaults_per_s,
            mips=counted(outcome.mips),
            cpi=counted(outcome.cpi),
            llc_mpki=counted(outcome.mpki, 0.01),
            llc_occupancy_bytes=occupancy if no_cache is None else no_cache,
            mbw_bytes_per_s=bandwidth if no_rate is None else no_rate,
            work_rate_per_s=outcome.work_per_s if tells else nothing,
            load_per_s=outcome.offered_per_s if is_open else Unavailable("a closed loop"),
            latency_p50_ms=(p50 if answered else silent) if tells else nothing,
            latency_p95_ms=(p95 if answered else silent) if tells else nothing,
            latency_p99_ms=(p99 if answered else silent) if tells else nothing,
            work_events=outcome.work_per_s * interval.seconds if tells else nothing,
            latency_events=outcome.work_per_s * interval.seconds if tells else nothing,
            sli_window_s=interval.seconds if tells else nothing,
            sli_resolution_s=0.0 if tells else nothing,
            quality=(Quality.FIRST,) if fresh else (),
        )

    # -- physics -----------------------------------------------------------------------------------

    def _populate(self) -> None:
        """Workloads came, went or changed: a new node, which remembers the old one's state."""
        wanted = {
            a.name: a.at(self.now_s)
            for a in self.scenario.actors
            if a.present(self.now_s) and a.name not in self.finished_s
        }
        machine = self.scenario.machine_at(self.now_s)
        same = self._node is not None and self._node.machine == machine
        if same and wanted == {n: life.work for n, life in self._lives.items()}:
            return
        actors = {a.name: a for a in self.scenario.actors}
        # Workloads present at the start have been read once before: the first interval already has rates.
        fresh = self.now_s > 0.0
        self._lives = {
            n: self._lives.get(n) or _Life(actors[n], work, fresh, _UNCOUNTED * fresh)
            for n, work in wanted.items()
        }
        for name, work in wanted.items():
            self._lives[name].work = work
        node = Node(machine, list(wanted.values()))
        if self._node is None or self._state is None:
            self._state = node.start(warm=True)
        else:
            self._state = node.carry_on(self._state, self._node)
        self._node, self._grants = node, None

    def _step(self, dt_s: float) -> dict[str, tuple[Outcome, float]]:
        assert self._node is not None
        assert self._state is not None
        lives = list(self._lives.values())
        if not lives:
            return {}
        if self._grants is None:
            row = [grant_of(self.machine, self._settings.get(life.actor.name, UNTOUCHED)) for life in lives]
            self._grants = grants(self.machine, [row])
        self._remember(self._grants, dt_s)
        loads, needs, patience = np.ones(len(lives)), np.ones(len(lives)), np.ones(len(lives))
        for index, life in enumerate(lives):
            loads[index] = life.actor.load.at(self.now_s)
            if life.actor.is_lra:
                loads[index] *= life.asked.step(self._random, dt_s)
                needs[index] = life.needed.step(self._random, dt_s)
                if life.actor.phases is not None:
                    life.level = life.actor.phases.step(life.level, self._random, dt_s)
                    life.phase = life.actor.phases.factor(life.level)
                    needs[index] *= life.phase
                rate = (life.work.requests.rate_per_s if life.work.requests else None) or 0.0
                patience[index] = max(_LEAST_BACKLOG, self.scenario.patience_s * rate)
            if self._settings.get(life.actor.name, UNTOUCHED).frozen is True:
                loads[index] = 1e-6
        told = self._node.step(self._state, self._grants, dt_s, loads, needs, patience).all()
        found: dict[str, tuple[Outcome, float]] = {}
        for index, (life, outcome) in enumerate(zip(lives, told, strict=True)):
            found[life.actor.name] = outcome, float(loads[index])
            life.done += outcome.work_per_s * dt_s
            if life.actor.job is not None and life.done >= life.actor.job:
                self.finished_s[life.actor.name] = self.now_s + dt_s
        return found

    def _remember(self, rows: Grants, dt_s: float) -> None:
        """Page cache in memory moves towards the size that limits, protections and the host's memory allow."""
        assert self._node is not None
        assert self._state is not None
        people = self._node.people
        wanted = np.clip(rows.memory_bytes - people.anon, 0.0, people.cache)
        over = float((wanted + people.anon).sum()) - 0.97 * self.machine.memory_bytes
        if over > 0:
            kept = np.clip(rows.protected_bytes - people.anon, 0.0, wanted)
            spare = wanted - kept
            wanted = wanted - spare * min(1.0, over / max(float(spare.sum()), 1.0))
        fill = _PAGE_FILL_BYTES_PER_S * dt_s
        self._state.resident = np.minimum(wanted, self._state.resident + fill)


def _counted(random: Random, truth: Outcome, seconds: float, lra: bool) -> Outcome:
    """Readings of counters and clocks over the interval, with the uncertainty of each quantity's number of events.

    Requests are counted. They differ, so the CPU time of n of them scatters by a further 1 / sqrt(n). Batch's use comes
    in slices.
    """
    if lra:
        asked = truth.work_per_s * seconds
        done = count(random, asked)
        work, alike = done / max(asked, 1e-9), factor(random, done)
    else:
        work, alike = factor(random, truth.usage_cores * seconds / SLICE_S), 1.0
    used = work * alike
    waits = factor(random, truth.run_delay_cores * seconds / SLICE_S)
    memory = factor(random, truth.memory_some * seconds / STALL_S)
    disk = factor(random, truth.io_some * seconds / STALL_S)
    return replace(
        truth,
        work_per_s=truth.work_per_s * work,
        offered_per_s=truth.offered_per_s * work,
        usage_cores=truth.usage_cores * used,
        mips=truth.mips * used,
        run_delay_cores=truth.run_delay_cores * waits,
        runnable=truth.runnable * used,
        cpu_some=min(1.0, truth.cpu_some * waits),
        cpu_full=min(1.0, truth.cpu_full * waits),
        memory_some=min(1.0, truth.memory_some * memory),
        memory_full=min(1.0, truth.memory_full * memory),
        io_some=min(1.0, truth.io_some * disk),
        io_full=min(1.0, truth.io_full * disk),
        refaults_per_s=count(random, truth.refaults_per_s * seconds) / seconds,
        bandwidth_bytes_per_s=truth.bandwidth_bytes_per_s * used,
    )


_LATENCIES: Final = frozenset({"p50_ms", "p95_ms", "p99_ms"})
_NAMES: Final = tuple(Outcome.__slots__)


def _mean(items: list[Outcome]) -> Outcome:
    if len(items) == 1:
        return items[0]
    work = sum(item.work_per_s for item in items)
    values = {}
    for name in _NAMES:
        if name in _LATENCIES and work > 0:
            values[name] = sum(getattr(item, name) * item.work_per_s for item in items) / work
        else:
            values[name] = sum(getattr(item, name) for item in items) / len(items)
    return Outcome(**values)


def _latencies(items: list[Outcome], noises: list[float]) -> tuple[float, float, float]:
    """Latencies as a client would measure them: weighted by answered requests, each quarter of a second with its own
    scatter.
    """
    weights = [item.work_per_s for item in items]
    total = sum(weights)
    if total <= 0:
        return 0.0, 0.0, 0.0
    p50, p95, p99 = (
        sum(getattr(item, name) * w * n for item, w, n in zip(items, weights, noises, strict=True)) / total
        for name in ("p50_ms", "p95_ms", "p99_ms")
    )
    return p50, p95, p99
