"""Keeps the modes, observe or enforce: of all workloads, individual ones, and those found for a declaration."""

from __future__ import annotations

from perphd.agent.announcer import Announcer
from perphd.agent.pauses import Pauses
from perphd.agent.planned import PlannedSettings
from perphd.agent.trials import Trials
from perphd.agent.workload_list import WorkloadList
from perphd.domain.control import Actor, Pause
from perphd.domain.event import EventKind
from perphd.domain.workload import Mode, WorkloadSpec
from perphd.isolation.executor import Executor
from perphd.trial.record import End


class Modes:
    """The modes in force. ``general``: the mode of workloads without their own."""

    def __init__(
        self,
        general: Mode,
        *,
        workloads: WorkloadList,
        pauses: Pauses,
        trials: Trials,
        executor: Executor,
        planned: PlannedSettings,
        announcer: Announcer,
    ) -> None:
        self._workloads, self._pauses, self._trials = workloads, pauses, trials
        self._executor, self._planned, self._announcer = executor, planned, announcer
        self.general = general
        self._own: dict[str, Mode] = {}
        self._halted = False  # after a restore: overrides the configured modes of individual workloads

    def of(self, spec: WorkloadSpec) -> Mode:
        """The mode in force for a workload.

        The first of these that applies: observe while the workload is paused; the running trial's mode, unless the
        workload's own mode is observe; the mode set at run time; observe after a restore; the workload's own mode; the
        general mode.
        """
        if self._pauses.any and self.pause_of(spec) is not None:
            return Mode.OBSERVE
        own = self.own(spec)
        wanted = self._trials.mode
        if wanted is not None and own is not Mode.OBSERVE:
            return wanted
        return own if own is not None else self.general

    def own(self, spec: WorkloadSpec) -> Mode | None:
        """The mode set or configured for this workload alone; None: the general mode applies."""
        own = None
        if self._own:
            own = self._own.get(spec.name)
            if own is None and (declaration := self._workloads.declaration_of(spec.name)) is not None:
                own = self._own.get(declaration)
        if own is None:
            own = Mode.OBSERVE if self._halted else spec.mode
        return own

    def pause_of(self, spec: WorkloadSpec) -> Pause | None:
        """The pause that applies to a workload."""
        return self._pauses.of(spec.name, self._workloads.declaration_of(spec.name))

    def set(self, mode: Mode, workload: str | None, by: Actor | None = None) -> None:
        """See ``Agent.set_mode``."""
        if workload is not None:
            self._workloads.denoted(workload)
        self.end_trial(f"the mode of {workload or 'all workloads'} was set to {mode} by hand", by)
        if workload is None:
            self.begin(mode)
        else:
            if workload in self._workloads.declared:
                self.forget_declaration(workload)
            self._own[workload] = mode
        self._executor.forget_conflicts()
        who = workload if workload is not None else "all workloads"
        self._announcer.tell(EventKind.MODE, f"{who}: {mode}", workload or "", by)

    def end_trial(self, why: str, by: Actor | None = None) -> None:
        """End a running trial, because its remainder would be another experiment."""
        ended = self._trials.end(End.CHANGED, why, "" if by is None else str(by))
        if ended is not None:
            self._planned.discard()
            self._announcer.tell(
                EventKind.TRIAL, f"trial {ended.plan.trial} ended ({End.CHANGED}): {why}", by=by
            )

    def begin(self, mode: Mode) -> None:
        """Set this mode for all workloads, and clear the modes of individual workloads."""
        self.general = mode
        self._own.clear()
        self._halted = False

    def halt(self) -> None:
        """Observe all workloads, whatever their configured modes, until a mode is set for them."""
        self.begin(Mode.OBSERVE)
        self._halted = True

    def forget(self, name: str) -> None:
        """Forget the mode set for this workload."""
        self._own.pop(name, None)

    def forget_declaration(self, declaration: str) -> None:
        """Forget the modes set for this declaration and the workloads found for it."""
        others = self._workloads.specs.keys() - set(self._workloads.found_for(declaration))
        for name in [one for one in self._own if one == declaration or one.startswith(f"{declaration}.")]:
            if name not in others:
                del self._own[name]
