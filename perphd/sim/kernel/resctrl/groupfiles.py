"""The files of a group."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel.resctrl import cpus, schemata
from perphd.sim.kernel.resctrl.groups import Group, Kind, Mode
from perphd.sim.kernel.resctrl.mondata import fill_mon_data
from perphd.sim.kernel.resctrl.numbers import format_cpu_mask, text_of
from perphd.sim.kernel.vfs import Directory, Reader, Writer, refuse

if TYPE_CHECKING:
    from perphd.sim.kernel.resctrl.tree import ResctrlTree

_OWN_DIRECTORY: Final = 0o755
FIXED_DIRECTORY: Final = 0o555


def fill_group(tree: ResctrlTree, group: Group) -> None:
    """Put all files of a group into its directory."""
    place, mode = group.directory, FIXED_DIRECTORY if group.is_root else _OWN_DIRECTORY
    place.mode = mode

    def add(name: str, read: Reader, write: Writer | None = None) -> None:
        tree.add_file(place, lambda: group.path, name, read, write)

    limit = tree.machine.cpus.mask.bit_length()
    add("cpus", lambda: format_cpu_mask(group.cpus, limit) + "\n", _cpus_writer(tree, group, as_list=False))
    add("cpus_list", lambda: f"{CpuSet(group.cpus)}\n", _cpus_writer(tree, group, as_list=True))
    add("tasks", lambda: _show_tasks(tree, group), _tasks_writer(tree, group))
    if group.kind is Kind.CONTROL:
        add(
            "schemata",
            lambda: schemata.show(tree.controls, group),
            lambda data: schemata.write(tree.controls, group, data, tree.status),
        )
        add("size", lambda: schemata.show_size(tree.controls, group))
        add("mode", lambda: group.mode.value + "\n", lambda data: _write_mode(tree, group, data))
        if "debug" in tree.options:
            add("ctrl_hw_id", lambda: f"{group.closid}\n")
    if tree.monitor is None:
        return
    if "debug" in tree.options:
        add("mon_hw_id", lambda: f"{group.rmid}\n")
    group.mon_data = _directory(place, "mon_data", mode)
    fill_mon_data(tree, tree.monitor, group, group.mon_data)
    if group.kind is Kind.CONTROL:
        monitors = _directory(place, "mon_groups", mode)
        monitors.on_mkdir = lambda name: tree.lifecycle.make_monitor(group, monitors, name)


def _directory(parent: Directory, name: str, mode: int) -> Directory:
    place = Directory(strict_open=True)
    place.mode = mode
    parent.children[name] = place
    return place


def _cpus_writer(tree: ResctrlTree, group: Group, *, as_list: bool) -> Writer:
    def write(data: bytes) -> None:
        limit = tree.machine.cpus.mask.bit_length()
        new = cpus.parse(data, limit, tree.status, as_list=as_list)
        cpus.assign(group, new, online=tree.online, registry=tree.registry, status=tree.status)

    return write


def _show_tasks(tree: ResctrlTree, group: Group) -> str:
    members = tree.membership.members(group, can_allocate=tree.machine.can_allocate)
    return "".join(f"{tid}\n" for tid in members)


def _tasks_writer(tree: ResctrlTree, group: Group) -> Callable[[bytes], None]:
    write = tree.membership.write_list if tree.machine.kernel.task_lists else tree.membership.write
    return lambda data: write(group, data)


def _write_mode(tree: ResctrlTree, group: Group, data: bytes) -> None:
    if not data.endswith(b"\n"):
        raise refuse(errno.EINVAL)
    tree.status.clear()
    wanted = text_of(data[:-1])
    if wanted == group.mode.value:
        return
    problem: str | None = None
    if wanted == Mode.SHAREABLE.value:
        group.mode = Mode.SHAREABLE
    elif wanted == Mode.EXCLUSIVE.value:
        problem = tree.controls.could_be_exclusive(group.closid)
        if problem is None:
            group.mode = Mode.EXCLUSIVE
    elif wanted == "pseudo-locksetup":
        problem = _why_not_pseudo_locked(tree, group)
    else:
        problem = "Unknown or unsupported mode"
    if problem is not None:
        tree.status.say(problem)
        raise refuse(errno.EINVAL)


def _why_not_pseudo_locked(tree: ResctrlTree, group: Group) -> str:
    if group.is_root:
        return "Cannot pseudo-lock default group"
    if "cdp" in tree.options or "cdpl2" in tree.options:
        return "CDP enabled"
    return "Pseudo-locking not supported"
