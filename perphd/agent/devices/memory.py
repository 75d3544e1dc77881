"""Measures contention for memory bandwidth for the device backoff.

Its sources are resctrl's monitors by last-level cache, and the processor's stall counters.

A domain is busy if the total traffic of all workloads approaches the bandwidth that the operator states,
otherwise the domain's maximum so far. An LRA waits if its cycles stall on memory. Without that counter, an LRA
waits if it needs clearly more cycles per instruction than at its best. If neither is known, no LRA waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from perphd.agent.devices.backoff import DeviceUse
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.reading import available
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.qos.contention import Restriction

SATURATED: Final = 0.85
"""Share of its best traffic at which a domain is busy: memory queueing begins well below full bandwidth."""
BEST_FADES: Final = 0.999
"""Ratio by which the greatest traffic seen fades per sample, because the mix of work changes within a day."""
LEAST_STALL_RATIO: Final = 0.3
"""Share of its cycles stalled on memory from which an LRA waits."""
LEAST_SLOWDOWN: Final = 1.2
"""Ratio of an LRA's cycles per instruction to their lowest value from which the LRA starts to wait for memory."""
CALM_SLOWDOWN: Final = 1.1
"""The same ratio, below which a waiting LRA no longer waits."""
CPI_FADES: Final = 1.0005
"""Ratio by which the lowest cycles per instruction seen rise per sample."""
LEAST_BEST_BYTES_S: Final = 1e9
"""Traffic in bytes/s. A domain that never moved more than this is never busy."""


class ContendedMemory:
    """The host's memory domains. Devices are ids of last-level caches; the ceiling is the greatest MBA
    step that does not exceed the allowed traffic.

    ``levels_pct``: steps of MBA in %, ascending; empty if MBA cannot be set. ``capacity_bytes_s``: the host's memory
    bandwidth; 0 if unknown.
    """

    kind = "memory"

    def __init__(self, levels_pct: Sequence[int], capacity_bytes_s: float = 0.0) -> None:
        self._levels, self._capacity = tuple(levels_pct), capacity_bytes_s
        self._best: dict[str, float] = {}
        self._least_cpi: dict[str, float] = {}
        self._waiting: set[str] = set()

    def look(
        self, now_s: float, seconds: float, specs: Sequence[WorkloadSpec], samples: Mapping[str, Sample]
    ) -> Mapping[str, DeviceUse]:
        """See ``WatchedDevices``."""
        moved: dict[str, dict[str, float]] = {}
        waiting: set[str] = set()
        for spec in specs:
            sample = samples[spec.name]
            for use in sample.domains:
                if available(use.mbw_bytes_per_s):
                    moved.setdefault(str(use.domain), {})[spec.name] = use.mbw_bytes_per_s
            if spec.kind is Kind.LRA and self._waits(sample):
                waiting.add(spec.name)
        self._waiting = waiting
        names = {spec.name for spec in specs}
        self._least_cpi = {name: cpi for name, cpi in self._least_cpi.items() if name in names}
        return {
            domain: DeviceUse(self._busy_ratio(domain, sum(rates.values()), len(moved)), rates, waiting)
            for domain, rates in moved.items()
        }

    def with_ceiling(self, device: str, restriction: Restriction, wanted: Settings) -> Settings:
        """See ``WatchedDevices``."""
        if not self._levels or not device.isdecimal():
            return wanted
        domain = int(device)
        allowed = [level for level in self._levels if level <= 100.0 * restriction.limit_ratio]
        level = max(allowed, default=self._levels[0])
        steps = {} if wanted.mba_pct is KEEP else dict(wanted.mba_pct)
        steps[domain] = min(level, steps.get(domain, 100))
        return replace(wanted, mba_pct=tuple(sorted(steps.items())))

    def _busy_ratio(self, domain: str, moved_bytes_s: float, domains: int) -> float:
        """Utilisation of a domain, 0 to 1.

        It reaches 1 at ``SATURATED`` of the stated capacity, or of the domain's greatest traffic if none is stated.
        """
        best = max(moved_bytes_s, BEST_FADES * self._best.get(domain, 0.0))
        self._best[domain] = best
        if self._capacity:
            best = self._capacity / domains
        return min(1.0, moved_bytes_s / (SATURATED * best)) if best >= LEAST_BEST_BYTES_S else 0.0

    def _waits(self, sample: Sample) -> bool:
        if available(sample.memory_stall_ratio):
            return sample.memory_stall_ratio >= LEAST_STALL_RATIO
        if not available(sample.cpi) or sample.cpi <= 0.0:
            return False
        least = min(sample.cpi, CPI_FADES * self._least_cpi.get(sample.workload, sample.cpi))
        self._least_cpi[sample.workload] = least
        return sample.cpi >= (CALM_SLOWDOWN if sample.workload in self._waiting else LEAST_SLOWDOWN) * least
