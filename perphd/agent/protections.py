"""Keeps the settings in force for each LRA, with their age."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from perphd.admission.inference.inferer import untouched
from perphd.agent.enforceable import EnforceableKnobs
from perphd.agent.hardware import HostHardware
from perphd.agent.modes import Modes
from perphd.agent.round_clock import RoundClock
from perphd.agent.running_config import RunningConfig
from perphd.agent.workload_list import WorkloadList
from perphd.domain.allocation import KEEP, UNTOUCHED, Allocation, Settings
from perphd.domain.policy import TargetState
from perphd.domain.sample import Quality, Sample, lies_after, with_flag
from perphd.domain.workload import Mode, WorkloadSpec
from perphd.isolation.executor import Executor

_CPU_KNOBS = frozenset({"cpus", "cpu_weight"})
"""Knobs of batch that implement the CPU part of every LRA's protection. Both are in force, or neither is."""
_CACHE_KNOBS = frozenset({"llc_masks", "mba_pct"})
CALM_TIMES = 3.0
"""Reciprocal of the greatest share of the time that may be spent settling after groups (re)appear."""


@dataclass(slots=True)
class Protection:
    """The settings in force for an LRA, and the time since which they are in force.

    ``disturbed_s``: time at which it last started to settle again because (re)appeared groups got their
    settings.
    """

    allocation: Allocation
    since_s: float
    disturbed_s: float = -math.inf


class Protections:
    """The protection of each LRA, derived from what could be written."""

    def __init__(
        self,
        *,
        config: RunningConfig,
        clock: RoundClock,
        workloads: WorkloadList,
        modes: Modes,
        hardware: HostHardware,
        executor: Executor,
        enforceable: EnforceableKnobs,
    ) -> None:
        self._config, self._clock, self._workloads, self._modes = config, clock, workloads, modes
        self._hardware, self._executor, self._enforceable = hardware, executor, enforceable
        self._protections: dict[str, Protection] = {}

    def of(self, name: str) -> Protection | None:
        """The protection of this LRA."""
        return self._protections.get(name)

    def allocations(self) -> list[Allocation]:
        """The settings in force for all protected LRAs."""
        return [protection.allocation for protection in self._protections.values()]

    def forget(self, name: str) -> None:
        """Forget a protection that has ended."""
        self._protections.pop(name, None)

    def forget_all(self) -> None:
        """Forget all protections, because the original values were restored."""
        self._protections.clear()

    def flagged(self, sample: Sample) -> Sample:
        """The sample, flagged if the latest settings are still taking effect."""
        protection = self._protections.get(sample.workload)
        if protection is None:
            return sample
        settled_s = protection.since_s + self._config.now.policy.settle_s
        if lies_after(sample, settled_s, min(self._config.now.daemon.period_s, sample.interval_s)):
            return sample
        return with_flag(sample, Quality.SETTLING)

    def yielded(self) -> dict[str, set[str]]:
        """Names of the knobs that perphd has yielded to other programs, by workload.

        perphd does not rely on these knobs, even where it could write them.
        """
        found: dict[str, set[str]] = {}
        for conflict in self._executor.conflicts():
            if conflict.yielded:
                found.setdefault(conflict.workload, set()).add(conflict.knob)
        return found

    def caches_disturbed(self, now_s: float) -> None:
        """Let the protections of caches and bandwidth settle again, because another program has changed them."""
        for protection in self._protections.values():
            if protection.allocation.llc_ways or protection.allocation.mbw_pct < 100:
                protection.since_s = self._clock.time_s(now_s)

    def without_cpus(self, now_s: float) -> None:
        """Forget the CPU settings in force; keep those of caches, bandwidth and memory."""
        free = untouched(len(self._hardware.topology.usable_cores) or 1)
        when_s = self._clock.time_s(now_s)
        for name, protection in list(self._protections.items()):
            kept = replace(protection.allocation, cpu=free.cpu)
            if kept == free:
                del self._protections[name]
            else:
                self._protections[name] = Protection(kept, when_s)

    def note(self, target: TargetState, now_s: float, changed: bool, again: bool = False) -> None:
        """Record what is now in force for each LRA: its decision's choice, if the LRA and some batch are enforced.

        If a part of the choice (CPUs, ways, bandwidth) is blocked on some batch, that part keeps the value in force.

        ``again``: True if the changes only concern groups that (re)appeared.
        """
        batch_enforced = any(
            spec.gives_way and self._modes.of(spec) is Mode.ENFORCE for spec in self._workloads.specs.values()
        )
        when_s = self._clock.time_s(now_s)
        blocked = {
            name: frozenset(knobs)
            for name, spec in self._workloads.specs.items()
            if (knobs := self._executor.blocked(name)) and self._gives_way(spec)
        }
        cpu_blocked = any(_CPU_KNOBS & knobs for knobs in blocked.values())
        nothing = untouched(len(self._hardware.topology.usable_cores) or 1)
        for decision in target.decisions:
            spec = self._workloads.specs.get(decision.workload)
            if spec is None:
                continue
            before = self._protections.get(spec.name)
            # an LRA can have exclusive cores even without batch
            protects = batch_enforced or decision.chosen.cpu.own_cores is not None
            enforced = protects and self._modes.of(spec) is Mode.ENFORCE
            allocation = decision.chosen if enforced else nothing
            if enforced:
                allocation = self._really(allocation, target, blocked)
                own_blocked = "cpus" in self._executor.blocked(spec.name)
                if cpu_blocked or (allocation.cpu.exclusive and own_blocked):
                    # Batch is not confined as planned: its previous CPU settings are still in force.
                    allocation = replace(
                        allocation, cpu=nothing.cpu if before is None else before.allocation.cpu
                    )
            if allocation.own_ways and "llc_masks" in self._executor.blocked(spec.name):
                allocation = replace(allocation, own_ways=0)
            if before is None and allocation == nothing:
                continue
            if before is None or before.allocation != allocation:
                self._protections[spec.name] = Protection(allocation, when_s)
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
            found = self._executor.in_force(name)
            if "llc_masks" in knobs and wanted.llc_masks is not KEEP:
                ways = self._hardware.actuators.llc_ways
                chosen = replace(chosen, llc_ways=min(chosen.llc_ways, _ways_left(wanted, found, ways)))
            if "mba_pct" in knobs and wanted.mba_pct is not KEEP:
                chosen = replace(chosen, mbw_pct=max(chosen.mbw_pct, _throttle(wanted, found)))
        return chosen

    @property
    def _calm_s(self) -> float:
        """Seconds during which settings for groups that (re)appear restart the evaluation at most once."""
        policy = self._config.now.policy
        return CALM_TIMES * (policy.settle_s + policy.evaluate_ticks * self._config.now.daemon.period_s)

    def _gives_way(self, spec: WorkloadSpec) -> bool:
        """True for batch in mode enforce on which at least one knob of CPU protection can be set."""
        settable = self._enforceable.knobs(spec.name) & _CPU_KNOBS
        return spec.gives_way and self._modes.of(spec) is Mode.ENFORCE and bool(settable)


def _ways_left(wanted: Settings, found: Settings, ways: int) -> int:
    """Minimum number of ways outside this batch's mask, among the domains where that mask has ways that it should
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
