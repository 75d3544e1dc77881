"""A workload's reservation: ``reserved_memory``, else its control group's own limit, unless perphd set that limit."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from posixpath import basename
from typing import Any, Final

from perphd.domain.allocation import KEEP, NO_LIMIT
from perphd.domain.errors import KernelError, ParseError
from perphd.domain.reading import Unavailable
from perphd.host.cgroup.group import Cgroup
from perphd.host.cgroup.knobs import decode
from perphd.host.fs import KernelFs, read_text
from perphd.sizing.recommendation import Reservation
from perphd.sizing.shaper import Resource

NONE_SET: Final = Unavailable("none set")
SETTINGS: Final = {
    Resource.CPU: ("cpu_max_cores",),
    Resource.MEMORY: ("memory_max_bytes", "memory_high_bytes"),
}
"""Fields of ``Settings`` that act as reservations, by resource. The first field that is set counts."""


def reserved(
    fs: KernelFs,
    group: Cgroup | None,
    least_memory_bytes: int,
    own: AbstractSet[str],
    resource: Resource,
    declared_bytes: int = 0,
) -> Reservation:
    """The reservation of one resource.

    ``own``: fields of ``Settings`` set by perphd; ``group`` None: a simulated host; ``declared_bytes``:
    ``reserved_memory`` of the configuration, 0 if absent.
    """
    least = float(least_memory_bytes) if resource is Resource.MEMORY else 0.0
    if declared_bytes and resource is Resource.MEMORY:
        return Reservation(float(declared_bytes), "reserved_memory", least)
    if group is None:
        return Reservation(Unavailable("unknown: not read from a simulated host"), "", least)
    for setting in SETTINGS[resource]:
        if setting in own:
            continue
        amount, source = _own_limit(fs, group, setting)
        if source:
            return Reservation(amount, source, least)
    return Reservation(NONE_SET, "", least)


def _own_limit(fs: KernelFs, group: Cgroup, setting: str) -> tuple[float, str]:
    """The limit, and the name of the kernel's file that holds it; the name is empty if no limit can be read."""
    knob = group.knob(setting)
    if isinstance(knob, str):
        return 0.0, ""
    try:
        texts = {basename(path): read_text(fs, path).strip() for path in knob.paths}
        value: Any = decode(setting, knob.version, texts)
    except (KernelError, ParseError):
        return 0.0, ""
    return (0.0, "") if value in (KEEP, NO_LIMIT) else (float(value), basename(knob.paths[0]))
