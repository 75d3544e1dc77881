"""Runs a policy in a world: one round per period, with perphd's models learning as in the agent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from perphd.admission.detector.attention import Attention, advance, next_in_s
from perphd.admission.inference.inferer import untouched
from perphd.admission.settings import PolicySettings
from perphd.agent.learning import ObservationMerger
from perphd.config.file import DaemonConfig
from perphd.domain.allocation import KEEP, UNTOUCHED, Allocation, Settings
from perphd.domain.decision import Action
from perphd.domain.host_account import HostAccount
from perphd.domain.policy import Policy, Snapshot, TargetState, WorkloadView
from perphd.domain.sample import Quality, Sample, lies_after
from perphd.domain.workload import Objective
from perphd.predictor import Registry
from perphd.sim.node.grant import Grant
from perphd.sim.node.model import Node
from tools.bench.policies.scene import Actor, Scenario
from tools.bench.policies.world import Interval, World, host_view

KNOBS: Final = frozenset(
    {
        "cpus",
        "cpu_weight",
        "cpu_max_cores",
        "memory_low_bytes",
        "memory_high_bytes",
        "llc_masks",
        "mba_pct",
        "frozen",
    }
)


Watch: TypeAlias = Callable[[Snapshot, TargetState], None]
"""Called with every decision."""


@dataclass(slots=True)
class Round:
    """One round: the true outcomes of its interval, and the policy's decision.

    ``searching``: the settings of the interval were samples of a search that its policy had not ended.
    """

    interval: Interval
    moved: int
    acted: bool
    decide_s: float
    learn_s: float
    searching: bool = False


@dataclass(slots=True)
class Run:
    """One run of one policy in one scenario with one seed."""

    scenario: Scenario
    policy: str
    seed: int
    rounds: list[Round] = field(default_factory=list)
    finished_s: dict[str, float] = field(default_factory=dict)
    last: TargetState | None = None


PROFILED_SHARE: Final = 0.9
START_LOOK_S: Final = 0.25
"""Seconds after a batch start at which a policy of fixed pace decides a second time."""


class Seat:
    """The agent's bookkeeping around a policy, without kernel and clock (``perphd.agent.agent`` is the original).

    ``told``: it decides at once when batch starts. ``registry``: creates the Res-Perf models that it queries.
    """

    def __init__(
        self, scenario: Scenario, policy: Policy, period_s: float, *, models: bool, attentive: bool = False,
        told: bool = False, registry: Callable[[], Registry] = Registry,
    ) -> None:  # fmt: skip
        self._scenario, self._policy, self._period_s = scenario, policy, period_s
        daemon = DaemonConfig()
        self._fast_s = daemon.attentive_period_s if attentive else period_s
        self._fast_for_s, self._attention = daemon.attentive_for_s, Attention()
        self._pace_s = self._fast_s  # workloads present at the start count as newly arrived, with one reading
        self._attentive = attentive
        self._starts_s = {a.name: a.starts_s for a in scenario.batch} if told else {}
        looks_s = [0.0] if attentive else [0.0, START_LOOK_S]
        self._looks_s = sorted(at_s + later_s for at_s in self._starts_s.values() for later_s in looks_s)
        self._settings = PolicySettings()
        self._registry, self._lessons = registry() if models else None, ObservationMerger()
        self._protections: dict[str, tuple[Allocation, float]] = {}
        self._memory: Any = None
        self._in_force: Mapping[str, Settings] = {}
        self._tick = 0
        self._profiled: dict[tuple[str, float], float] = {}
        self._host = scenario.kind.actuators(host_view(scenario.machine))
        self.decide_s = self.learn_s = 0.0

    def snapshot(
        self,
        samples: tuple[Sample, ...],
        busy_cores: float,
        now_s: float,
        account: HostAccount | None = None,
    ) -> Snapshot:
        """The policy's present snapshot."""
        by_name = {sample.workload: self._flag(sample) for sample in samples}
        known = [actor for actor in self._scenario.actors if actor.declared]
        views = tuple(self._view(actor.spec, by_name.get(actor.name)) for actor in known)
        if self._registry is None:
            views = tuple(self._stands_in(actor, view) for actor, view in zip(known, views, strict=True))
        host = replace(self._host, busy_cores=busy_cores, account=account)
        return Snapshot(self._tick, now_s, self._pace_s, host, views, self._memory)

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Learn, decide, remember."""
        began = time.perf_counter()
        if self._registry is not None:
            self._learn(snapshot, self._registry)
        learned = time.perf_counter()
        target = self._policy.decide(snapshot)
        self.decide_s, self.learn_s = time.perf_counter() - learned, learned - began
        self._memory, self._in_force = target.memory, target.settings
        self._tick += 1
        now_s = snapshot.at_s
        starts = self._starts_s.items() if self._attentive else ()
        started = [name for name, at_s in starts if abs(now_s - at_s) < 1e-6]
        self._attention = advance(
            self._attention, snapshot, target, self._fast_s, self._fast_for_s, started=started
        )
        self._pace_s = next_in_s(self._attention, now_s, self._period_s, self._fast_s)
        return target

    def next_in_s(self, now_s: float) -> float:
        """Time to the next tick. Ticks lie on the grid of the policy's pace; a start of batch causes one at once."""
        due_s = (math.floor(now_s / self._pace_s + 1e-6) + 1) * self._pace_s
        return min([due_s, *(at_s for at_s in self._looks_s if now_s + 1e-6 < at_s)]) - now_s

    def note(self, target: TargetState, now_s: float, changed: bool) -> None:
        """Remember the settings now in force for each LRA."""
        nothing = untouched(self._scenario.machine.cores)
        for decision in target.decisions:
            before = self._protections.get(decision.workload)
            if before is None and decision.chosen == nothing:
                continue
            if before is None or before[0] != decision.chosen:
                self._protections[decision.workload] = (decision.chosen, now_s)
            elif changed:
                self._protections[decision.workload] = (before[0], now_s)

    def _flag(self, sample: Sample) -> Sample:
        known = self._protections.get(sample.workload)
        if known is None:
            return sample
        if lies_after(sample, known[1] + self._settings.settle_s, min(self._period_s, sample.interval_s)):
            return sample
        return replace(sample, quality=(*sample.quality, Quality.SETTLING))

    def _view(self, spec: Any, sample: Sample | None) -> WorkloadView:
        known = self._protections.get(spec.name)
        cpus = self._in_force.get(spec.name, UNTOUCHED).cpus
        is_lra = self._registry is not None and any(a.name == spec.name for a in self._scenario.lras)
        return WorkloadView(
            spec=spec,
            sample=sample,
            model=self._registry.model(spec.name) if self._registry is not None and is_lra else None,
            protection=known[0] if known is not None else None,
            protected_since_s=known[1] if known is not None else 0.0,
            enforceable=self._scenario.kind.knobs(KNOBS),
            enforced=True,
            allowed=self._scenario.machine.online if cpus is KEEP else cpus,
        )

    def _stands_in(self, actor: Actor, view: WorkloadView) -> WorkloadView:
        """For policies that need absolute targets: an LRA without indicators reports MIPS, and its target is nine
        tenths of the MIPS that an offline profile would show alone at this load.
        """
        if actor.sli or not actor.is_lra or view.sample is None:
            return view
        load = round(actor.load.at(view.sample.at_s) * 20.0) / 20.0 or 0.01
        work = actor.at(view.sample.at_s)
        key = repr(work), load
        if key not in self._profiled:
            node = Node(self._scenario.machine, [work])
            self._profiled[key] = float(node.solve([[Grant()]], [load]).mips[0, 0])
        objective = Objective(min_work_rate_per_s=PROFILED_SHARE * self._profiled[key])
        sample = replace(view.sample, work_rate_per_s=view.sample.mips)
        return replace(view, spec=replace(view.spec, objective=objective), sample=sample)

    def _learn(self, snapshot: Snapshot, registry: Registry) -> None:
        in_force = [allocation for allocation, _ in self._protections.values()]
        for name, seen in self._lessons.of(snapshot, in_force, self._settings.batch_idle_cores):
            registry.model(name).observe(seen)
        registry.rebuild_here()  # virtual time does not wait for a worker


