"""Retries the restore of removed workloads' settings until nothing is left."""

from __future__ import annotations

import asyncio

from perphd.agent.records import KEPT_LEFT, Records
from perphd.agent.workload_list import WorkloadList
from perphd.isolation.executor import Executor
from perphd.isolation.restore_report import RestoreReport

LEFT_S = 30.0
"""Seconds between two attempts to restore the remaining settings of a removed workload."""


class Leftovers:
    """Retries incomplete restores. ``lock``: held during a round, and by operations that must not overlap one."""

    def __init__(
        self, lock: asyncio.Lock, workloads: WorkloadList, executor: Executor, records: Records
    ) -> None:
        self._lock, self._workloads, self._executor, self._records = lock, workloads, executor, records
        self._left: dict[str, float] = {}

    async def give_back(self, now_s: float) -> None:
        """Retry the restore of removed workloads until nothing is left."""
        for name, tried_s in list(self._left.items()):
            if 0 <= now_s - tried_s < LEFT_S:
                continue
            async with self._lock:
                back = name in self._workloads.specs  # the loop manages the workload again
                report = RestoreReport() if back else await self._executor.restore((name,))
                self.note(name, report, now_s)

    def note(self, name: str, report: RestoreReport, now_s: float) -> None:
        """Note the result of a restore."""
        text = f"{name}: not everything was restored: {report}" if report.failed or report.foreign else None
        self._records.left_behind(f"left:{name}", text, now_s)
        self._left.pop(name, None)
        if text is not None:
            self._left[name] = now_s
            while len(self._left) > KEPT_LEFT:
                del self._left[next(iter(self._left))]
