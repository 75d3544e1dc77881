"""The simulated resctrl file system: mounting, groups, files, CPU hotplug.

Bound to a ``Directory`` of the simulated kernel (the mount point). Behaviour, errno and texts are those captured from
Linux 6.1 and 6.12; cases without a capture follow Documentation/arch/x86/resctrl.rst. Not modelled: pseudo-locking,
which is refused as on machines without it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel.resctrl.controls import Controls
from perphd.sim.kernel.resctrl.faults import FaultPlan, Operation
from perphd.sim.kernel.resctrl.groupfiles import FIXED_DIRECTORY, fill_group
from perphd.sim.kernel.resctrl.groups import Closids, Group, Kind, Registry
from perphd.sim.kernel.resctrl.hardware import RdtMachine
from perphd.sim.kernel.resctrl.info import fill_info
from perphd.sim.kernel.resctrl.lifecycle import Lifecycle
from perphd.sim.kernel.resctrl.mondata import fill_mon_data
from perphd.sim.kernel.resctrl.monitor import Monitor
from perphd.sim.kernel.resctrl.status import CommandStatus
from perphd.sim.kernel.resctrl.tasks import Membership, TaskSource
from perphd.sim.kernel.vfs import Directory, Reader, Writer, refuse

MOUNT_POINT: Final = "/sys/fs/resctrl"
_OPTIONS: Final = ("cdp", "cdpl2", "mba_MBps", "debug")
"""Mount options in the order in which /proc/mounts shows them."""


class ResctrlTree:
    """resctrl of one machine, not mounted at first.

    Args:
        machine: the hardware's capabilities.
        mount_point: the empty directory ``/sys/fs/resctrl``.
        tasks: the threads of the machine.
        clock: monotonic seconds; by default, time stands still until ``now_s`` is set.
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
        self.closids = Closids(self.controls.num_closids)
        mount_point.mode, mount_point.strict_open = FIXED_DIRECTORY, True
        self.registry = Registry(Group("", Kind.CONTROL, mount_point))
        self.registry.root.cpus = self.online
        self.lifecycle = Lifecycle(self)

    # -- mounting -----------------------------------------------------------------------------------------

    def mount(self, options: str | None = None) -> None:
        """Mount with ``-o options``; None: as the machine is usually mounted.

        OSError: EINVAL for an option that the kernel or CPU lacks, EBUSY if it is mounted, ENODEV if the
        machine can neither allocate nor monitor.
        """
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
        self.controls.modes = self.registry.modes
        self.closids = Closids(self.controls.num_closids)
        self.mounted = True
        if self.monitor is not None:
            self.monitor.restart_counting(self.registry.root.rmid)
        fill_group(self, self.registry.root)
        fill_info(self)
        self.directory.on_mkdir = self.lifecycle.make_control if self.machine.can_allocate else None
        self.status.clear()

    def umount(self) -> None:
        """Unmount: all groups vanish and all values are reset; OSError: EINVAL if it is not mounted.

        EBUSY while the tree's lock is held, because that is an open directory. The kernel also answers EBUSY while any
        file is open or a process's working directory is in the tree; the FUSE mount must check that itself.
        """
        if not self.mounted:
            raise refuse(errno.EINVAL)
        if self.directory.flocks:
            raise refuse(errno.EBUSY)
        self.membership.forget()
        self.lifecycle.remove_all()
        self.registry = Registry(Group("", Kind.CONTROL, self.directory))
        self.registry.root.cpus = self.online
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

    # -- state ----------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The machine's time."""
        return self._clock() if self._clock is not None else self.now_s

    def ids_of(self, tid: int, cpu: int) -> tuple[int, int]:
        """(CLOSID, RMID) of a thread while it runs on a CPU (resctrl.rst, "Resource allocation rules")."""
        closid, rmid = self.membership.ids(tid)
        of_cpu = self.cpu_ids(cpu)
        return closid or of_cpu[0], rmid or of_cpu[1]

    def cpu_ids(self, cpu: int) -> tuple[int, int]:
        """(CLOSID, RMID) that a CPU gives to threads of the root group."""
        owner = self.registry.owner(cpu)
        return owner.closid, owner.rmid

    def value(self, resource: str, domain_id: int, closid: int) -> int:
        """A mask or a bandwidth limit in force, by schema name (``L3``, ``L3CODE``, ``MB``); KeyError if unknown."""
        schema = self.controls.schema(resource)
        if schema is None:
            raise KeyError(resource)
        return self.controls.get(schema, domain_id, closid)

    def proc_text(self, tid: int) -> str:
        """/proc/TID/cpu_resctrl_groups."""
        closid, rmid = self.membership.ids(tid)
        for control in self.registry.controls if self.mounted else ():
            if control.closid == closid:
                monitor = next((m.name for m in control.monitors if m.rmid == rmid), "")
                return f"res:{'/' if control.is_root else control.name}\nmon:{monitor}\n"
        return "res:\nmon:\n"

    # -- events -------------------------------------------------------------------------------------------------

    def forked(self, parent_tid: int, child_tid: int) -> None:
        """Put a new child thread into its parent's groups."""
        self.membership.forked(parent_tid, child_tid)

    def exited(self, tid: int) -> None:
        """Remove an ended thread."""
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
        """Set the cache held by the threads of one group (without its monitor groups), and add their traffic.

        ``domain_id`` is the cache's id, under SNC the node's. KeyError: no such group.
        """
        self.account_rmid(
            self.registry.find(group).rmid,
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
        """Like ``account``, for an RMID in place of a group. The physics finds it by ``ids_of``."""
        if self.monitor is None:
            return
        if llc_bytes is not None:
            self.monitor.set_occupancy(rmid, domain_id, llc_bytes)
        if mbm_total_bytes or mbm_local_bytes:
            self.monitor.add_traffic(rmid, domain_id, mbm_total_bytes, mbm_local_bytes)

    def set_online(self, online: CpuSet) -> None:
        """Set the online CPUs. A domain without CPUs vanishes; when it returns, it has default values."""
        went, came = self.online & ~online.mask, online.mask & ~self.online
        self.online = online.mask
        for group in self.registry.walk():
            group.cpus &= ~went
        self.registry.root.cpus |= came
        self.controls.bring_online(self.online)
        if self.monitor is None:
            return
        self.monitor.catch_up(self.now())
        self.monitor.bring_online(self.online)
        for group in self.registry.walk():
            if group.mon_data is not None:
                fill_mon_data(self, self.monitor, group, group.mon_data)

    # -- for the other modules of this package --------------------------------------------------------------

    def arrive(self, operation: Operation, path: str) -> None:
        """Begin an operation; OSError: from an injected fault."""
        self.faults.pass_through(operation, path, self.status.say)

    def add_file(
        self,
        place: Directory,
        where: Callable[[], str],
        name: str,
        read: Reader,
        write: Writer | None = None,
    ) -> None:
        """Put a file into ``place``, with faults injected by its path ``where``."""

        def checked_read() -> str:
            self.arrive(Operation.READ, f"{where()}/{name}".lstrip("/"))
            return read()

        def checked_write(data: bytes) -> None:
            self.arrive(Operation.WRITE, f"{where()}/{name}".lstrip("/"))
            if write is not None:
                write(data)

        place.add(name, checked_read, None if write is None else checked_write)