def run(
    scenario: Scenario,
    policy: Policy,
    period_s: float,
    seed: int,
    *,
    models: bool = False,
    attentive: bool = False,
    told: bool | None = None,
    registry: Callable[[], Registry] = Registry,
    watch: Watch | None = None,
) -> Run:
    """Run ``policy`` in ``scenario``. ``models``: it queries the models that ``registry`` creates.

    ``attentive``: it is called more often during changes, as the agent does by default. ``told``: it is called as soon
    as batch starts; None: if it is attentive. ``watch``: called with every decision.
    """
    scenario = scenario.drawn(seed)
    world = World(scenario, seed)
    told = attentive if told is None else told
    seat = Seat(scenario, policy, period_s, models=models, attentive=attentive, told=told, registry=registry)
    result = Run(scenario, policy.name, seed)
    searching = False
    while world.now_s < scenario.duration_s - 1e-9:
        interval = world.advance(seat.next_in_s(world.now_s))
        account = world.account(interval) if scenario.accounted else None
        snapshot = seat.snapshot(world.samples(interval), world.busy_cores(interval), world.now_s, account)
        target = seat.decide(snapshot)
        if watch is not None:
            watch(snapshot, target)
        moved = world.apply(target.settings)
        seat.note(target, world.now_s, moved > 0)
        acted = any(d.action is not Action.HOLD for d in target.decisions) or moved > 0
        result.rounds.append(Round(interval, moved, acted, seat.decide_s, seat.learn_s, searching))
        searching = bool(getattr(target.memory, "searching", False))
        result.last = target
    result.finished_s = dict(world.finished_s)
    return result
