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
from perphd.domain.workload import Mode, WorkloadSpec
from perphd.host.actuators import Actuators

_CPU_KNOBS = frozenset({"cpus", "cpu_weight"})
"""Knobs of batch that implement the CPU part of every LRA's protection. Both are in force, or neither is."""
_CACHE_KNOBS = frozenset({"llc_masks", "mba_pct"})
CALM_TIMES = 3.0
"""Reciprocal of the greatest share of the time that may be spent settling after groups (re)appear."""
ENFORCEABLE_S = 60.0
"""Seconds between two checks of a workload's enforceable knobs. A (re)appearing cgroup is also checked at once."""


class Protections:
    """Keeps ``State.protections`` and ``State.enforceable``."""

    def __init__(self, state: State, modes: Modes) -> None:
        self._state, self._modes = state, modes
        self._bounds_s = -math.inf

    def flagged(self, sample: Sample) -> Sample:
        """The sample, flagged if the latest settings are still taking effect."""
        protection = self._state.protections.get(sample.workload)
        if protection is None:
            return sample
        settled_s = protection.since_s + self._state.config.policy.settle_s
        if lies_after(sample, settled_s, min(self._state.config.daemon.period_s, sample.interval_s)):
            return sample
        return with_flag(sample, Quality.SETTLING)

    def yielded(self) -> dict[str, set[str]]:
        """Names of the knobs that perphd has yielded to other programs, by workload.

        perphd does not rely on these knobs, even where it could write them.
        """
        found: dict[str, set[str]] = {}
        for conflict in self._state.parts.executor.conflicts():
            if conflict.yielded:
                found.setdefault(conflict.workload, set()).add(conflict.knob)
        return found

    def knobs(self, spec: WorkloadSpec, present: bool, now_s: float) -> frozenset[str]:
        """Names of the knobs that can be set on this workload; checked periodically, and when it (re)appears."""
        known = self._state.enforceable.get(spec.name)
        if known is None or known.present != present or now_s - known.looked_s >= ENFORCEABLE_S:
            knobs, missing = self._state.parts.executor.enforceable(spec, now_s)
            self._look_at_bounds(bool(knobs & {"llc_masks", "mba_pct"}), now_s)
            # Each workload is checked when first seen, and then at staggered times, so that no tick
            # checks all of them.
            early_s = len(self._state.enforceable) % ENFORCEABLE_S if known is None else 0.0
            known = Enforceable(knobs, missing, now_s - early_s, present)
            self._state.enforceable[spec.name] = known
        return known.knobs

    def _look_at_bounds(self, settable: bool, now_s: float) -> None:
        """Check the bounds of resctrl's controls from time to time."""
        if now_s - self._bounds_s >= ENFORCEABLE_S:
            self._bounds_s = now_s
            found = self._state.parts.actuators()
            if found != Actuators() or not settable:  # a temporary read failure does not mean that it is gone
                self._state.actuators = found

    def look(self, now_s: float) -> bool:
        """Detect whether resctrl was mounted, unmounted or remounted. Returns True if so.

        If another program has changed a protection of an LRA, the LRA's sample does not reflect perphd's
        settings.
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
        """Forget the CPU settings in force; keep those of caches, bandwidth and memory."""
        free = untouched(len(self._state.topology.usable_cores) or 1)
        when_s = self._state.time_s(now_s)
        for name, protection in list(self._state.protections.items()):
            kept = replace(protection.allocation, cpu=free.cpu)
            if kept == free:
                del self._state.protections[name]
            else:
                self._state.protections[name] = Protection(kept, when_s)

    def note(self, target: TargetState, now_s: float, changed: bool, again: bool = False) -> None:
        """Record what is now in force for each LRA: its decision's choice, if the LRA and some batch are enforced.

        If a part of the choice (CPUs, ways, bandwidth) is blocked on some batch, that part keeps the value in force.

        ``again``: True if the changes only concern groups that (re)appeared.
        """
        batch_enforced = any(
            spec.gives_way and self._modes.of(spec) is Mode.ENFORCE for spec in self._state.specs.values()
        )
        when_s = self._state.time_s(now_s)
        blocked = {
            name: frozenset(knobs)
            for name, spec in self._state.specs.items()
            if (knobs := self._state.parts.executor.blocked(name)) and self._gives_way(spec)
        }
        cpu_blocked = any(_CPU_KNOBS & knobs for knobs in blocked.values())
        nothing = untouched(len(self._state.topology.usable_cores) or 1)
        for decision in target.decisions:
            spec = self._state.specs.get(decision.workload)
            if spec is None:
                continue
            before = self._state.protections.get(spec.name)
            # an LRA can have exclusive cores even without batch
            protects = batch_enforced or decision.chosen.cpu.own_cores is not None
            enforced = protects and self._modes.of(spec) is Mode.ENFORCE
            allocation = decision.chosen if enforced else nothing
            if enforced:
                allocation = self._really(allocation, target, blocked)
                own_blocked = "cpus" in self._state.parts.executor.blocked(spec.name)
                if cpu_blocked or (allocation.cpu.exclusive and own_blocked):
                    # Batch is not confined as planned: its previous CPU settings are still in force.
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
            before.allocation = allocation  # unchanged, but with the measured bandwidth throttle
            if changed and not (again and when_s - before.disturbed_s < self._calm_s):
                # Another LRA's change affected batch as well, so this one's conditions have changed. But
                # batch that restarts repeatedly, and gets its settings each time, must not prevent evaluation
                # forever.
                before.since_s = when_s
                if again:
                    before.disturbed_s = when_s

    def _really(
        self, chosen: Allocation, target: TargetState, blocked: Mapping[str, frozenset[str]]
    ) -> Allocation:
        """``chosen``, corrected by the ways and bandwidth that batch keeps because its knobs are blocked."""
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
        """Seconds during which settings for groups that (re)appear restart the evaluation at most once."""
        policy = self._state.config.policy
        return CALM_TIMES * (policy.settle_s + policy.evaluate_ticks * self._state.config.daemon.period_s)

    def _gives_way(self, spec: WorkloadSpec) -> bool:
        """True for batch that perphd may enforce and of which at least one knob can be set."""
        known = self._state.enforceable.get(spec.name)
        settable = known is not None and known.knobs & {"cpus", "cpu_weight"}
        return spec.gives_way and self._modes.of(spec) is Mode.ENFORCE and bool(settable)


def _ways_left(wanted: Settings, found: Settings, ways: int) -> int:
    """Least number of ways outside this batch's mask, among the domains where that mask has ways that it should
    not have; all ways if no mask has such ways, 0 if perphd has set none of its masks.
    """
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
    """Greatest bandwidth, in %, that this batch has in a domain where it should have less.

    0 if it has too much in none, 100 if perphd has not throttled it.
    """
    asked = {} if wanted.mba_pct is KEEP else dict(wanted.mba_pct)
    if found.mba_pct is KEEP:
        return 100
    there = dict(found.mba_pct)
    more = [there[domain] for domain, pct in asked.items() if domain in there and there[domain] > pct]
    return min(100, max(more, default=0))
