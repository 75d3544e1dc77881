"""What is in force for each LRA and since when, and what can be set on whom."""

from __future__ import annotations

import math
from dataclasses import replace

from perphd.admission.inferer import untouched
from perphd.agent.modes import Modes
from perphd.agent.state import Enforceable, Protection, State
from perphd.domain.policy import TargetState
from perphd.domain.sample import Quality, Sample, lies_after, with_flag
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.actuators import Actuators

_SHARED_KNOBS = frozenset({"cpus", "cpu_weight", "llc_masks", "mba_pct"})
"""What of batch makes up every LRA's protection: if one of them is blocked, nobody has what was chosen for it."""
CALM_TIMES = 3.0
"""Of the time, one part in so many at most is spent on settling after groups that (re)appear."""
ENFORCEABLE_S = 60.0
"""What can be enforced on a workload is looked at anew so often, and when its cgroup (re)appears."""


class Protections:
    """Keeps ``State.protections`` and ``State.enforceable``."""

    def __init__(self, state: State, modes: Modes) -> None:
        self._state, self._modes = state, modes
        self._bounds_s = -math.inf

    def flagged(self, sample: Sample) -> Sample:
        """The sample, flagged if what was set last is still taking effect."""
        protection = self._state.protections.get(sample.workload)
        if protection is None:
            return sample
        settled_s = protection.since_s + self._state.config.policy.settle_s
        if lies_after(sample, settled_s, min(self._state.config.daemon.period_s, sample.interval_s)):
            return sample
        return with_flag(sample, Quality.SETTLING)

    def knobs(self, spec: WorkloadSpec, present: bool, now_s: float) -> frozenset[str]:
        """Names of what can be set on this workload: looked at now and then, and when it (re)appears."""
        known = self._state.enforceable.get(spec.name)
        if known is None or known.present != present or now_s - known.looked_s >= ENFORCEABLE_S:
            knobs, missing = self._state.parts.executor.enforceable(spec)
            self._look_at_bounds(bool(knobs & {"llc_masks", "mba_pct"}), now_s)
            # All are looked at when they are first seen, and then in turns, so that no later tick pays for all.
            early_s = len(self._state.enforceable) % ENFORCEABLE_S if known is None else 0.0
            known = Enforceable(knobs, missing, now_s - early_s, present)
            self._state.enforceable[spec.name] = known
        # What is left to somebody else cannot be counted on, however well it could be written.
        conflicts = self._state.parts.executor.conflicts()
        return known.knobs.difference(c.knob for c in conflicts if c.workload == spec.name and c.yielded)

    def _look_at_bounds(self, settable: bool, now_s: float) -> None:
        """What resctrl offers: looked at again now and then, and when it was mounted after the start."""
        mounted = settable and self._state.actuators == Actuators()
        if mounted or now_s - self._bounds_s >= ENFORCEABLE_S:
            self._bounds_s = now_s
            found = self._state.parts.actuators()
            if found != Actuators() or not settable:  # what cannot be read for a moment is not gone
                self._state.actuators = found

    def note(self, target: TargetState, now_s: float, changed: bool, again: bool = False) -> None:
        """Remember what is now in force for each LRA: its decision's choice, if it and some batch are enforced.

        ``again``: what changed was set on groups that (re)appeared, and on nobody else.
        """
        batch_enforced = any(
            spec.kind is Kind.BATCH and self._modes.of(spec) is Mode.ENFORCE
            for spec in self._state.specs.values()
        )
        when_s = self._state.time_s(now_s)
        if any(
            _SHARED_KNOBS.intersection(self._state.parts.executor.blocked(spec.name))
            for spec in self._state.specs.values()
            if self._gives_way(spec)
        ):
            return  # what was chosen is not what is in force: the policy goes on judging what is
        nothing = untouched(len(self._state.topology.usable_cores) or 1)
        for decision in target.decisions:
            spec = self._state.specs.get(decision.workload)
            if spec is None:
                continue
            before = self._state.protections.get(spec.name)
            # Cores of its own an LRA can have without any batch, too.
            protects = batch_enforced or decision.chosen.cpu.own_cores is not None
            enforced = protects and self._modes.of(spec) is Mode.ENFORCE
            allocation = decision.chosen if enforced else nothing
            if allocation.cpu.exclusive and "cpus" in self._state.parts.executor.blocked(spec.name):
                continue  # it could not be kept to its own cores: what was in force for it still is
            if allocation.own_ways and "llc_masks" in self._state.parts.executor.blocked(spec.name):
                allocation = replace(allocation, own_ways=0)
            if before is None and allocation == nothing:
                continue
            if before is None or before.allocation != allocation:
                self._state.protections[spec.name] = Protection(allocation, when_s)
                continue
            before.allocation = allocation  # the same, with what is known of its throttle by now
            if changed and not (again and when_s - before.disturbed_s < self._calm_s):
                # Another LRA's change moved batch as well: this one's surroundings changed too. But batch that comes
                # and goes for ever, and is set each time, must not keep everybody from ever being judged.
                before.since_s = when_s
                if again:
                    before.disturbed_s = when_s

    @property
    def _calm_s(self) -> float:
        """So long after groups that (re)appeared were set, others that do count for nothing."""
        policy = self._state.config.policy
        return CALM_TIMES * (policy.settle_s + policy.evaluate_ticks * self._state.config.daemon.period_s)

    def _gives_way(self, spec: WorkloadSpec) -> bool:
        """True for batch that the operator lets perphd set and of which something can be set."""
        known = self._state.enforceable.get(spec.name)
        settable = known is not None and known.knobs & {"cpus", "cpu_weight"}
        return spec.kind is Kind.BATCH and self._modes.of(spec) is Mode.ENFORCE and bool(settable)
