"""What jobs and everything else on the host use, averaged over a few seconds for the planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perphd.agent.queue_planning import Use
from perphd.domain.host_account import HostAccount
from perphd.domain.reading import NOT_MEASURED, available
from perphd.domain.sample import Quality, Sample

USE_S: Final = 5.0
"""Uses are averaged over this time."""


class QueueUse:
    """Sums of the present few seconds, and the averages that nobody has taken yet."""

    def __init__(self) -> None:
        self._uses: list[Use] = []
        self._since_s: float | None = None
        self._sums: dict[int, list[float]] = {}

    def taken(self) -> list[Use]:
        """The averages since the last call."""
        uses, self._uses = self._uses, []
        return uses

    def note(
        self,
        now_s: float,
        workloads: Mapping[int, str],
        samples: Mapping[str, Sample],
        account: HostAccount | None,
    ) -> None:
        """Add one round of the loop. ``workloads``: what running jobs are called, by number."""
        if account is None:
            return
        used = {number: samples[name] for number, name in workloads.items() if name in samples}
        jobs = {
            number: (sample.cpu_usage_cores, sample.memory_working_set_bytes)
            for number, sample in used.items()
            if not sample.has(Quality.GONE, Quality.FIRST, Quality.RESTARTED)
        }
        busy = account.cpu.capacity - account.cpu.idle
        memory_bytes = (
            NOT_MEASURED
            if not available(account.memory_available_bytes)
            else (
                account.memory_total_bytes - account.memory_available_bytes  # type: ignore[operator]
            )
        )
        seconds = account.interval_s
        rows = {0: (busy, memory_bytes), **jobs}
        for number, (cpus, held) in rows.items():
            sums = self._sums.setdefault(number, [0.0, 0.0, 0.0, 0.0])
            if available(cpus):
                sums[0], sums[1] = sums[0] + cpus * seconds, sums[1] + seconds
            if available(held):
                sums[2], sums[3] = sums[2] + held * seconds, sums[3] + seconds
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s < USE_S:
            return
        means = {
            number: (each[0] / each[1] if each[1] else None, each[2] / each[3] if each[3] else None)
            for number, each in self._sums.items()
        }
        host_cpus, host_memory = means.pop(0, (None, None))
        others_cpus = (
            None if host_cpus is None else host_cpus - sum(each[0] or 0.0 for each in means.values())
        )
        others_memory = (
            None if host_memory is None else host_memory - sum(each[1] or 0.0 for each in means.values())
        )
        self._uses.append(Use(now_s - self._since_s, others_cpus, others_memory, means))
        self._since_s, self._sums = now_s, {}
