"""A cgroup v2 tree: its files, what the kernel accepts in them, and the counters that physics fills in.

The rules (which write gets which errno, what is read back) are those of Linux 6.1 as captured from a running
kernel; tests/sim replays that capture. Partitions, io limits and swap are not modelled.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.sim.counters import CpuCounters, IoCounters, MemoryCounters, PerfCounters, Process
from perphd.sim.kernel import formats
from perphd.sim.kernel.formats import COUNTER_MAX_PAGES, PAGE
from perphd.sim.kernel.vfs import Directory, File, Reader, Writer, refuse
from perphd.sim.pressure import PressureState

CONTROLLERS: Final = ("cpuset", "cpu", "io", "memory", "pids")
"""In the order in which the kernel lists them."""
_THREADED: Final = frozenset({"cpuset", "cpu", "pids"})
_MEMORY_STAT: Final = (
    "anon file kernel kernel_stack pagetables sec_pagetables percpu sock vmalloc shmem zswap zswapped "
    "file_mapped file_dirty file_writeback swapcached anon_thp file_thp shmem_thp inactive_anon active_anon "
    "inactive_file active_file unevictable slab_reclaimable slab_unreclaimable slab "
    "workingset_refault_anon workingset_refault_file workingset_activate_anon workingset_activate_file "
    "workingset_restore_anon workingset_restore_file workingset_nodereclaim "
    "pgscan pgsteal pgscan_kswapd pgscan_direct pgsteal_kswapd pgsteal_direct pgfault pgmajfault pgrefill "
    "pgactivate pgdeactivate pglazyfree pglazyfreed zswpin zswpout thp_fault_alloc thp_collapse_alloc"
).split()
"""The lines of memory.stat, in the kernel's order; what is not modelled is 0."""
IDLE_WEIGHT: Final = 100 * 3 / 1024
"""What cpu.idle = 1 weighs on cpu.weight's scale (the kernel's WEIGHT_IDLEPRIO of 3, where 1024 is 100)."""
_KERNEL_PIDS: Final = frozenset({2})


