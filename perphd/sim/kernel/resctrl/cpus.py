"""``cpus`` and ``cpus_list``: every CPU belongs to one control group, and within it to at most one monitor group."""

from __future__ import annotations

import errno

from perphd.sim.kernel.formats import parse_list
from perphd.sim.kernel.resctrl.groups import Group, Kind, Registry
from perphd.sim.kernel.resctrl.numbers import parse_cpu_mask, text_of
from perphd.sim.kernel.resctrl.status import CommandStatus
from perphd.sim.kernel.vfs import refuse


def parse(data: bytes, limit: int, status: CommandStatus, *, as_list: bool) -> int:
    """The written mask.

    OSError: EINVAL for other text; for CPUs beyond ``limit``, ERANGE in a list and EOVERFLOW in a mask.
    """
    text = text_of(data)
    try:
        return parse_list(text, limit).mask if as_list else parse_cpu_mask(text, limit)
    except OSError:
        status.say("Bad CPU list/mask")
        raise


def assign(
    group: Group,
    new: int,
    *,
    online: int,
    registry: Registry,
    status: CommandStatus,
) -> None:
    """Give these CPUs to the group. CPUs that it loses go to its parent.

    OSError: EINVAL for offline CPUs, for CPUs that a monitor group's parent lacks, or if the root would lose
    some.

    Neither this nor ``parse`` clears the status: messages of refused writes accumulate.
    """
    if new & ~online:
        status.say("Can only assign online CPUs")
        raise refuse(errno.EINVAL)
    if group.kind is Kind.MONITOR:
        _assign_monitor(group, new, status)
    else:
        _assign_control(group, new, registry, status)


def _assign_monitor(group: Group, new: int, status: CommandStatus) -> None:
    parent = group.parent
    if parent is None or new & ~parent.cpus:
        status.say("Can only add CPUs to mongroup that belong to parent")
        raise refuse(errno.EINVAL)
    for sibling in parent.monitors:
        if sibling is not group:
            sibling.cpus &= ~new
    group.cpus = new


def _assign_control(group: Group, new: int, registry: Registry, status: CommandStatus) -> None:
    root = registry.root
    dropped = group.cpus & ~new
    if dropped and group is root:
        status.say("Can't drop CPUs from default group")
        raise refuse(errno.EINVAL)
    root.cpus |= dropped
    taken = new & ~group.cpus
    for other in registry.controls:
        if other is group or not other.cpus & taken:
            continue
        other.cpus &= ~taken
        for monitor in other.monitors:
            monitor.cpus &= other.cpus
    group.cpus = new
    for monitor in group.monitors:
        monitor.cpus = 0
