"""A simulated server as a directory: kernel files through FUSE, workloads in real time, a daemon beside it.

The mount resembles the root of a host: ``proc``, ``sys/fs/cgroup``, ``sys/fs/resctrl``,
``sys/devices/system``, and ``run/perphd-sim/NAME`` with the indicators of every application. ``[tuning.host]
root`` points a daemon to it.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from perphd.agent.simulated import BATCH_ARRIVES_S, DEFAULT_WORKLOADS, simulate
from perphd.domain.errors import PerphError
from perphd.domain.reading import available
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.event_files import EVENT_FILES, counts_text
from perphd.sim.host import SimHost
from perphd.sim.kernel.cgroup1 import HIERARCHIES, mount_v1
from perphd.sim.kernel.fuse import MountError, serve
from perphd.sim.kernel.proc import BASE_MOUNTS, add_host_files, cgroup2_mount, set_mounts
from perphd.sim.kernel.resctrl import MACHINES, MOUNT_POINT, RdtMachine, ResctrlTree
from perphd.sim.kernel.vfs import Directory, File
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.perf import COUNTED
from perphd.sim.rdt import CgroupThreads
from perphd.sim.sli import SliCursor

log = logging.getLogger("perphd")

STEP_S: Final = 0.1
"""Seconds of real time between two steps of the simulated host."""
SLI_DIR: Final = "/run/perphd-sim"
SLI_PERIOD_S: Final = 0.5
"""Seconds between two updates of an application's indicators."""
RDT: Final = "rdt"
"""The machine whose cache ways and memory bandwidth affect its workloads."""
PLAIN: Final = "plain"
"""The same machine as ``RDT``, but without resctrl."""


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """The simulated server.

    Args:
        machine: ``rdt`` (one socket of eight cores with resctrl), ``plain`` (the same without), or one of the captured
            machines of ``machine_names``: these have the processors and the resctrl of a real machine.
            Settings of this resctrl are stored and shown but do not affect the workloads.
        cgroups: 2, or 1 for v1 hierarchies.
        kinds: workload -> its archetype (from profiles/), for workloads that do not have the default archetype.
        workloads: by default one database and one batch job.
        batch_arrives_s: start of batch jobs, in seconds after the mount.
        seed: seed of the simulated noise.
    """

    machine: str = RDT
    workloads: Sequence[WorkloadSpec] = DEFAULT_WORKLOADS
    batch_arrives_s: float = BATCH_ARRIVES_S
    seed: int = 0
    cgroups: Literal[1, 2] = 2
    kinds: Mapping[str, str] = field(default_factory=dict)


def machine_names() -> tuple[str, ...]:
    """The machines that can be mounted."""
    return (RDT, PLAIN, *MACHINES)


def mount(plan: ServerPlan, directory: str, ready: Callable[[], None] = lambda: None) -> None:
    """Mount a simulated server and run it in real time until SIGTERM, SIGINT or an unmount.

    Args:
        plan: the server.
        directory: an empty directory.
        ready: called once the mount is visible.

    Raises:
        PerphError: the mount failed, or the simulation failed.
    """
    _check_mountpoint(directory)
    server = _Server(plan)
    life = threading.Thread(target=server.live, name="life", daemon=True)

    def mounted() -> None:
        life.start()
        ready()

    try:
        serve(server.root, directory, server.gate, mounted)
    except MountError as exc:
        raise PerphError(str(exc)) from exc
    finally:
        server.stop.set()
    if life.is_alive():
        life.join()
    if server.failure is not None:
        raise PerphError(f"the simulated host failed: {server.failure!r}") from server.failure


def _check_mountpoint(directory: str) -> None:
    try:
        held = os.listdir(directory)
    except OSError as exc:
        advice = "make an empty directory to mount on"
        if exc.errno == errno.ENOTCONN:
            advice = f"a mount whose process was killed is still there: umount {directory}"
        raise PerphError(f"{directory}: {exc.strerror}; {advice}") from exc
    if held:
        raise PerphError(
            f"{directory}: is not empty, and a mount would hide its files; give an empty directory"
        )


def daemon_config(directory: str, workloads: Sequence[WorkloadSpec], state_dir: str) -> str:
    """Text of a configuration for a daemon that controls this mount."""
    lines = [
        "[daemon]",
        'mode = "enforce"',
        f'state_dir = "{state_dir}"',
        f'socket = "{state_dir}/perphd.sock"',
        'read_group = "root"',
        'admin_group = "root"',
        "[tuning.host]",
        f'root = "{directory}"',
    ]
    for spec in workloads:
        lines += [f"[[{spec.kind.value}]]", f'name = "{spec.name}"', f'cgroup = "{spec.cgroup}"']
        if spec.kind is Kind.LRA:
            lines += ["[lra.sli]", 'source = "file"', f'path = "{directory}{SLI_DIR}/{spec.name}"']
    return "\n".join(lines) + "\n"


