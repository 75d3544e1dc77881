"""The perph policy: detect, infer just enough, judge what came of it, give back what is not needed.

One small state machine per LRA (``turn``), then one target state for all of them (``arbiter``). Several LRAs that get
into trouble are given cores of their own, and then decided for together (``crowd``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from perphd.admission import arbiter, floor, own_ways, streaming
from perphd.admission.bandwidth import with_bandwidth
from perphd.admission.context import batches, lras
from perphd.admission.crowd import CrowdTick
from perphd.admission.crowd_state import Crowd, Result, can_part, in_trouble, present, sharing_again
from perphd.admission.domains import domains_of
from perphd.admission.floor import NO_FLOOR, Floor
from perphd.admission.lra_state import LraState
from perphd.admission.origin import is_shared
from perphd.admission.own_ways import OwnWays
from perphd.admission.settings import PolicySettings, at_pace, settings_for, without_trials
from perphd.admission.streaming import Lras, Streaming
from perphd.admission.turn import Turn
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action, Decision, Health, Outcome
from perphd.domain.policy import Snapshot, TargetState


@dataclass(frozen=True, slots=True)
class PerphMemory:
    """State of the policy: per LRA name, and of all together while each has cores of its own.

    What was learned of each (regrets, doubts of its model, what is usual) is kept for the time after that.
    ``streaming``: which batch jobs are kept to the least cache; ``own_ways``: which LRAs are kept apart in the cache;
    ``floor``: what batch jobs got done and are given for their floor.
    """

    lras: Mapping[str, LraState] = field(default_factory=dict)
    crowd: Crowd | None = None
    streaming: Streaming = Streaming()
    own_ways: OwnWays = field(default_factory=OwnWays)
    floor: Floor = NO_FLOOR


class PerphPolicy:
    """Implements ``domain.policy.Policy``; pure: all state is in the snapshot's memory."""

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings if settings is not None else PolicySettings()

    @property
    def name(self) -> str:
        """``perph``."""
        return "perph"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Decide for every LRA, reconcile all protections into settings, then see which batch streams."""
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
        if memory.crowd is not None and partable:
            return self._together(snapshot, memory, wanted)
        known = memory.lras
        if memory.crowd is not None:
            snapshot = sharing_again(snapshot)
            known = {name: state.anew() for name, state in known.items()}
        states: dict[str, LraState] = {}
        decisions: list[Decision] = []
        outcomes: list[Outcome] = []
        protections: dict[str, Allocation] = {}
        batch_gives = any(v.enforced for v in batches(snapshot))
        for declared in lras(snapshot):
            # Nothing is in force for an LRA while no batch may be written.
            view = replace(declared, enforced=declared.enforced and batch_gives)
            state = known.get(view.spec.name) or LraState.new(snapshot.at_s)
            own = at_pace(settings_for(wanted, view.spec), snapshot.period_s)
            turn = Turn(own, snapshot, view, state)
            decision = turn.run()
            states[view.spec.name] = turn.state
            decisions.append(replace(decision, policy=self.name))
            if view.enforced:
                protections[view.spec.name] = decision.chosen
            if turn.outcome is not None:
                outcomes.append(turn.outcome)
        scores = {name: state.scores for name, state in states.items()}
        shared = is_shared(snapshot.host.account)
        if partable and not shared and in_trouble(decisions, scores, snapshot.host.account):
            return self._together(snapshot, PerphMemory(states), wanted)
        settings = arbiter.arbitrate(snapshot.host, lras(snapshot), batches(snapshot), protections, wanted)
        return TargetState(settings, tuple(decisions), tuple(outcomes), PerphMemory(states))

    def _together(self, snapshot: Snapshot, memory: PerphMemory, wanted: PolicySettings) -> TargetState:
        """Decide for several LRAs at once, each on cores of its own."""
        detectors = {name: state.detector for name, state in memory.lras.items()}
        paced = at_pace(wanted, snapshot.period_s)
        result: Result = CrowdTick(paced, snapshot, memory.crowd, detectors).run()
        decisions = tuple(replace(d, policy=self.name) for d in result.decisions)
        crowd = result.crowd if result.crowd is not None else Crowd()
        settings = arbiter.arbitrate(
            snapshot.host,
            lras(snapshot),
            batches(snapshot),
            result.protections,
            wanted,
            crowd.placed,
            crowd.lent,
        )
        lras_known = (
            memory.lras if result.crowd is not None else {n: s.anew() for n, s in memory.lras.items()}
        )
        return TargetState(settings, decisions, result.outcomes, PerphMemory(lras_known, result.crowd))


def _with_bandwidth(snapshot: Snapshot, target: TargetState) -> tuple[Decision, ...]:
    """The decisions with what their throttles let through in the L3 domains of their LRAs."""
    host, views = snapshot.host, {view.spec.name: view for view in snapshot.workloads}
    found = []
    for decision in target.decisions:
        cpus = target.settings[decision.workload].cpus
        domains = domains_of(host.topology, views[decision.workload], cpus)
        chosen = with_bandwidth(host, decision.chosen, domains)
        found.append(decision if chosen is decision.chosen else replace(decision, chosen=chosen))
    return tuple(found)


def _how_lras_fare(snapshot: Snapshot, target: TargetState) -> Lras:
    """Those that are there: one that does not run can neither suffer nor wait for anything."""
    there = {view.spec.name for view in present(snapshot)}
    decisions = [d for d in target.decisions if d.workload in there]
    good = Health.HEALTHY, Health.OVERPROVISIONED
    well = all(d.verdict.health in good and d.action is Action.HOLD for d in decisions)
    crowd = target.memory.crowd if isinstance(target.memory, PerphMemory) else None
    caches = crowd.caches.values() if crowd is not None else ()
    calm = all(state.loosened is None and state.tightened is None for state in caches)
    return Lras(there=bool(decisions), well=well, calm=calm)
