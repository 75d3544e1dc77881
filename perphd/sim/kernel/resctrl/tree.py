"""The simulated resctrl file system: mounting, groups, files, CPUs that come and go.

Bound to a ``Directory`` of the simulated kernel (the mount point). Behaviour, errno and texts are those captured
from Linux 6.1 and 6.12; what the capture leaves open follows Documentation/arch/x86/resctrl.rst.
Not modelled: pseudo-locking (refused, as on machines without it) and moving pages of cache.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel.resctrl import cpus, schemata
from perphd.sim.kernel.resctrl.controls import Controls
from perphd.sim.kernel.resctrl.faults import FaultPlan, Operation
from perphd.sim.kernel.resctrl.groups import Closids, Group, Kind, Mode
from perphd.sim.kernel.resctrl.hardware import RdtMachine
from perphd.sim.kernel.resctrl.info import fill_info
from perphd.sim.kernel.resctrl.mondata import fill_mon_data
from perphd.sim.kernel.resctrl.monitor import Monitor
from perphd.sim.kernel.resctrl.numbers import format_cpu_mask, text_of
from perphd.sim.kernel.resctrl.status import CommandStatus
from perphd.sim.kernel.resctrl.tasks import Membership, TaskSource
from perphd.sim.kernel.vfs import Directory, Reader, Writer, refuse

MOUNT_POINT: Final = "/sys/fs/resctrl"
_GROUP_DIRECTORY, _FIXED_DIRECTORY = 0o755, 0o555
_OPTIONS: Final = ("cdp", "cdpl2", "mba_MBps", "debug")
"""In the order in which /proc/mounts shows them."""


class ResctrlTree:
    """resctrl of one machine, not mounted at first.

    Args:
        machine: what the hardware offers.
        mount_point: the empty directory ``/sys/fs/resctrl``.
        tasks: the threads of the machine.
        clock: seconds that go forward; by default time stands still until ``now_s`` is set.
    """

    def __init__(
        self,
        machine: RdtMachine,
        mount_point: Directory,
        tasks: TaskSource,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.machine, self.directory, self.tasks = machine, mount_point, tasks
        self.now_s = 0.0
        self._clock = clock
        self.status = CommandStatus()
        self.faults = FaultPlan()
        self.online = machine.cpus.mask
        self.options: tuple[str, ...] = ()
        self.mounted = False
        self.membership = Membership(tasks, self.status)
        hardware = machine.monitoring
        self.monitor = Monitor(hardware, machine.kernel, self.status, self.online) if hardware else None
        self.controls = Controls(machine, (), self.online)
        self._closids = Closids(self.controls.num_closids)
        mount_point.mode, mount_point.strict_open = _FIXED_DIRECTORY, True
        self.root = Group("", Kind.CONTROL, mount_point)
        self.root.cpus = self.online
        self._groups: list[Group] = [self.root]

    # -- mounting -----------------------------------------------------------------------------------------

    def mount(self, options: str | None = None) -> None:
        """Mount with ``-o options`` (None: as the machine is usually mounted); OSError: EINVAL, EBUSY, ENODEV."""
        wanted = (self.machine.options if options is None else options).split(",")
        chosen = tuple(option for option in _OPTIONS if option in wanted)
        if any(option and not self._knows(option) for option in wanted):
            raise refuse(errno.EINVAL)
        if self.mounted:
            raise refuse(errno.EBUSY)
        if not self.machine.can_allocate and self.monitor is None:
            raise refuse(errno.ENODEV)
        for option, cache in (("cdp", "L3"), ("cdpl2", "L2")):
            if option in chosen and not any(c.name == cache and c.cdp for c in self.machine.caches):
                raise refuse(errno.EINVAL)
        self.options = chosen
        self.controls = Controls(self.machine, chosen, self.online)
        self.controls.modes = self._modes
        self._closids = Closids(self.controls.num_closids)
        self.mounted = True
        self._fill_group(self.root)
        fill_info(self)
        self.directory.on_mkdir = self._mkdir_control if self.machine.can_allocate else None
        self.status.clear()

    def umount(self) -> None:
        """All groups go, all values are the default again; OSError: EINVAL if it is not mounted.

        The kernel answers EBUSY while a file is open or a shell stands in the tree: whoever holds the open files
        (the FUSE mount) must refuse that itself.
        """
        if not self.mounted:
            raise refuse(errno.EINVAL)
        self.membership.forget()
        for group in self.groups():
            if not group.is_root:
                self._free_rmid(group)
        self.root.cpus, self.root.mode, self.root.mon_data = self.online, Mode.SHAREABLE, None
        self.root.monitors.clear()
        self._groups = [self.root]
        for name in list(self.directory.children):
            self.directory.remove(name)
        self.directory.on_mkdir = None
        self.controls = Controls(self.machine, (), self.online)
        self.options, self.mounted = (), False

    def mount_line(self, mount_point: str = MOUNT_POINT) -> str:
        """The line of /proc/mounts; empty while it is not mounted."""
        if not self.mounted:
            return ""
        shown = ",".join(("rw", "relatime", *self.options))
        return f"resctrl {mount_point} resctrl {shown} 0 0\n"

    def _knows(self, option: str) -> bool:
        if option == "mba_MBps":
            return self.machine.supports_mba_mbps
        return option in _OPTIONS and (option != "debug" or self.machine.kernel.debug_option)

    # -- what others ask ------------------------------------------------------------------------------------

    def now(self) -> float:
        """The machine's time."""
        return self._clock() if self._clock is not None else self.now_s

    def groups(self) -> Iterator[Group]:
        """Every group, control groups before their monitor groups; the root first."""
        for control in list(self._groups):
            yield control
            yield from list(control.monitors)

    def group(self, path: str) -> Group:
        """By its path below the mount point (``""`` is the root); KeyError."""
        wanted = path.strip("/")
        for group in self.groups():
            if group.path == wanted:
                return group
        raise KeyError(path)

    def ids_of(self, tid: int, cpu: int) -> tuple[int, int]:
        """(CLOSID, RMID) that a thread runs with on a CPU (resctrl.rst, "Resource allocation rules")."""
        ids = self.membership.ids(tid)
        return ids if ids != (0, 0) else self.cpu_ids(cpu)

    def cpu_ids(self, cpu: int) -> tuple[int, int]:
        """(CLOSID, RMID) that a CPU gives to threads of the root group."""
        for control in self._groups:
            if control.cpus >> cpu & 1:
                owner = next((m for m in control.monitors if m.cpus >> cpu & 1), control)
                return owner.closid, owner.rmid
        return 0, 0

    def value(self, resource: str, domain_id: int, closid: int) -> int:
        """A mask or a bandwidth limit in force, by schema name (``L3``, ``L3CODE``, ``MB``); KeyError."""
        schema = self.controls.schema(resource)
        if schema is None:
            raise KeyError(resource)
        return self.controls.get(schema, domain_id, closid)

    def proc_text(self, tid: int) -> str:
        """/proc/TID/cpu_resctrl_groups."""
        closid, rmid = self.membership.ids(tid)
        for control in self._groups if self.mounted else ():
            if control.closid == closid:
                monitor = next((m.name for m in control.monitors if m.rmid == rmid), "")
                return f"res:{'/' if control.is_root else control.name}\nmon:{monitor}\n"
        return "res:\nmon:\n"

    # -- what happens to the machine ----------------------------------------------------------------------------

    def forked(self, parent_tid: int, child_tid: int) -> None:
        """A child is born into its parent's groups."""
        self.membership.forked(parent_tid, child_tid)

    def exited(self, tid: int) -> None:
        """A thread is gone."""
        self.membership.exited(tid)

    def account(
        self,
        group: str,
        domain_id: int,
        *,
        llc_bytes: float | None = None,
        mbm_total_bytes: float = 0.0,
        mbm_local_bytes: float = 0.0,
    ) -> None:
        """What the threads of one group (without its monitor groups) hold of the cache now, and moved meanwhile.

        ``domain_id`` is the cache's id, under SNC the node's. KeyError: no such group.
        """
        self.account_rmid(
            self.group(group).rmid,
            domain_id,
            llc_bytes=llc_bytes,
            mbm_total_bytes=mbm_total_bytes,
            mbm_local_bytes=mbm_local_bytes,
        )

    def account_rmid(
        self,
        rmid: int,
        domain_id: int,
        *,
        llc_bytes: float | None = None,
        mbm_total_bytes: float = 0.0,
        mbm_local_bytes: float = 0.0,
    ) -> None:
        """The same by RMID, for physics that knows what runs where (``ids_of``)."""
        if self.monitor is None:
            return
        if llc_bytes is not None:
            self.monitor.set_occupancy(rmid, domain_id, llc_bytes)
        if mbm_total_bytes or mbm_local_bytes:
            self.monitor.add_traffic(rmid, domain_id, mbm_total_bytes, mbm_local_bytes)

    def set_online(self, online: CpuSet) -> None:
        """CPUs went offline or came back. A domain without CPUs vanishes; it comes back with default values."""
        went, came = self.online & ~online.mask, online.mask & ~self.online
        self.online = online.mask
        for group in self.groups():
            group.cpus &= ~went
        self.root.cpus |= came
        self.controls.bring_online(self.online)
        if self.monitor is None:
            return
        self.monitor.catch_up(self.now())
        self.monitor.bring_online(self.online)
        for group in self.groups():
            self._refill_mon_data(group)

    # -- groups -------------------------------------------------------------------------------------------------

    def _modes(self) -> dict[int, Mode]:
        return {group.closid: group.mode for group in self._groups}

    def _mkdir_control(self, name: str) -> None:
        self._arrive(Operation.MKDIR, name)
        if "\n" in name:
            raise refuse(errno.EINVAL)
        group = Group(name, Kind.CONTROL, Directory(strict_open=True))
        if self.machine.kernel.closid_first:
            group.closid = self._take_closid()
            try:
                self._take_rmid(group)
            except OSError:
                self._closids.give_back(group.closid)
                raise
        else:
            self._take_rmid(group)
            try:
                group.closid = self._take_closid()
            except OSError:
                self._free_rmid(group)
                raise
        problem = self.controls.initialise(group.closid)
        if problem is not None:
            self.status.say(problem)
            self._closids.give_back(group.closid)
            self._free_rmid(group)
            raise refuse(errno.ENOSPC)
        self._groups.append(group)
        group.directory.on_rmdir = lambda: self._rmdir_control(group)
        if self.machine.kernel.moves_monitor_groups:
            group.directory.on_rename = lambda to, new: self._rename(group, to, new)
        self._fill_group(group)
        self.directory.children[name] = group.directory

    def _mkdir_monitor(self, parent: Group, place: Directory, name: str) -> None:
        above = parent.path
        self._arrive(Operation.MKDIR, f"{above}/mon_groups/{name}" if above else f"mon_groups/{name}")
        if "\n" in name:
            raise refuse(errno.EINVAL)
        if name == "mon_groups":
            raise refuse(errno.EPERM)
        group = Group(name, Kind.MONITOR, Directory(strict_open=True), parent)
        self._take_rmid(group)
        parent.monitors.append(group)
        group.directory.on_rmdir = lambda: self._rmdir_monitor(group)
        if self.machine.kernel.moves_monitor_groups:
            group.directory.on_rename = lambda to, new: self._rename(group, to, new)
        self._fill_group(group)
        place.children[name] = group.directory

    def _rmdir_control(self, group: Group) -> None:
        self._arrive(Operation.RMDIR, group.path)
        self.membership.hand_over(group, self.root)
        self.root.cpus |= group.cpus
        self._closids.give_back(group.closid)
        for member in group.family():
            self._free_rmid(member)
        self._groups.remove(group)
        self.directory.remove(group.name)

    def _rmdir_monitor(self, group: Group) -> None:
        self._arrive(Operation.RMDIR, group.path)
        parent = group.parent
        if parent is None:
            raise refuse(errno.EPERM)
        self.membership.hand_over(group, parent)
        self._free_rmid(group)
        parent.monitors.remove(group)
        self._mon_groups(parent).remove(group.name)

    def _rename(self, group: Group, to: Directory, new_name: str) -> None:
        self.status.clear()
        heir = next((g for g in self._groups if g.directory.children.get("mon_groups") is to), None)
        parent = group.parent
        if parent is None:
            self.status.say("Source must be a MON group")
            raise refuse(errno.EPERM)
        if heir is None or new_name == "mon_groups":
            self.status.say("Destination must be a mon_groups subdirectory")
            raise refuse(errno.EPERM)
        if group.cpus and heir is not parent:
            self.status.say("Cannot move a MON group that monitors CPUs")
            raise refuse(errno.EPERM)
        del self._mon_groups(parent).children[group.name]
        parent.monitors.remove(group)
        group.name, group.parent = new_name, heir
        heir.monitors.append(group)
        to.children[new_name] = group.directory
        group.closid = heir.closid
        self.membership.hand_over(group, group)

    def _take_closid(self) -> int:
        closid = self._closids.take()
        if closid is None:
            self.status.say("Out of CLOSIDs")
            raise refuse(errno.ENOSPC)
        return closid

    def _take_rmid(self, group: Group) -> None:
        if self.monitor is None:
            return
        try:
            group.rmid = self.monitor.take_rmid(self.now())
        except OSError:
            self.status.say("Out of RMIDs")
            raise

    def _free_rmid(self, group: Group) -> None:
        if self.monitor is not None:
            self.monitor.free_rmid(group.rmid, self.now())

    # -- files ----------------------------------------------------------------------------------------------------

    def _arrive(self, operation: Operation, path: str) -> None:
        self.faults.pass_through(operation, path, self.status.say)

    def add_file(
        self, place: Directory, where: Callable[[], str], name: str, read: Reader, write: Writer | None = None
    ) -> None:
        """Put a file into ``place`` (whose path ``where`` tells) that faults can reach."""

        def checked_read() -> str:
            self._arrive(Operation.READ, f"{where()}/{name}".lstrip("/"))
            return read()

        def checked_write(data: bytes) -> None:
            self._arrive(Operation.WRITE, f"{where()}/{name}".lstrip("/"))
            if write is not None:
                write(data)

        place.add(name, checked_read, None if write is None else checked_write)

    def _fill_group(self, group: Group) -> None:
        place, fixed = group.directory, _FIXED_DIRECTORY if group.is_root else _GROUP_DIRECTORY
        place.mode = fixed
        self._add(
            group,
            "cpus",
            lambda: format_cpu_mask(group.cpus, self._limit) + "\n",
            self._cpus_writer(group, False),
        )
        self._add(group, "cpus_list", lambda: f"{CpuSet(group.cpus)}\n", self._cpus_writer(group, True))
        self._add(
            group, "tasks", lambda: self._show_tasks(group), lambda data: self._write_tasks(group, data)
        )
        if group.kind is Kind.CONTROL:
            self._add(
                group,
                "schemata",
                lambda: schemata.show(self.controls, group),
                lambda data: schemata.write(self.controls, group, data, self.status),
            )
            self._add(group, "size", lambda: schemata.show_size(self.controls, group))
            self._add(
                group, "mode", lambda: group.mode.value + "\n", lambda data: self._write_mode(group, data)
            )
            if "debug" in self.options:
                self._add(group, "ctrl_hw_id", lambda: f"{group.closid}\n")
        if self.monitor is None:
            return
        if "debug" in self.options:
            self._add(group, "mon_hw_id", lambda: f"{group.rmid}\n")
        group.mon_data = Directory(strict_open=True)
        group.mon_data.mode = fixed
        place.children["mon_data"] = group.mon_data
        self._refill_mon_data(group)
        if group.kind is Kind.CONTROL:
            monitors = Directory(strict_open=True)
            monitors.mode = fixed
            monitors.on_mkdir = lambda name: self._mkdir_monitor(group, monitors, name)
            place.children["mon_groups"] = monitors

    def _add(self, group: Group, name: str, read: Reader, write: Writer | None = None) -> None:
        self.add_file(group.directory, lambda: group.path, name, read, write)

    def _refill_mon_data(self, group: Group) -> None:
        if self.monitor is not None and group.mon_data is not None:
            fill_mon_data(self, self.monitor, group, group.mon_data)

    def _mon_groups(self, control: Group) -> Directory:
        place = control.directory.children["mon_groups"]
        if not isinstance(place, Directory):
            raise refuse(errno.ENOTDIR)
        return place

    @property
    def _limit(self) -> int:
        return self.machine.cpus.mask.bit_length()

    def _cpus_writer(self, group: Group, as_list: bool) -> Writer:
        def write(data: bytes) -> None:
            new = cpus.parse(data, self._limit, self.status, as_list=as_list)
            cpus.assign(
                group,
                new,
                online=self.online,
                root=self.root,
                control_groups=lambda: self._groups,
                status=self.status,
            )

        return write

    def _show_tasks(self, group: Group) -> str:
        members = self.membership.members(group, can_allocate=self.machine.can_allocate)
        return "".join(f"{tid}\n" for tid in members)

    def _write_tasks(self, group: Group, data: bytes) -> None:
        if self.machine.kernel.task_lists:
            self.membership.write_list(group, data)
        else:
            self.membership.write(group, data)

    def _write_mode(self, group: Group, data: bytes) -> None:
        if not data.endswith(b"\n"):
            raise refuse(errno.EINVAL)
        self.status.clear()
        wanted = text_of(data[:-1])
        problem: str | None = None
        if wanted == group.mode.value:
            return
        if wanted == Mode.SHAREABLE.value:
            group.mode = Mode.SHAREABLE
        elif wanted == Mode.EXCLUSIVE.value:
            problem = self.controls.could_be_exclusive(group.closid)
            if problem is None:
                group.mode = Mode.EXCLUSIVE
        elif wanted == "pseudo-locksetup":
            problem = "Cannot pseudo-lock default group" if group.is_root else "Pseudo-locking not supported"
        else:
            problem = "Unknown or unsupported mode"
        if problem is not None:
            self.status.say(problem)
            raise refuse(errno.EINVAL)
