"""Pauses and restores on request: perphd restores workloads and leaves them alone."""

from __future__ import annotations

import asyncio

from perphd.agent.announcer import Announcer
from perphd.agent.modes import Modes
from perphd.agent.pauses import Pauses
from perphd.agent.planned import PlannedSettings
from perphd.agent.protections import Protections
from perphd.agent.workload_list import WorkloadList
from perphd.domain.control import Actor, Pause
from perphd.domain.event import EventKind
from perphd.isolation.executor import Executor
from perphd.isolation.restore_report import RestoreReport


class PauseControl:
    """Restores original values on request, and leaves the workloads alone afterwards.

    ``lock``: held during a round, and by operations that must not overlap one.
    """

    def __init__(
        self,
        *,
        lock: asyncio.Lock,
        workloads: WorkloadList,
        modes: Modes,
        pauses: Pauses,
        executor: Executor,
        protections: Protections,
        planned: PlannedSettings,
        announcer: Announcer,
    ) -> None:
        self._lock, self._workloads, self._modes, self._pauses = lock, workloads, modes, pauses
        self._executor, self._protections, self._planned = executor, protections, planned
        self._announcer = announcer

    def follow(self) -> None:
        """Announce pauses that began or ended automatically, and plan again."""
        for text in self._pauses.look():
            self._planned.discard()
            self._announcer.tell(EventKind.PAUSE, text)

    async def pause(
        self, workload: str | None, for_s: float | None, reason: str, by: Actor | None = None
    ) -> tuple[Pause, RestoreReport]:
        """See ``Agent.pause``."""
        names = None if workload is None else self._workloads.denoted(workload)
        # Rounds continue while the pause is being stored.
        pause = await self._pauses.begin(workload or "", for_s, reason, str(by or "perphd"))
        async with self._lock:
            report = await self._executor.restore(names)
            if names is None:
                self._protections.forget_all()
            for name in names or ():
                self._protections.forget(name)
            self._planned.discard()
        text = f"{workload or 'all workloads'}: paused{f' ({reason})' if reason else ''}; {report}"
        self._announcer.tell(EventKind.PAUSE, text, workload or "", by)
        return pause, report

    async def resume(self, workload: str | None, by: Actor | None = None) -> tuple[Pause, ...]:
        """See ``Agent.resume``."""
        if workload is not None:
            self._workloads.denoted(workload)
        ended = await self._pauses.end(workload)
        self._executor.forget_conflicts()
        self._planned.discard()
        for pause in ended:
            text = f"{pause.workload or 'all workloads'}: resumed"
            self._announcer.tell(EventKind.PAUSE, text, pause.workload, by)
        return ended

    async def restore(self, by: Actor | None = None, ignore_lock: bool = False) -> RestoreReport:
        """See ``Agent.restore``."""
        async with self._lock:
            self._modes.end_trial("perphctl restore", by)
            self._modes.halt()
            report = await self._executor.restore(ignore_lock=ignore_lock)
            self._protections.forget_all()
            self._planned.discard()
        self._announcer.tell(EventKind.RESTORE, f"{report}; all workloads: observe", by=by)
        return report
