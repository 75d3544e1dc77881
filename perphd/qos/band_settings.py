"""Settings of the kernel that follow from a workload's declared band, beside those of the policy.

    gold            memory.min = reserved memory; where the kernel lacks it, memory.low
    silver          memory.low = reserved memory; batch: a CPU weight for its min_cores
    copper          the idle CPU class, the lowest I/O weight, and memory.high = 80 % of the host

Only a band that the operator declared counts. These settings do not narrow the CPUs or cache of any workload, which
``qos.division`` does, and take nothing from a workload of another band. A protection that is already in force is
raised, never lowered. The shaper keeps control of memory that it may lend. Copper with a guarantee (``min_cores``,
``max_starvation_s``) keeps the weight that the policy gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from perphd.domain.allocation import DEFAULT_WEIGHT, IDLE, KEEP, Settings
from perphd.domain.workload import WorkloadSpec
from perphd.qos.bands import MEANINGS, MEMORY_LIMIT_RATIO, Aspect, Choice, QosBand, Size, chosen

FILES: Final[Mapping[str, str]] = {
    "memory_min_bytes": "memory.min",
    "memory_low_bytes": "memory.low",
    "memory_high_bytes": "memory.high",
    "io_weight": "io.weight",
}
"""Setting -> its mechanism in ``bands.MEANINGS``."""
_USED: Final = (Aspect.MEMORY_PROTECTION, Aspect.MEMORY_CEILING, Aspect.IO_SHARE)
NOT_SHAPED: Final = "no"
MOST_WEIGHT: Final = 10_000
"""The kernel's greatest CPU weight."""


def choices(band: QosBand, knobs: frozenset[str]) -> tuple[Choice, ...]:
    """The mechanisms used here for memory and the I/O share. ``knobs``: settings that this host has."""
    present = {file for setting, file in FILES.items() if setting in knobs}
    found = chosen(band, present)
    return tuple(each for each in found if each.aspect in _USED)


def reserves_memory(spec: WorkloadSpec) -> bool:
    """True if the workload's band protects memory for it. Memory that it may lend is the shaper's instead."""
    return (
        spec.band in (QosBand.GOLD, QosBand.SILVER)
        and spec.reserved_memory_bytes > 0
        and spec.shape == NOT_SHAPED
    )


def copper_ceiling(host_memory_bytes: int) -> int:
    """``memory.high`` of copper on a host with this much memory."""
    return int(MEMORY_LIMIT_RATIO * host_memory_bytes)


def with_band(
    spec: WorkloadSpec,
    wanted: Settings,
    knobs: frozenset[str],
    host_memory_bytes: int = 0,
    *,
    guaranteed: bool = True,
) -> Settings:
    """``wanted`` with the settings of the workload's band; unchanged if it declares none.

    Without any mechanism for a declared protection, the last mechanism is requested, so that the status reports why it
    is not in force. ``host_memory_bytes``: 0 if unknown. ``guaranteed``: False if the host cannot hold its
    ``memory.min`` in addition to those of others.
    """
    if spec.band is None:
        return wanted
    band = QosBand(spec.band)
    for choice in choices(band, knobs if guaranteed else knobs - {"memory_min_bytes"}):
        mechanism = choice.mechanism
        if choice.aspect is Aspect.IO_SHARE:
            if band is QosBand.COPPER and mechanism is not None and wanted.io_weight is KEEP:
                assert isinstance(mechanism.value, int)
                wanted = replace(wanted, io_weight=mechanism.value)
        elif choice.aspect is Aspect.MEMORY_CEILING:
            if mechanism is not None and host_memory_bytes:
                wanted = _limited(wanted, copper_ceiling(host_memory_bytes))
        elif reserves_memory(spec):
            used = mechanism or MEANINGS[band][choice.aspect][-1]
            assert used.value is Size.RESERVED_MEMORY
            wanted = _protected(wanted, used.knob, spec.reserved_memory_bytes)
    if "cpu_weight" in knobs and wanted.cpu_weight is KEEP:
        if band is QosBand.COPPER and not _has_floor(spec):
            wanted = replace(wanted, cpu_weight=IDLE)
        elif band is QosBand.SILVER and spec.guaranteed_cores > 1.0:
            wanted = replace(wanted, cpu_weight=weight_for(spec.guaranteed_cores))
    return wanted


def weight_for(cpus: float) -> int:
    """CPU weight for this number of guaranteed CPUs: the default weight per CPU, for at least one CPU."""
    return min(MOST_WEIGHT, max(DEFAULT_WEIGHT, round(DEFAULT_WEIGHT * cpus)))


def _has_floor(spec: WorkloadSpec) -> bool:
    return spec.min_cores is not None or spec.max_starvation_s is not None


def _limited(wanted: Settings, most_bytes: int) -> Settings:
    had = wanted.memory_high_bytes
    return replace(wanted, memory_high_bytes=min(had, most_bytes) if isinstance(had, int) else most_bytes)


def _protected(wanted: Settings, file: str, least_bytes: int) -> Settings:
    if file == FILES["memory_min_bytes"]:
        had = wanted.memory_min_bytes
        return replace(wanted, memory_min_bytes=least_bytes if had is KEEP else max(had, least_bytes))
    had = wanted.memory_low_bytes
    return replace(wanted, memory_low_bytes=least_bytes if had is KEEP else max(had, least_bytes))
