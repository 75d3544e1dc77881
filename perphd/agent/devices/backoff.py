"""Backs batch off from devices on which it takes bandwidth that LRAs need (``perphd.qos.contention``).

Once a second, perphd measures how busy each watched disk, link and memory domain was, and how many bytes the
LRAs moved on it. A device is contended if it is busy, LRAs wait for it, and they move less than 0.7 of their
peak on it. Only the LRAs' bandwidth counts, because a device that is fully used by batch does not help them.

In enforce mode, an antagonist that reads hints is first asked to use less of the device. Antagonists then get
a ceiling on the device, then a CPU ceiling, and are finally frozen for part of every four seconds. In
observe mode the daemon reports what it would have done.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from perphd.domain.allocation import KEEP, Settings
from perphd.domain.contention import ContendedDevice, ContendedShare
from perphd.domain.reading import Reading, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, WorkloadSpec
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
"""Longest interval in seconds between two samples. Counters over a longer interval do not show the present use."""
DEMAND_FADES: Final = 0.98
"""Ratio by which the demand of unrestricted batch fades per sample. Demand is the greatest rate seen, in bytes/s."""
LEAST_BYTES_S: Final = 1e6
"""An LRA that never moved more bytes per second than this on a device does not depend on the device."""
LEAST_CPUS: Final = 0.05
"""Minimum of a CPU ceiling, in CPUs."""
CYCLE_S: Final = 4.0
"""Length of a freeze cycle in seconds."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device between two samples: its busy share, bytes/s by workload, and the LRAs that waited for it."""

    busy_ratio: Reading
    moved_bytes_s: Mapping[str, float]
    waiting: Collection[str]


class WatchedDevices(Protocol):
    """The devices of one kind: ``disk``, ``link`` or ``memory``."""

    @property
    def kind(self) -> str:
        """Prefix of device names."""

    def look(
        self, now_s: float, seconds: float, specs: Sequence[WorkloadSpec], samples: Mapping[str, Sample]
    ) -> Mapping[str, DeviceUse]:
        """Use of every device in the ``seconds`` since the previous call; empty at the first call."""

    def with_ceiling(self, device: str, restriction: Restriction, wanted: Settings) -> Settings:
        """``wanted`` with a ceiling for this device; a lower ceiling in ``wanted`` stays."""


@dataclass(frozen=True, slots=True)
class _Device:
    """A device: the kind of devices to which it belongs, and its name among them."""

    source: WatchedDevices
    name: str

    def __str__(self) -> str:
        return f"{self.source.kind} {self.name}"


class DeviceBackoff:
    """Backoff from all devices; see the module. ``sources``: the kinds of devices to watch."""

    def __init__(self, sources: Sequence[WatchedDevices]) -> None:
        self._sources = tuple(sources)
        self._states: dict[_Device, DeviceContention] = {}
        self._demands: dict[tuple[_Device, str], float] = {}
        self._cpus: dict[str, float] = {}
        self._effective: dict[_Device, float] = {}
        """Mean of the LRAs' bytes/s over about two samples; a single sample of a shared disk may be twice as high."""
        self._read_s: float | None = None
        self._now_s = 0.0

    def step(
        self, now_s: float, specs: Sequence[WorkloadSpec], samples: Mapping[str, Sample]
    ) -> list[tuple[str, str]]:
        """Sample all devices if a sample is due. Returns pairs of a device and its change."""
        self._now_s = now_s
        last_s = self._read_s
        if last_s is not None and 0.0 <= now_s - last_s < 0.9 * SAMPLE_S:
            return []
        self._read_s = now_s
        self._note_cpus(specs, samples)
        seconds = math.inf if last_s is None else now_s - last_s
        there = [spec for spec in specs if not _is_fresh(samples.get(spec.name))]
        told = []
        for source in self._sources:
            uses = source.look(now_s, seconds, there, samples)
            if not 0.0 < seconds <= LONGEST_S:
                continue
            for name, use in uses.items():
                device = _Device(source, name)
                if reason := self._judge(device, use, specs):
                    told.append((str(device), reason))
            for device in [each for each in self._states if each.source is source and each.name not in uses]:
                del self._states[device]
        return told

    def rows(self) -> tuple[ContendedDevice, ...]:
        """The devices from which batch is being backed off."""
        return tuple(
            ContendedDevice(
                device.source.kind,
                device.name,
                state.round,
                tuple(
                    ContendedShare(each.name, each.rung.value, each.limit_bytes_s)
                    for each in state.restrictions
                ),
            )
            for device, state in sorted(self._states.items(), key=lambda item: str(item[0]))
            if state.restrictions
        )

    def over(self, name: str, wanted: Settings) -> Settings:
        """Settings for a batch workload, with its restrictions on contended devices."""
        for device, state in self._states.items():
            for each in state.restrictions:
                if each.name == name:
                    wanted = self._restricted(device, each, wanted)
        return wanted

    def _restricted(self, device: _Device, restriction: Restriction, wanted: Settings) -> Settings:
        if restriction.rung is RestrictionRung.HINT:
            return wanted
        wanted = device.source.with_ceiling(device.name, restriction, wanted)
        if restriction.rung is RestrictionRung.DEVICE_CEILING:
            return wanted
        ceiling = max(LEAST_CPUS, restriction.limit_ratio * self._cpus.get(restriction.name, 1.0))
        given = wanted.cpu_max_cores
        wanted = replace(wanted, cpu_max_cores=ceiling if given is KEEP else min(ceiling, given))
        stands = self._now_s % CYCLE_S >= restriction.limit_ratio * CYCLE_S
        if restriction.rung is RestrictionRung.FREEZE_CYCLE and stands:
            return replace(wanted, frozen=True)
        return wanted

    def _judge(self, device: _Device, use: DeviceUse, specs: Sequence[WorkloadSpec]) -> str:
        state = self._states.get(device, DeviceContention())
        restricted = {each.name for each in state.restrictions}
        contenders, effective, waits = [], 0.0, False
        for spec in specs:
            rate = use.moved_bytes_s.get(spec.name)
            if rate is None:
                continue
            key = (device, spec.name)
            known = self._demands.get(key, 0.0)
            fades = 1.0 if spec.name in restricted or spec.kind is Kind.LRA else DEMAND_FADES
            demand = self._demands[key] = max(rate, fades * known)
            contenders.append(Contender(spec.name, _band(spec), demand, spec.takes_hints))
            if spec.kind is Kind.LRA and demand >= LEAST_BYTES_S:
                effective += rate
                waits |= spec.name in use.waiting
        effective = self._effective[device] = 0.5 * (effective + self._effective.get(device, effective))
        suffers: Reading = use.busy_ratio if waits else 0.0
        step = observed(state, DeviceSample(self._now_s, suffers, effective), contenders)
        self._states[device] = step.state
        return step.reason

    def _note_cpus(self, specs: Sequence[WorkloadSpec], samples: Mapping[str, Sample]) -> None:
        """Record the CPU use of unrestricted batch, to which CPU ceilings are relative."""
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


def _is_fresh(sample: Sample | None) -> bool:
    return sample is None or sample.has(Quality.GONE, Quality.FIRST, Quality.RESTARTED)
