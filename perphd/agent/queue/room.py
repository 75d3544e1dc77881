"""What the batch queue asks of the agent that it serves."""

from __future__ import annotations

from perphd.agent.modes import Modes
from perphd.agent.state import State
from perphd.agent.workload_registry import WorkloadRegistry
from perphd.domain.control import Actor
from perphd.domain.event import EventKind
from perphd.domain.workload import Mode, WorkloadSpec


class QueueRoom:
    """Jobs come onto the list of workloads and leave it."""

    def __init__(self, state: State, modes: Modes, registry: WorkloadRegistry) -> None:
        self._state, self._modes, self._registry = state, modes, registry

    async def add(self, spec: WorkloadSpec) -> None:
        """Look after a job's control group as batch."""
        why_not = await self._registry.add_job(spec)
        text = f"{spec.name} is not looked after as a workload of its own: {why_not}" if why_not else None
        self.problem(f"queue:{spec.name}", text)

    async def let_go(self, name: str) -> None:
        """Give back what was set on a job's group."""
        self.problem(f"queue:{name}", None)
        await self._registry.let_job_go(name)

    def enforced(self, name: str) -> bool:
        """True if settings of this workload are written."""
        spec = self._state.jobs.get(name)
        return spec is not None and self._modes.of(spec) is Mode.ENFORCE

    def tell(self, text: str, workload: str = "", by: Actor | None = None) -> None:
        """Announce an event."""
        self._state.tell(EventKind.JOB, text, workload, by)

    def problem(self, key: str, text: str | None) -> None:
        """State, or clear, a condition that an operator should read."""
        self._state.parts.records.problem(key, text, self._state.now_s)
