"""Averages the use of the host by jobs and by everything else, over a few seconds (at first over one round), for
the planner.

The use of everything else is the host's use less that of the jobs. In some rounds it is unknown: a job has no sample
yet, or has ended since the previous round, so its use would count as that of everything else. The last known value then
applies for a short time, limited by the host's present use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from perphd.agent.queue.planning import PlannedUse
from perphd.batch.look import BANDWIDTH, CPU, DISK, INSTRUCTIONS, MEMORY
from perphd.domain.host_account import HostAccount
from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.sample import Quality, Sample

USE_S: Final = 5.0
"""Seconds over which use is averaged."""
STALE_S: Final = 60.0
"""Age in seconds after which the last known use of others is discarded."""
Sums: TypeAlias = dict[str, tuple[float, float]]
"""Sum of amount times seconds, and of seconds, by resource."""


class QueueUse:
    """Sums of the present interval, and averages that the planner has not fetched yet."""

    def __init__(self) -> None:
        self._uses: list[PlannedUse] = []
        self._since_s: float | None = None
        self._others: Sums = {}
        self._sums: dict[int, Sums] = {}
        self._numbers: frozenset[int] = frozenset()
        self._known: dict[str, tuple[float, float]] = {}
        self.measured = False
        """True once averages of the host's use exist."""

    def taken(self) -> list[PlannedUse]:
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
        """Add one round of the loop. ``workloads``: names of running jobs as workloads, by number."""
        if account is None:
            return
        names = set(workloads.values())
        jobs = {
            number: {
                CPU: sample.cpu_usage_cores,
                MEMORY: sample.memory_working_set_bytes,
                BANDWIDTH: sample.mbw_bytes_per_s,
                DISK: _disk_use(sample),
                INSTRUCTIONS: 1e6 * sample.mips if available(sample.mips) else NOT_MEASURED,
            }
            for number, name in workloads.items()
            if (sample := samples.get(name)) is not None
            and not sample.has(Quality.GONE, Quality.FIRST, Quality.RESTARTED)
        }
        for number, row in jobs.items():
            _add(self._sums.setdefault(number, {}), row, account.interval_s)
        whole: dict[str, Reading] = {CPU: account.cpu.capacity - account.cpu.idle}
        if available(account.memory_available_bytes):
            whole[MEMORY] = account.memory_total_bytes - account.memory_available_bytes  # type: ignore[operator]
        whole[DISK] = account.disk_bytes_per_s
        gone, self._numbers = bool(self._numbers - workloads.keys()), frozenset(workloads)
        others: dict[str, Reading] = {}
        for resource, used in whole.items():
            if available(used):
                seen = [row[resource] for row in jobs.values()]
                known = [each for each in seen if available(each)]
                exact = not gone and len(known) == len(workloads)
                others[resource] = self._of_others(now_s, resource, used - sum(known), exact)
        traffic = [each.mbw_bytes_per_s for name, each in samples.items() if name not in names]
        measured = [each for each in traffic if available(each)]
        if measured:
            others[BANDWIDTH] = sum(measured)
        _add(self._others, others, account.interval_s)
        self._since_s = now_s if self._since_s is None else self._since_s
        lasted_s = now_s - self._since_s
        if lasted_s < USE_S and (self.measured or not self._others):
            return
        means = {number: _means(each) for number, each in self._sums.items()}
        self._uses.append(PlannedUse(max(lasted_s, account.interval_s), _means(self._others), means))
        self.measured = True
        self._since_s, self._sums, self._others = now_s, {}, {}

    def _of_others(self, now_s: float, resource: str, most: float, exact: bool) -> float:
        """The use of others: ``most`` if it is exact, else the last known value, at most ``most``."""
        if exact:
            self._known[resource] = now_s, most
            return most
        at_s, known = self._known.get(resource, (-STALE_S, most))
        return min(most, known) if 0.0 <= now_s - at_s < STALE_S else most


def _disk_use(sample: Sample) -> Reading:
    """Bytes per second that a job reads and writes."""
    read, written = sample.read_bytes_per_s, sample.write_bytes_per_s
    return read + written if available(read) and available(written) else NOT_MEASURED


def _add(sums: Sums, row: Mapping[str, Reading], seconds: float) -> None:
    for resource, value in row.items():
        if available(value):
            amount, before_s = sums.get(resource, (0.0, 0.0))
            sums[resource] = amount + value * seconds, before_s + seconds


def _means(sums: Sums) -> dict[str, float]:
    return {resource: amount / seconds for resource, (amount, seconds) in sums.items() if seconds > 0}
