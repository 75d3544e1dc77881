"""Creates, removes and moves groups."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from perphd.sim.kernel.resctrl.faults import Operation
from perphd.sim.kernel.resctrl.groupfiles import fill_group
from perphd.sim.kernel.resctrl.groups import Group, Kind
from perphd.sim.kernel.vfs import Directory, refuse

if TYPE_CHECKING:
    from perphd.sim.kernel.resctrl.tree import ResctrlTree


class Lifecycle:
    """mkdir, rmdir and rename of a tree. Only rename clears the status; messages of the others accumulate."""

    def __init__(self, tree: ResctrlTree) -> None:
        self._tree = tree

    def make_control(self, name: str) -> None:
        """Make a control group: mkdir in the root.

        OSError: ENOSPC if no CLOSID, part of the cache or RMID is free; EBUSY if free RMIDs are still in limbo;
        EINVAL if the name contains a newline.
        """
        tree = self._tree
        tree.arrive(Operation.MKDIR, name)
        if "\n" in name:
            raise refuse(errno.EINVAL)
        group = Group(name, Kind.CONTROL, Directory(strict_open=True))
        self._take_both(group)
        problem = tree.controls.initialise(group.closid)
        if problem is not None:
            tree.status.say(problem)
            tree.closids.give_back(group.closid)
            self._free_rmid(group)
            raise refuse(errno.ENOSPC)
        tree.registry.controls.append(group)
        self._settle(group, tree.directory)

    def make_monitor(self, parent: Group, place: Directory, name: str) -> None:
        """Make a monitor group: mkdir in a control group's ``mon_groups``.

        OSError: ENOSPC if no RMID is free, EBUSY if free RMIDs are still in limbo, EINVAL if the name
        contains a newline, EPERM if it is mon_groups.
        """
        tree = self._tree
        group = Group(name, Kind.MONITOR, Directory(strict_open=True), parent)
        tree.arrive(Operation.MKDIR, group.path)
        if "\n" in name:
            raise refuse(errno.EINVAL)
        if name == "mon_groups":
            raise refuse(errno.EPERM)
        self._take_rmid(group)
        parent.monitors.append(group)
        self._settle(group, place)

    def _settle(self, group: Group, place: Directory) -> None:
        group.directory.on_rmdir = lambda: self._remove(group)
        if self._tree.machine.kernel.moves_monitor_groups:
            group.directory.on_rename = lambda to, new: self._rename(group, to, new)
        fill_group(self._tree, group)
        place.children[group.name] = group.directory

    def _remove(self, group: Group) -> None:
        tree = self._tree
        tree.arrive(Operation.RMDIR, group.path)
        if group.parent is not None:
            tree.membership.hand_over(group, group.parent)
            self._free_rmid(group)
            group.parent.monitors.remove(group)
            self._mon_groups(group.parent).remove(group.name)
            return
        tree.membership.hand_over(group, tree.registry.root)
        tree.registry.root.cpus |= group.cpus
        tree.closids.give_back(group.closid)
        for member in group.family():
            self._free_rmid(member)
        tree.registry.controls.remove(group)
        tree.directory.remove(group.name)

    def remove_all(self) -> None:
        """Free the RMIDs of all groups except the root, at unmount."""
        for group in self._tree.registry.walk():
            if not group.is_root:
                self._free_rmid(group)

    def _rename(self, group: Group, to: Directory, new_name: str) -> None:
        tree = self._tree
        tree.status.clear()
        parent, heir = group.parent, tree.registry.with_monitors_in(to)
        problem: str | None = None
        if parent is None:
            problem = "Source must be a MON group"
        elif heir is None or new_name == "mon_groups":
            problem = "Destination must be a mon_groups subdirectory"
        elif group.cpus and heir is not parent:
            problem = "Cannot move a MON group that monitors CPUs"
        if problem is not None or parent is None or heir is None:
            tree.status.say(problem or "")
            raise refuse(errno.EPERM)
        del self._mon_groups(parent).children[group.name]
        parent.monitors.remove(group)
        group.name, group.parent, group.closid = new_name, heir, heir.closid
        heir.monitors.append(group)
        to.children[new_name] = group.directory
        tree.membership.hand_over(group, group)

    # -- identifiers ----------------------------------------------------------------------------------

    def _take_both(self, group: Group) -> None:
        if self._tree.machine.kernel.closid_first:
            self._take_closid(group)
            try:
                self._take_rmid(group)
            except OSError:
                self._tree.closids.give_back(group.closid)
                raise
            return
        self._take_rmid(group)
        try:
            self._take_closid(group)
        except OSError:
            self._free_rmid(group)
            raise

    def _take_closid(self, group: Group) -> None:
        closid = self._tree.closids.take()
        if closid is None:
            self._tree.status.say("Out of CLOSIDs")
            raise refuse(errno.ENOSPC)
        group.closid = closid

    def _take_rmid(self, group: Group) -> None:
        if self._tree.monitor is None:
            return
        try:
            group.rmid = self._tree.monitor.take_rmid(self._tree.now())
        except OSError:
            self._tree.status.say("Out of RMIDs")
            raise

    def _free_rmid(self, group: Group) -> None:
        if self._tree.monitor is not None:
            self._tree.monitor.free_rmid(group.rmid, self._tree.now())

    @staticmethod
    def _mon_groups(control: Group) -> Directory:
        place = control.directory.children["mon_groups"]
        if not isinstance(place, Directory):
            raise refuse(errno.ENOTDIR)
        return place
