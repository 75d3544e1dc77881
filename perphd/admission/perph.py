"""The perph policy: detect, infer just enough, review the outcome, and give back the rest.

Each LRA has a small state machine (``controller``); the arbiter turns their protections into one target state. Several
LRAs in trouble get exclusive cores and one joint decision (``partitioned``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perphd.admission.arbiter import arbitration
from perphd.admission.arbiter.arbitration import NEWCOMER
from perphd.admission.arbiter.partition_state import (
    PartitionResult,
    PartitionState,
    can_part,
    in_trouble,
    present,
    sharing_again,
)
from perphd.admission.arbiter.partitioned import PartitionedTick
from perphd.admission.context import batches, lras
from perphd.admission.controller.lra_controller import LraController
from perphd.admission.controller.lra_state import LraState
from perphd.admission.detector.origin import is_shared
from perphd.admission.features import floor, own_ways, streaming
from perphd.admission.features.floor import NO_FLOOR, Floor
from perphd.admission.features.own_ways import OwnWays
from perphd.admission.features.streaming import Lras, Streaming
from perphd.admission.inference.bandwidth import with_bandwidth
from perphd.admission.inference.domains import domains_of
from perphd.admission.settings import PolicySettings, at_pace, settings_for, without_trials
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action, Decision, Health, Outcome
from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.quick import replace


@dataclass(frozen=True, slots=True)
class PerphMemory:
    """State of the policy: for each LRA, and for all LRAs together while they have exclusive cores.

    During that time, each LRA's learned state (cooldowns, circuit breaker, noise) is kept for later. ``streaming``:
    batch jobs confined to the smallest cache mask. ``own_ways``: LRAs with separate cache ways. ``floor``: progress
    of batch jobs, and raises for their floor.
    """

    lras: Mapping[str, LraState] = field(default_factory=dict)
    partitioned: PartitionState | None = None
    streaming: Streaming = Streaming()
    own_ways: OwnWays = field(default_factory=OwnWays)
    floor: Floor = NO_FLOOR


class PerphPolicy:
    """Implements ``domain.policy.Policy``. Pure: all state is in the snapshot's memory."""

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings if settings is not None else PolicySettings()

    @property
    def name(self) -> str:
        """``perph``."""
        return "perph"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Decide for every LRA, arbitrate all protections into settings, then handle streaming batch and floors."""
        memory = snapshot.memory if isinstance(snapshot.memory, PerphMemory) else PerphMemory()
        settings = self._settings if snapshot.host.window_open else without_trials(self._settings)
        target = self._for_lras(snapshot, memory, settings)
        own = own_ways.advance(memory.own_ways, snapshot, target, settings)
        target = replace(
            target,
            settings=own.settings,
            decisions=own.decisions,
            outcomes=(*target.outcomes, *own.outcomes),
            memory=replace(target.memory, own_ways=own.own),
        )
        step = streaming.advance(
            memory.streaming, snapshot, target.settings, _how_lras_fare(snapshot, target), settings
        )
        held = floor.hold(memory.floor, snapshot, step.settings)
        return replace(
            target,
            settings=held.settings,
            decisions=_with_bandwidth(snapshot, target),
            outcomes=(*target.outcomes, *step.outcomes, *held.outcomes),
            memory=replace(target.memory, streaming=step.streaming, floor=held.floor),
        )

    def _for_lras(self, snapshot: Snapshot, memory: PerphMemory, wanted: PolicySettings) -> TargetState:
        partable = can_part(snapshot)
        if memory.partitioned is not None and partable:
            return self._together(snapshot, memory, wanted)
        known = memory.lras
        if memory.partitioned is not None:
            snapshot = sharing_again(snapshot)
            known = {name: state.anew() for name, state in known.items()}
        states: dict[str, LraState] = {}
        decisions: list[Decision] = []
        outcomes: list[Outcome] = []
        protections: dict[str, Allocation] = {}
        batch_gives = any(v.enforced for v in batches(snapshot))
        for declared in lras(snapshot):
            # Nothing is in force for an LRA while no batch workload is enforced.
            view = declared if batch_gives or not declared.enforced else replace(declared, enforced=False)
            state = known.get(view.spec.name) or LraState.new(snapshot.at_s)
            own = at_pace(settings_for(wanted, view.spec), snapshot.period_s)
            controller = LraController(own, snapshot, view, state)
            decision = controller.run()
            states[view.spec.name] = controller.state
            decisions.append(replace(decision, policy=self.name))
            if view.enforced:
                protections[view.spec.name] = decision.chosen
            if controller.outcome is not None:
                outcomes.append(controller.outcome)
        scores = {name: state.scores for name, state in states.items()}
        shared = is_shared(snapshot.host.account)
        if partable and not shared and in_trouble(decisions, scores, snapshot.host.account):
            return self._together(snapshot, PerphMemory(states), wanted)
        batch = (*batches(snapshot), NEWCOMER)
        settings = arbitration.arbitrate(snapshot.host, lras(snapshot), batch, protections, wanted)
        newcomer = settings.pop(NEWCOMER.spec.name)
        return TargetState(settings, tuple(decisions), tuple(outcomes), PerphMemory(states), newcomer)

    def _together(self, snapshot: Snapshot, memory: PerphMemory, wanted: PolicySettings) -> TargetState:
        """Decide for several LRAs together, each with exclusive cores."""
        detectors = {name: state.detector for name, state in memory.lras.items()}
        paced = at_pace(wanted, snapshot.period_s)
        result: PartitionResult = PartitionedTick(paced, snapshot, memory.partitioned, detectors).run()
        decisions = tuple(replace(d, policy=self.name) for d in result.decisions)
        partitioned = result.partitioned if result.partitioned is not None else PartitionState()
        settings = arbitration.arbitrate(
            snapshot.host,
            lras(snapshot),
            (*batches(snapshot), NEWCOMER),
            result.protections,
            wanted,
            partitioned.placed,
            partitioned.lent,
        )
        newcomer = settings.pop(NEWCOMER.spec.name)
        lras_known = (
            memory.lras if result.partitioned is not None else {n: s.anew() for n, s in memory.lras.items()}
        )
        known = PerphMemory(lras_known, result.partitioned)
        return TargetState(settings, decisions, result.outcomes, known, newcomer)


def _with_bandwidth(snapshot: Snapshot, target: TargetState) -> tuple[Decision, ...]:
    """Complete each decision with the memory bandwidth that its throttle delivers in the LRA's L3 domains."""
    host, views = snapshot.host, {view.spec.name: view for view in snapshot.workloads}
    found = []
    for decision in target.decisions:
        cpus = target.settings[decision.workload].cpus
        domains = domains_of(host.topology, views[decision.workload], cpus)
        chosen = with_bandwidth(host, decision.chosen, domains)
        found.append(decision if chosen is decision.chosen else replace(decision, chosen=chosen))
    return tuple(found)


def _how_lras_fare(snapshot: Snapshot, target: TargetState) -> Lras:
    """Condition of the present LRAs, as the streaming rule needs it."""
    there = {view.spec.name for view in present(snapshot)}
    decisions = [d for d in target.decisions if d.workload in there]
    good = Health.HEALTHY, Health.OVERPROVISIONED
    well = all(d.verdict.health in good and d.action is Action.HOLD for d in decisions)
    partitioned = target.memory.partitioned if isinstance(target.memory, PerphMemory) else None
    caches = partitioned.caches.values() if partitioned is not None else ()
    calm = all(state.loosened is None and state.tightened is None for state in caches)
    return Lras(there=bool(decisions), well=well, calm=calm)
