"""Backs batch off from disks on which it keeps LRAs from their bandwidth (``perphd.qos.contention``).

For each disk, once a second: how busy it was, and what the LRAs moved on it. A disk is contended if it is busy while
the LRAs, which wait for I/O, move less than 0.7 of the most that they ever moved there. What the LRAs move is the
effective bandwidth that counts: a disk that batch keeps at its best serves nobody whom perphd protects.

In the mode enforce the culprits get ``io.max``, then a CPU ceiling, then stand still for a part of each four seconds.
In observe the daemon says what it would have done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.domain.allocation import KEEP, IoLimit, Settings
from perphd.domain.reading import Reading, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.disk_use import DiskCounters, disk_counters, group_bytes
from perphd.host.fs import KernelFs
from perphd.qos.bands import QosBand
from perphd.qos.contention import (
    Contender,
    DeviceContention,
    DeviceSample,
    Restriction,
    RestrictionRung,
    observed,
)

SAMPLE_S: Final = 1.0
LONGEST_S: Final = 10.0
"""Counters over a longer time than this tell nothing of now."""
DEMAND_FADES: Final = 0.98
"""A workload's demand is the most that it moved, forgotten by this ratio in every sample while nothing restricts it."""
LEAST_BYTES_S: Final = 1e6
"""An LRA that never moved more than this on a disk does not depend on it."""
LEAST_WAIT_PCT: Final = 10.0
"""An LRA suffers only if its tasks wait for I/O for at least this share of the time."""
LEAST_CPUS: Final = 0.05
CYCLE_S: Final = 4.0
"""Length of a freeze cycle."""


@dataclass(frozen=True, slots=True)
class BackoffRow:
    """One disk that is backed off from, and who is restricted how."""

    device: str
    round: int
    restrictions: tuple[Restriction, ...]