class _Server:
    """The simulated host, its files, and the thread that advances its time. ``gate`` synchronises them."""

    def __init__(self, plan: ServerPlan) -> None:
        rdt = MACHINES.get(plan.machine)
        self._host = simulate(
            plan.workloads,
            machine=None if rdt is None else _shape(rdt),
            batch_arrives_s=plan.batch_arrives_s,
            seed=plan.seed,
            resctrl=plan.machine == RDT,
            kinds=plan.kinds,
        )
        self.root = self._host.fs.root
        self.gate = threading.RLock()
        self.stop = threading.Event()
        self.failure: Exception | None = None
        _lay_out(self._host, rdt, plan.cgroups)
        for spec in plan.workloads:
            _state_events(self._host, f"{CGROUP_ROOT}{spec.cgroup}")
        self._sli = [
            _SliFile(self.root.make(SLI_DIR), spec.name, self._host.sli(spec.name))
            for spec in plan.workloads
            if spec.kind is Kind.LRA
        ]

    def live(self) -> None:
        """Advance time until stopped; a failure ends the whole process."""
        began_s = time.monotonic()
        told_s = 0.0
        try:
            while not self.stop.wait(STEP_S):
                with self.gate:
                    now_s = time.monotonic() - began_s
                    self._host.advance(now_s)
                    if now_s - told_s >= SLI_PERIOD_S:
                        told_s = now_s
                        for file in self._sli:
                            file.tell()
        except Exception as exc:  # reported when the mount has ended
            self.failure = exc
            os.kill(os.getpid(), signal.SIGTERM)


class _SliFile:
    """The indicators of one application over the last ``SLI_PERIOD_S``, for the SLI source ``file``."""

    def __init__(self, directory: Directory, name: str, cursor: SliCursor) -> None:
        self._cursor, self._text = cursor, ""
        self._file: File = directory.add(name, lambda: self._text)

    def tell(self) -> None:
        """Update the file."""
        window = self._cursor.read()
        if window is None:
            return
        values = {
            "work_rate_per_s": window.work_rate_per_s,
            "load_per_s": window.load_per_s,
            "latency_p50_ms": window.p50_ms,
            "latency_p95_ms": window.p95_ms,
            "latency_p99_ms": window.p99_ms,
        }
        self._text = "".join(f"{name} = {value:.6g}\n" for name, value in values.items() if value is not None)
        self._file.changed_ns = time.time_ns()


def _state_events(host: SimHost, cgroup_dir: str) -> None:
    """Put a workload's event counters where ``EventFiles`` reads them, since a mount has no perf_event_open."""
    counters = host.perf_opener(cgroup_dir, host.machine.online, COUNTED)
    folder, _, name = (EVENT_FILES + cgroup_dir).rpartition("/")

    def read() -> str:
        counts = counters.read()
        return counts_text({event: count for event, count in counts.items() if available(count)})

    host.fs.root.make(folder).add(name, read)


def _lay_out(host: SimHost, rdt: RdtMachine | None, cgroups: int) -> None:
    """Add the files of a whole server that the simulation itself does not need."""
    root = host.fs.root
    add_host_files(root, host.cgroups, lambda: host.now_s)
    resctrl = host.resctrl
    if rdt is not None:
        resctrl = ResctrlTree(rdt, root.make(MOUNT_POINT), CgroupThreads(host.cgroups), lambda: host.now_s)
        resctrl.mount()
        for cpu, cache_id in _cache_ids(rdt).items():
            root.make(f"/sys/devices/system/cpu/cpu{cpu}/cache/index3").add("id", f"{cache_id}\n")
    mounts = [cgroup2_mount(CGROUP_ROOT)] if cgroups == 2 else mount_v1(root, CGROUP_ROOT, host.cgroups)[1]
    set_mounts(root, [*BASE_MOUNTS, *mounts], "" if resctrl is None else resctrl.mount_line())
    if cgroups == 1:
        own = host.fs.read("/proc/self/cgroup").decode().strip().rpartition(":")[2]
        lines = (f"{number}:{names}:{own}\n" for number, names in enumerate(HIERARCHIES, start=1))
        root.make("/proc/self").add("cgroup", "".join(lines))


def _shape(rdt: RdtMachine) -> Machine:
    """The simulated machine with these processors; it has one socket per last-level cache."""
    domains = max(1, len(set(_cache_ids(rdt).values())))
    return Machine(sockets=domains, cores_per_socket=max(1, len(rdt.cpus) // domains))


def _cache_ids(rdt: RdtMachine) -> Mapping[int, int]:
    """CPU -> id of its last-level cache, as far as resctrl shows it."""
    return {
        cpu: domain.id
        for cache in rdt.caches
        if cache.name == "L3"
        for domain in cache.domains
        for cpu in domain.cpus
    }
