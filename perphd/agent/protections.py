"""Settings in force for each LRA with their age, and the knobs that can be set on each workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from perphd.admission.inferer import untouched
from perphd.agent.modes import Modes
from perphd.agent.state import Enforceable, Protection, State
from perphd.domain.allocation import KEEP, UNTOUCHED, Allocation, Settings
from perphd.domain.policy import TargetState
from perphd.domain.sample import Quality, Sample, lies_after, with_flag
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.actuators import Actuators

_CPU_KNOBS = frozenset({"cpus", "cpu_weight"})
"""What of batch makes up the CPU part of every LRA's protection: it is in force as a whole or not at all."""
_CACHE_KNOBS = frozenset({"llc_masks", "mba_pct"})
CALM_TIMES = 3.0
"""Upper bound on the share of time spent settling after groups (re)appear: 1 in this number."""
ENFORCEABLE_S = 60.0
"""Time between two looks at what can be enforced on a workload; its cgroup's (re)appearance causes another."""


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
            knobs, missing = self._state.parts.executor.enforceable(spec, now_s)
            self._look_at_bounds(bool(knobs & {"llc_masks", "mba_pct"}), now_s)
            # All are looked at when they are first seen, and then in turns, so that no later tick pays for all.
            early_s = len(self._state.enforceable) % ENFORCEABLE_S if known is None else 0.0
            known = Enforceable(knobs, missing, now_s - early_s, present)
            self._state.enforceable[spec.name] = known
        # Settings left to somebody else cannot be relied on, even if they could be written.
        conflicts = self._state.parts.executor.conflicts()
        return known.knobs.difference(c.knob for c in conflicts if c.workload == spec.name and c.yielded)

    def _look_at_bounds(self, settable: bool, now_s: float) -> None:
        """What resctrl offers: looked at again now and then."""
        if now_s - self._bounds_s >= ENFORCEABLE_S:
            self._bounds_s = now_s
            found = self._state.parts.actuators()
            if found != Actuators() or not settable:  # what cannot be read for a moment is not gone
                self._state.actuators = found

    def look(self, now_s: float) -> bool:
        """Follow a resctrl that was mounted, unmounted or mounted otherwise. True if it was.

        Where somebody else has changed what protects an LRA, its sample says nothing of what perphd has set.
        """
        if not self._state.parts.executor.follow_mount(now_s):
            if self._state.parts.executor.groups_disturbed():
                self._disturbed(now_s)
            return False
        self._state.actuators = self._state.parts.actuators()
        self._state.enforceable.clear()
        self._state.planned = None
        return True

    def _disturbed(self, now_s: float) -> None:
        self._state.planned = None
        for protection in self._state.protections.values():
            if protection.allocation.llc_ways or protection.allocation.mbw_pct < 100:
                protection.since_s = self._state.time_s(now_s)

    def without_cpus(self, now_s: float) -> None:
        """Forget what is in force on CPUs; keep what is in force on caches, bandwidth and memory."""
        free = untouched(len(self._state.topology.usable_cores) or 1)
        when_s = self._state.time_s(now_s)
        for name, protection in list(self._state.protections.items()):
            kept = replace(protection.allocation, cpu=free.cpu)
            if kept == free:
                del self._state.protections[name]
            else:
                self._state.protections[name] = Protection(kept, when_s)

    def note(self, target: TargetState, now_s: float, changed: bool, again: bool = False) -> None:
        """Remember what is now in force for each LRA: its decision's choice, if it and some batch are enforced.

        Where a part of it is blocked on some batch (CPUs, ways, bandwidth), what is in force takes the place of that
        part, and of no other.
        ``again``: what changed was set on groups that (re)appeared, and on nobody else.
        """
        batch_enforced = any(
            spec.kind is Kind.BATCH and self._modes.of(spec) is Mode.ENFORCE
            for spec in self._state.specs.values()
        )
        when_s = self._state.time_s(now_s)
        gives_way = [spec.name for spec in self._state.specs.values() if self._gives_way(spec)]
        blocked = {name: frozenset(self._state.parts.executor.blocked(name)) for name in gives_way}
        cpu_blocked = any(_CPU_KNOBS & knobs for knobs in blocked.values())
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
            if enforced:
                allocation = self._really(allocation, target, blocked)
                own_blocked = "cpus" in self._state.parts.executor.blocked(spec.name)
                if cpu_blocked or (allocation.cpu.exclusive and own_blocked):
                    # Not confined as it was to be: what was in force for the CPUs still is.
                    allocation = replace(
                        allocation, cpu=nothing.cpu if before is None else before.allocation.cpu
                    )
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
                # and goes forever, and is set each time, must not keep everybody from ever being judged.
                before.since_s = when_s
                if again:
                    before.disturbed_s = when_s

    def _really(
        self, chosen: Allocation, target: TargetState, blocked: Mapping[str, frozenset[str]]
    ) -> Allocation:
        """The choice with the ways and the bandwidth that batch really leaves, where its knobs are blocked."""
        for name, knobs in blocked.items():
            if knobs.isdisjoint(_CACHE_KNOBS):
                continue
            wanted = target.settings.get(name, UNTOUCHED)
            found = self._state.parts.executor.in_force(name)
            if "llc_masks" in knobs and wanted.llc_masks is not KEEP:
                ways = self._state.actuators.llc_ways
                chosen = replace(chosen, llc_ways=min(chosen.llc_ways, _ways_left(wanted, found, ways)))
            if "mba_pct" in knobs and wanted.mba_pct is not KEEP:
                chosen = replace(chosen, mbw_pct=max(chosen.mbw_pct, _throttle(wanted, found)))
        return chosen

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


def _ways_left(wanted: Settings, found: Settings, ways: int) -> int:
    """How many ways this batch leaves in every domain where it is to leave some; all, where it has what it is to."""
    asked = {} if wanted.llc_masks is KEEP else dict(wanted.llc_masks)
    if found.llc_masks is KEEP:
        return 0
    there = dict(found.llc_masks)
    left = [
        ways - there[domain].bit_count()
        for domain, mask in asked.items()
        if domain in there and there[domain] & ~mask
    ]
    return max(0, min(left, default=ways))


def _throttle(wanted: Settings, found: Settings) -> int:
    """The bandwidth (per cent) that this batch has where it is to have less; 0, where it has what it is to."""
    asked = {} if wanted.mba_pct is KEEP else dict(wanted.mba_pct)
    if found.mba_pct is KEEP:
        return 100
    there = dict(found.mba_pct)
    more = [there[domain] for domain, pct in asked.items() if domain in there and there[domain] > pct]
    return min(100, max(more, default=0))