class SimCgroup:
    """One control group: knobs (as written), counters (as physics has it), files."""

    def __init__(self, tree: CgroupTree, parent: SimCgroup | None, name: str, directory: Directory) -> None:
        self.tree, self.parent, self.name, self.directory = tree, parent, name, directory
        self.path: str = "/" if parent is None else f"{parent.path.rstrip('/')}/{name}"
        self.children: dict[str, SimCgroup] = {}
        self.subtree_control: set[str] = set()
        self.processes: list[Process] = []
        self.cpu, self.memory, self.io = CpuCounters(), MemoryCounters(), IoCounters()
        self.perf = PerfCounters()
        self.pressure = {resource: PressureState() for resource in ("cpu", "memory", "io")}
        for controller in CONTROLLERS:
            self._reset(controller)
        self._core_files()
        for controller in self.controllers():
            self._attach(controller)

    # -- what physics asks ------------------------------------------------------------------------

    def controllers(self) -> tuple[str, ...]:
        """Controllers that this group has, in the kernel's order."""
        if self.parent is None:
            return CONTROLLERS
        return tuple(c for c in CONTROLLERS if c in self.parent.subtree_control)

    def has(self, controller: str) -> bool:
        """True if this group has the controller's files (the root has none of the knobs)."""
        return self.parent is not None and controller in self.parent.subtree_control

    @property
    def effective_cpus(self) -> CpuSet:
        """cpuset.cpus.effective: what was written cut to the parent's; the parent's where that leaves nothing."""
        above = self.tree.online if self.parent is None else self.parent.effective_cpus
        return (self.cpus & above) or above

    @property
    def effective_mems(self) -> CpuSet:
        """cpuset.mems.effective."""
        above = self.tree.nodes if self.parent is None else self.parent.effective_mems
        return (self.mems & above) or above

    @property
    def share_weight(self) -> float:
        """The weight that the scheduler uses, on cpu.weight's scale."""
        return IDLE_WEIGHT if self.idle else float(self.weight)

    def populated(self) -> bool:
        """True if this group or one below it holds a process."""
        return bool(self.processes) or any(child.populated() for child in self.children.values())

    def walk(self) -> Iterator[SimCgroup]:
        """This group and all below it, parents first."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def ancestry(self) -> Iterator[SimCgroup]:
        """This group and all above it, up to the root."""
        here: SimCgroup | None = self
        while here is not None:
            yield here
            here = here.parent

    # -- files --------------------------------------------------------------------------------------

    def _file(self, name: str, read: Reader | str, write: Writer | None = None) -> File:
        return self.directory.add(name, read, write)

    def _core_files(self) -> None:
        self._file("cgroup.controllers", lambda: " ".join(self.controllers()) + "\n")
        self._file("cgroup.subtree_control", self._read_subtree, self._write_subtree)
        self._file("cgroup.procs", self._read_procs, self._write_procs)
        self._file("cgroup.threads", self._read_threads)
        self._file("cpu.stat", self._read_cpu_stat)
        for resource, state in self.pressure.items():
            self._file(f"{resource}.pressure", state.text, formats.check_trigger)
        if self.parent is not None:
            self._file("cgroup.events", lambda: f"populated {int(self.populated())}\nfrozen 0\n")
            self._file("cgroup.type", lambda: self.type + "\n", self._write_type)
            return
        self._file("cpuset.cpus.effective", lambda: f"{self.effective_cpus}\n")
        self._file("cpuset.mems.effective", lambda: f"{self.effective_mems}\n")
        self._file("memory.stat", self._read_memory_stat)
        self._file("io.stat", self._read_io_stat)

    def _controller_files(self, controller: str) -> list[tuple[str, Reader, Writer | None]]:
        if controller == "cpu":
            return [
                ("cpu.weight", lambda: f"{0 if self.idle else self.weight}\n", self._write_weight),
                ("cpu.idle", lambda: f"{int(self.idle)}\n", self._write_idle),
                ("cpu.max", self._read_cpu_max, self._write_cpu_max),
            ]
        if controller == "cpuset":
            return [
                ("cpuset.cpus", lambda: f"{self.cpus}\n", self._write_cpus),
                ("cpuset.cpus.effective", lambda: f"{self.effective_cpus}\n", None),
                ("cpuset.mems", lambda: f"{self.mems}\n", self._write_mems),
                ("cpuset.mems.effective", lambda: f"{self.effective_mems}\n", None),
            ]
        if controller == "memory":
            return [
                ("memory.current", lambda: f"{int(self.memory.current_bytes) // PAGE * PAGE}\n", None),
                ("memory.stat", self._read_memory_stat, None),
                ("memory.events", self._read_memory_events, None),
                *(self._memory_limit(knob) for knob in ("min", "low", "high", "max")),
            ]
        if controller == "io":
            return [("io.stat", self._read_io_stat, None)]
        return [("pids.current", lambda: f"{sum(len(p.tids) for p in self.all_processes())}\n", None)]

    def _memory_limit(self, knob: str) -> tuple[str, Reader, Writer | None]:
        def read() -> str:
            pages = self.memory_pages[knob]
            return "max\n" if pages >= COUNTER_MAX_PAGES else f"{pages * PAGE}\n"

        def write(data: bytes) -> None:
            if not data:
                return
            self.memory_pages[knob] = formats.parse_memory_pages(data)
            if knob == "max":
                self.tree.on_memory_max(self)

        return f"memory.{knob}", read, write

    def _attach(self, controller: str) -> None:
        if self.parent is None:
            return
        for name, read, write in self._controller_files(controller):
            self._file(name, read, write)

    def _detach(self, controller: str) -> None:
        for name, _, _ in self._controller_files(controller):
            self.directory.remove(name)
        self._reset(controller)

    def _reset(self, controller: str) -> None:
        if controller == "cpu":
            self.weight, self.idle = 100, False
            self.quota_us: int | None = None
            self.period_us = 100_000
        elif controller == "cpuset":
            self.cpus = self.mems = CpuSet()
        elif controller == "memory":
            self.memory_pages = {"min": 0, "low": 0, "high": COUNTER_MAX_PAGES, "max": COUNTER_MAX_PAGES}

    # -- the tree's own files -----------------------------------------------------------------------

    @property
    def type(self) -> str:
        """``domain``, or what enabling threaded controllers over processes makes of the group and its children."""
        if self.processes and self.subtree_control:
            return "domain threaded"
        above = self.parent
        return "domain invalid" if above is not None and above.parent and above.type != "domain" else "domain"

    def all_processes(self) -> list[Process]:
        """The processes of this group and of all below it."""
        return [process for group in self.walk() for process in group.processes]

    def _read_subtree(self) -> str:
        return " ".join(c for c in CONTROLLERS if c in self.subtree_control) + "\n"

    def _write_subtree(self, data: bytes) -> None:
        words = formats.text_of(data).split()
        if any(word[0] not in "+-" or word[1:] not in CONTROLLERS for word in words):
            raise refuse(errno.EINVAL)
        add = {word[1:] for word in words if word[0] == "+"} - self.subtree_control
        drop = {word[1:] for word in words if word[0] == "-"} & self.subtree_control
        if add - set(self.controllers()):
            raise refuse(errno.ENOENT)
        if any(drop & child.subtree_control for child in self.children.values()):
            raise refuse(errno.EBUSY)
        if self.parent is not None and self.processes and add - _THREADED:
            raise refuse(errno.EOPNOTSUPP if self.type != "domain" else errno.EBUSY)
        self.subtree_control = (self.subtree_control | add) - drop
        for child in self.children.values():
            for controller in sorted(add):
                child._attach(controller)
            for controller in sorted(drop):
                child._detach(controller)

    def _read_procs(self) -> str:
        if self.type == "domain invalid":
            raise refuse(errno.EOPNOTSUPP)
        return "".join(f"{process.pid}\n" for process in self.processes)

    def _read_threads(self) -> str:
        return "".join(f"{tid}\n" for process in self.processes for tid in process.tids)

    def _write_procs(self, data: bytes) -> None:
        if not data:
            return
        if self.type == "domain invalid":
            raise refuse(errno.EOPNOTSUPP)
        text = formats.text_of(data)
        if not text.isdecimal() or int(text) >= 1 << 31 or int(text) in _KERNEL_PIDS:
            raise refuse(errno.EINVAL)
        if self.parent is not None and self.subtree_control:
            raise refuse(errno.EBUSY)
        self.tree.move(int(text), self)

    def _write_type(self, data: bytes) -> None:
        if formats.text_of(data) != "threaded":
            raise refuse(errno.EINVAL)
        raise refuse(errno.EOPNOTSUPP)

    # -- cpu and cpuset -------------------------------------------------------------------------------

    def _read_cpu_stat(self) -> str:
        stat = self.cpu
        usage, system = int(stat.usage_s * 1e6), int(stat.system_s * 1e6)
        text = f"usage_usec {usage}\nuser_usec {usage - system}\nsystem_usec {system}\n"
        if not self.has("cpu"):
            return text
        return text + (
            f"nr_periods {int(stat.periods)}\nnr_throttled {int(stat.throttled_periods)}\n"
            f"throttled_usec {int(stat.throttled_s * 1e6)}\nnr_bursts 0\nburst_usec 0\n"
        )

    def _write_weight(self, data: bytes) -> None:
        weight = formats.parse_u64(data)
        if not 1 <= weight <= 10_000:
            raise refuse(errno.ERANGE)
        if self.idle:
            raise refuse(errno.EINVAL)
        self.weight = weight

    def _write_idle(self, data: bytes) -> None:
        value = formats.parse_s64(data)
        if value not in (0, 1):
            raise refuse(errno.EINVAL)
        if self.idle and not value:
            self.weight = 100  # the kernel does not remember the weight from before
        self.idle = bool(value)

    def _read_cpu_max(self) -> str:
        return f"{'max' if self.quota_us is None else self.quota_us} {self.period_us}\n"

    def _write_cpu_max(self, data: bytes) -> None:
        self.quota_us, self.period_us = formats.parse_cpu_max(data, self.period_us)

    def _write_cpus(self, data: bytes) -> None:
        if data:
            cpus = formats.parse_list(formats.text_of(data), self.tree.nr_cpus)
            self.cpus = self._checked_list(self.cpus, cpus)

    def _write_mems(self, data: bytes) -> None:
        if data:
            nodes = formats.parse_list(formats.text_of(data), 64)
            if not nodes <= self.tree.nodes:
                raise refuse(errno.EINVAL)
            self.mems = self._checked_list(self.mems, nodes)

    def _checked_list(self, old: CpuSet, new: CpuSet) -> CpuSet:
        if old and not new and self.populated():
            raise refuse(errno.ENOSPC)
        return new

    # -- memory and io --------------------------------------------------------------------------------

    def _read_memory_stat(self) -> str:
        stat = self.memory
        anon, file = int(stat.anon_bytes) // PAGE * PAGE, int(stat.file_bytes) // PAGE * PAGE
        inactive_anon, inactive_file = anon // 10 // PAGE * PAGE, file // 2 // PAGE * PAGE
        known = {
            "anon": anon,
            "file": file,
            "inactive_anon": inactive_anon,
            "active_anon": anon - inactive_anon,
            "inactive_file": inactive_file,
            "active_file": file - inactive_file,
            "workingset_refault_file": int(stat.refaults),
            "workingset_activate_file": int(stat.refaults / 2),
            "pgscan": int(stat.scanned),
            "pgsteal": int(stat.stolen),
            "pgscan_direct": int(stat.scanned),
            "pgsteal_direct": int(stat.stolen),
            "pgfault": int(stat.faults),
            "pgmajfault": int(stat.major_faults),
        }
        return "".join(f"{key} {known.get(key, 0)}\n" for key in _MEMORY_STAT)

    def _read_memory_events(self) -> str:
        return "".join(f"{key} {value}\n" for key, value in self.memory.events.items())

    def _read_io_stat(self) -> str:
        stat = self.io
        if not stat.reads and not stat.writes:
            return ""
        return (
            f"254:0 rbytes={int(stat.read_bytes)} wbytes={int(stat.written_bytes)} "
            f"rios={int(stat.reads)} wios={int(stat.writes)} dbytes=0 dios=0\n"
        )


class CgroupTree:
    """The whole hierarchy below one directory. ``nr_cpus``: the kernel's mask size; ``nodes``: memory nodes."""

    def __init__(self, directory: Directory, online: CpuSet, nodes: CpuSet, nr_cpus: int) -> None:
        self.online, self.nodes, self.nr_cpus = online, nodes, nr_cpus
        self.on_memory_max: Callable[[SimCgroup], None] = lambda group: None
        self.root = SimCgroup(self, None, "", directory)

    def find(self, path: str) -> SimCgroup | None:
        """The group at a cgroup path (``/batch/pi``), or None."""
        here: SimCgroup | None = self.root
        for part in path.split("/"):
            if part and here is not None:
                here = here.children.get(part)
        return here

    def make(self, path: str, controllers: Sequence[str] = CONTROLLERS) -> SimCgroup:
        """The group at this path, made with its parents where missing; all above it give ``controllers`` down."""
        here = self.root
        for part in path.strip("/").split("/"):
            here._write_subtree(" ".join(f"+{c}" for c in controllers).encode())
            if part not in here.children:
                here.children[part] = SimCgroup(self, here, part, here.directory.make(part))
            here = here.children[part]
        return here

    def remove(self, path: str) -> None:
        """Remove a group. OSError: EBUSY with processes or children, ENOENT if there is none."""
        group = self.find(path)
        if group is None or group.parent is None:
            raise OSError(errno.ENOENT, "")
        if group.processes or group.children:
            raise OSError(errno.EBUSY, "")
        del group.parent.children[group.name]
        group.parent.directory.remove(group.name)

    def move(self, pid: int, to: SimCgroup) -> None:
        """Move a process; OSError ESRCH if there is none."""
        for group in self.root.walk():
            for process in group.processes:
                if process.pid == pid:
                    group.processes.remove(process)
                    to.processes.append(process)
                    return
        raise OSError(errno.ESRCH, "")
