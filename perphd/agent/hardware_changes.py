"""Reacts to changes in the host's hardware: CPU hotplug, and the mount of resctrl."""

from __future__ import annotations

from perphd.agent.enforceable import EnforceableKnobs
from perphd.agent.hardware import HostHardware
from perphd.agent.planned import PlannedSettings
from perphd.agent.protections import Protections
from perphd.agent.records import Records
from perphd.agent.snapshots import PolicyState
from perphd.domain.event import Event, EventKind
from perphd.isolation.executor import Executor


class HardwareChanges:
    """Discards what a hardware change makes invalid."""

    def __init__(
        self,
        *,
        hardware: HostHardware,
        policy_state: PolicyState,
        protections: Protections,
        enforceable: EnforceableKnobs,
        planned: PlannedSettings,
        executor: Executor,
        records: Records,
    ) -> None:
        self._hardware, self._policy_state, self._protections = hardware, policy_state, protections
        self._enforceable, self._planned = enforceable, planned
        self._executor, self._records = executor, records

    def follow_processors(self, now_s: float) -> None:
        """After CPU hotplug, discard earlier decisions, which refer to stale core numbers.

        Until the policy has decided again, no CPUs are restricted. Cache ways, bandwidth and memory do not depend on
        core numbers and stay in force. Values that the kernel refused before are retried.
        """
        before = self._hardware.topology.online
        if not self._hardware.follow_processors():
            return
        text = f"online CPUs are now {self._hardware.topology.online}, not {before}: earlier decisions are discarded"
        self._policy_state.discard()
        self._planned.discard()
        self._protections.without_cpus(now_s)
        self._enforceable.clear()
        self._executor.forget_conflicts()
        self._records.event(Event(now_s, EventKind.HOST, text))

    def follow_mount(self, now_s: float) -> None:
        """Detect whether resctrl was mounted, unmounted or remounted, or whether another program changed its groups.

        In the latter case, perphd plans again, and the LRAs' protections settle again, because the samples do not
        reflect perphd's settings.
        """
        if self._executor.follow_mount(now_s):
            self._hardware.read_bounds()
            self._enforceable.clear()
            self._planned.discard()
        elif self._executor.groups_disturbed():
            self._planned.discard()
            self._protections.caches_disturbed(now_s)
