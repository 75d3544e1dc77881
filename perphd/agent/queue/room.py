"""The agent's operations for the batch queue."""

from __future__ import annotations

from dataclasses import replace

from perphd.agent.modes import Modes
from perphd.agent.state import State
from perphd.agent.wanted import wanted_settings
from perphd.agent.workload_registry import WorkloadRegistry
from perphd.domain.control import Actor
from perphd.domain.event import EventKind
from perphd.domain.plan import ChangeSet
from perphd.domain.workload import Mode, WorkloadSpec


class QueueRoom:
    """Adds running jobs to the list of workloads, and removes them."""

    def __init__(self, state: State, modes: Modes, registry: WorkloadRegistry) -> None:
        self._state, self._modes, self._registry = state, modes, registry

    async def add(self, spec: WorkloadSpec) -> None:
        """Manage a job's control group as batch. On return, the settings of other batch are in force on this
        group.
        """
        why_not = await self._registry.add_job(spec)
        text = f"{spec.name} is not managed as a workload of its own: {why_not}" if why_not else None
        self.problem(f"queue:{spec.name}", text)
        if not why_not:
            async with self._state.lock:
                await self._hold(spec.name)

    async def _hold(self, name: str) -> None:
        """Write the settings of a new job, and nothing else.

        If they cannot be written, the next round retries, and reports a failure.
        """
        state, target = self._state, self._state.target
        if target is None or name not in state.specs:
            return
        if target.newcomer.is_untouched() and state.bands.division is None:
            return
        with_it = replace(target, settings={**target.settings, name: target.newcomer})
        now_s = state.time_s(state.now_s)
        specs = state.all_specs()
        plan = state.parts.executor.plan(wanted_settings(state, self._modes, with_it), specs, now_s)
        own = ChangeSet(tuple(write for write in plan.writes if write.workload == name))
        state.planned = None
        if own and (await state.parts.executor.apply(own)).ok:
            state.parts.records.change(now_s, own, "written")

    async def let_go(self, name: str) -> None:
        """Restore the settings of a job's group."""
        self.problem(f"queue:{name}", None)
        await self._registry.let_job_go(name)

    def enforced(self, name: str) -> bool:
        """True if perphd writes settings of this workload."""
        spec = self._state.jobs.get(name)
        return spec is not None and self._modes.of(spec) is Mode.ENFORCE

    def tell(self, text: str, workload: str = "", by: Actor | None = None) -> None:
        """Announce an event."""
        self._state.tell(EventKind.JOB, text, workload, by)

    def problem(self, key: str, text: str | None) -> None:
        """Set or clear a condition that an operator should know."""
        self._state.parts.records.problem(key, text, self._state.now_s)
