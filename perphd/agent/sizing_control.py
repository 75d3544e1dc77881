"""Runs the resource shaper and the searches for memory limits: their steps in each round, and requests of operators."""

from __future__ import annotations

from perphd.agent.announcer import Announcer
from perphd.agent.fitting import Fitting
from perphd.agent.jobs import Jobs
from perphd.agent.modes import Modes
from perphd.agent.shaping import Shaping
from perphd.agent.snapshots import Snapshots
from perphd.agent.workload_list import WorkloadList, unknown_workload
from perphd.domain.control import Actor
from perphd.domain.event import EventKind
from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.workload import Mode
from perphd.isolation.executor import Executor
from perphd.sizing.memory_fit import FitView
from perphd.sizing.shaper_view import ShaperView
from perphd.sizing.shaping_state import ShapingStep


class SizingControl:
    """Runs the shaper and the searches, and announces what they do."""

    def __init__(
        self,
        *,
        workloads: WorkloadList,
        modes: Modes,
        snapshots: Snapshots,
        shaping: Shaping,
        fitting: Fitting,
        jobs: Jobs | None,
        executor: Executor,
        announcer: Announcer,
    ) -> None:
        self._workloads, self._modes, self._snapshots = workloads, modes, snapshots
        self._shaping, self._fitting, self._jobs = shaping, fitting, jobs
        self._executor, self._announcer = executor, announcer

    # -- steps of a round -------------------------------------------------------------------------------

    def look(self, snapshot: Snapshot, target: TargetState) -> ShapingStep | None:
        """Run memory fits and the shaper for this round, and announce their notes."""
        for name, text in self._fitting.look(snapshot, target, self._executor.in_force):
            self._announcer.tell(EventKind.SIZING, text, name)
        self._executor.let_exact(self._fitting.names)
        if self._shaping.is_off:
            return None
        step = self._shaping.look(snapshot, target, self._fitting.sized)
        for name, text in step.notes:
            self._announcer.tell(EventKind.SIZING, text, name)
        return step

    def end(self, step: ShapingStep | None) -> None:
        """End the workloads that the shaper selected, after all settings are in force."""
        if step is None or not step.ends:
            return
        if self._jobs is not None:
            self._jobs.by_force([name for name, _ in step.ends])
        for name, text in self._shaping.end(self._why_not_end):
            self._announcer.tell(EventKind.PROBLEM, text, name)

    def _why_not_end(self, name: str) -> str:
        """The reason not to end a workload, whose mode may have changed while limits were written; empty if none."""
        spec = self._workloads.specs.get(name)
        is_enforced = spec is not None and self._modes.of(spec) is Mode.ENFORCE
        return "" if is_enforced else "it is only observed now"

    # -- requests of operators --------------------------------------------------------------------------

    def shaper(self) -> ShaperView:
        """See ``Agent.shaper``."""
        return self._shaping.view()

    def memory_fits(self) -> tuple[FitView, ...]:
        """See ``Agent.memory_fits``."""
        return self._fitting.views()

    def start_fit(self, name: str, samples: int, step: float, by: Actor | None = None) -> None:
        """See ``Agent.start_memory_fit``."""
        view = next((each for each in self._snapshots.now().workloads if each.spec.name == name), None)
        if view is None:
            raise unknown_workload(name, self._workloads.specs)
        self._fitting.start(view, samples, step)
        self._announcer.tell(EventKind.SIZING, f"{name}: memory fit started", name, by)

    def apply_fit(self, name: str, by: Actor | None = None) -> int:
        """See ``Agent.apply_memory_fit``."""
        limit = self._fitting.apply(name)
        self._announcer.tell(EventKind.SIZING, f"{name}: memory fit, {limit >> 20} MiB applied", name, by)
        return limit

    def stop_fit(self, name: str, by: Actor | None = None) -> None:
        """See ``Agent.stop_memory_fit``."""
        self._fitting.stop(name)
        self._announcer.tell(EventKind.SIZING, f"{name}: memory fit stopped", name, by)