class DiskBackoff:
    """See the module."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._hierarchies = fs, hierarchies
        self._states: dict[str, DeviceContention] = {}
        self._disks: dict[str, DiskCounters] = {}
        self._groups: dict[str, dict[str, int]] = {}
        self._demands: dict[tuple[str, str], float] = {}
        self._cpus: dict[str, float] = {}
        self._effective: dict[str, float] = {}
        """Mean of the LRAs' bytes/s over about two samples: a single one of a shared disk may be twice as much."""
        self._read_s: float | None = None
        self._now_s = 0.0

    def step(
        self, now_s: float, specs: Sequence[WorkloadSpec], samples: Mapping[str, Sample]
    ) -> list[tuple[str, str]]:
        """Look at all disks if that is due. Pairs of a disk and what changed on it."""
        self._now_s = now_s
        last_s = self._read_s
        if last_s is not None and 0.0 <= now_s - last_s < 0.9 * SAMPLE_S:
            return []
        self._read_s = now_s
        disks_before, groups_before = self._disks, self._groups
        self._disks = disk_counters(self._fs)
        self._groups = {
            spec.name: group_bytes(self._fs, self._hierarchies, spec.cgroup)
            for spec in specs
            if not _is_fresh(samples.get(spec.name))
        }
        self._note_cpus(specs, samples)
        seconds = math.inf if last_s is None else now_s - last_s
        if not 0.0 < seconds <= LONGEST_S:
            return []
        told = []
        for device, now in self._disks.items():
            before = disks_before.get(device)
            if before is None:
                continue
            moved = {
                name: max(0, counts.get(device, 0) - groups_before[name].get(device, 0)) / seconds
                for name, counts in self._groups.items()
                if name in groups_before
            }
            busy = min(1.0, max(0.0, (now.busy_ms - before.busy_ms) / 1000.0 / seconds))
            reason = self._judge(device, busy, moved, specs, samples)
            if reason:
                told.append((device, reason))
        for device in self._states.keys() - self._disks.keys():
            del self._states[device]
        return told

    def rows(self) -> tuple[BackoffRow, ...]:
        """The disks that batch is backed off from now."""
        return tuple(
            BackoffRow(device, state.round, state.restrictions)
            for device, state in sorted(self._states.items())
            if state.restrictions
        )

    def over(self, name: str, wanted: Settings) -> Settings:
        """What is wanted for a batch workload, with its restrictions on contended disks."""
        for device, state in self._states.items():
            for each in state.restrictions:
                if each.name == name:
                    wanted = self._restricted(device, each, wanted)
        return wanted

    def _restricted(self, device: str, restriction: Restriction, wanted: Settings) -> Settings:
        if restriction.rung is RestrictionRung.HINT:
            return wanted
        limit = max(1, int(restriction.limit_bytes_s))
        limits = () if wanted.io_max is KEEP else wanted.io_max
        others = tuple(each for each in limits if each.device != device)
        own = next((each for each in limits if each.device == device), IoLimit(device))
        own = replace(own, read_bytes=_less(own.read_bytes, limit), write_bytes=_less(own.write_bytes, limit))
        wanted = replace(wanted, io_max=(*others, own))
        if restriction.rung is RestrictionRung.DEVICE_CEILING:
            return wanted
        ceiling = max(LEAST_CPUS, restriction.limit_ratio * self._cpus.get(restriction.name, 1.0))
        given = wanted.cpu_max_cores
        wanted = replace(wanted, cpu_max_cores=ceiling if given is KEEP else min(ceiling, given))
        stands = self._now_s % CYCLE_S >= restriction.limit_ratio * CYCLE_S
        if restriction.rung is RestrictionRung.FREEZE_CYCLE and stands:
            return replace(wanted, frozen=True)
        return wanted

    def _judge(
        self,
        device: str,
        busy: float,
        moved: Mapping[str, float],
        specs: Sequence[WorkloadSpec],
        samples: Mapping[str, Sample],
    ) -> str:
        state = self._states.get(device, DeviceContention())
        restricted = {each.name for each in state.restrictions}
        contenders, effective, waits = [], 0.0, False
        for spec in specs:
            rate = moved.get(spec.name)
            if rate is None:
                continue
            key = (device, spec.name)
            known = self._demands.get(key, 0.0)
            fades = 1.0 if spec.name in restricted or spec.kind is Kind.LRA else DEMAND_FADES
            demand = self._demands[key] = max(rate, fades * known)
            contenders.append(Contender(spec.name, _band(spec), demand))
            if spec.kind is Kind.LRA and demand >= LEAST_BYTES_S:
                effective += rate
                waits |= _waits(samples.get(spec.name))
        effective = self._effective[device] = 0.5 * (effective + self._effective.get(device, effective))
        suffers: Reading = busy if waits else 0.0
        step = observed(state, DeviceSample(self._now_s, suffers, effective), contenders)
        self._states[device] = step.state
        return step.reason

    def _note_cpus(self, specs: Sequence[WorkloadSpec], samples: Mapping[str, Sample]) -> None:
        """CPUs of unrestricted batch: what a CPU ceiling is a share of."""
        restricted = {each.name for state in self._states.values() for each in state.restrictions}
        for spec in specs:
            sample = samples.get(spec.name)
            if sample is not None and spec.name not in restricted and available(sample.cpu_usage_cores):
                self._cpus[spec.name] = sample.cpu_usage_cores
        names = {spec.name for spec in specs}
        self._cpus = {name: cpus for name, cpus in self._cpus.items() if name in names}
        self._demands = {key: value for key, value in self._demands.items() if key[1] in names}


def _band(spec: WorkloadSpec) -> QosBand:
    if spec.band is not None:
        return QosBand(spec.band)
    return QosBand.SILVER if spec.kind is Kind.LRA else QosBand.COPPER


def _waits(sample: Sample | None) -> bool:
    """True if the LRA's tasks wait for I/O, or if the kernel does not tell."""
    if sample is None:
        return False
    return not available(sample.io_some_pct) or sample.io_some_pct >= LEAST_WAIT_PCT


def _is_fresh(sample: Sample | None) -> bool:
    return sample is None or sample.has(Quality.GONE, Quality.FIRST, Quality.RESTARTED)


def _less(had: int | None, limit: int) -> int:
    return limit if had is None else min(had, limit)
