"""The agent's operations for the batch queue."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from perphd.agent.announcer import Announcer
from perphd.agent.bands import Bands
from perphd.agent.modes import Modes
from perphd.agent.planned import PlannedSettings
from perphd.agent.records import Records
from perphd.agent.round_clock import RoundClock
from perphd.agent.snapshots import PolicyState
from perphd.agent.wanted import WantedSettings
from perphd.agent.workload_list import WorkloadList
from perphd.agent.workload_registry import WorkloadRegistry
from perphd.domain.control import Actor
from perphd.domain.event import EventKind
from perphd.domain.plan import ChangeSet
from perphd.domain.workload import Mode, WorkloadSpec
from perphd.isolation.executor import Executor


class QueueRoom:
    """Adds running jobs to the list of workloads, and removes them.

    ``lock``: held during a round, and by operations that must not overlap one.
    """

    def __init__(
        self,
        *,
        lock: asyncio.Lock,
        clock: RoundClock,
        workloads: WorkloadList,
        registry: WorkloadRegistry,
        modes: Modes,
        bands: Bands,
        policy_state: PolicyState,
        wanted: WantedSettings,
        planned: PlannedSettings,
        executor: Executor,
        records: Records,
        announcer: Announcer,
    ) -> None:
        self._lock, self._clock, self._workloads, self._registry = lock, clock, workloads, registry
        self._modes, self._bands, self._policy_state = modes, bands, policy_state
        self._wanted, self._planned, self._executor = wanted, planned, executor
        self._records, self._announcer = records, announcer

    async def add(self, spec: WorkloadSpec) -> None:
        """Manage a job's control group as batch. On return, the settings of other batch are in force on this
        group.
        """
        why_not = await self._registry.add_job(spec)
        text = f"{spec.name} is not managed as a workload of its own: {why_not}" if why_not else None
        self.problem(f"queue:{spec.name}", text)
        if not why_not:
            async with self._lock:
                await self._hold(spec.name)

    async def _hold(self, name: str) -> None:
        """Write the settings of a new job, and nothing else.

        If they cannot be written, the next round retries, and reports a failure.
        """
        target = self._policy_state.target
        if target is None or name not in self._workloads.specs:
            return
        if target.newcomer.is_untouched() and self._bands.division is None:
            return
        with_it = replace(target, settings={**target.settings, name: target.newcomer})
        now_s = self._clock.time_s(self._clock.now_s)
        specs = self._workloads.all_specs()
        plan = self._executor.plan(self._wanted.by_workload(with_it), specs, now_s)
        own = ChangeSet(tuple(write for write in plan.writes if write.workload == name))
        self._planned.discard()
        if own and (await self._executor.apply(own)).ok:
            self._records.change(now_s, own, "written")

    async def let_go(self, name: str) -> None:
        """Restore the settings of a job's group."""
        self.problem(f"queue:{name}", None)
        await self._registry.let_job_go(name)

    def enforced(self, name: str) -> bool:
        """True if perphd writes settings of this workload."""
        spec = self._workloads.jobs.get(name)
        return spec is not None and self._modes.of(spec) is Mode.ENFORCE

    def tell(self, text: str, workload: str = "", by: Actor | None = None) -> None:
        """Announce an event."""
        self._announcer.tell(EventKind.JOB, text, workload, by)

    def problem(self, key: str, text: str | None) -> None:
        """Report a condition that an operator should know about, or clear it (``text`` None)."""
        self._records.problem(key, text, self._clock.now_s)
