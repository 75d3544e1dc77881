"""Arrangements of foreign users of the counters, played on a real PMU: ``python3 -m tests.pmu.scenes NAME``.

Runs inside the guest, as root. Prints a JSON list: for every sample what ``Monitor`` measured, and the truth. The
guest's processor needs 4 ns for every instruction, so the truth is 250 MIPS for every core second that the kernel has
accounted to the workload. Scenes clean up after themselves: the next one runs in the same guest.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final
from unittest import mock

from perphd.domain.cpuset import CpuSet
from perphd.domain.reading import Reading, Unavailable
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host import perf_events
from perphd.host.cgroup.hierarchy import discover
from perphd.host.fs import RealFs
from perphd.host.perf_event_types import COMMON_CODES, EventCode, EventCodes, PerfEventKind
from perphd.host.perf_events import PerfOpener
from perphd.host.pmu import read_event_codes
from perphd.monitor.sampler import Monitor

ROOT: Final = Path("/sys/fs/cgroup")
MIPS_PER_CORE: Final = 250.0
RAW: Final = 4
INST_RETIRED: Final = 0x08
"""ARM's architectural event: counts like any other of the PMU's six free counters."""
PINNED: Final = 1 << 2

START: Final = "from perphd.commands.daemon import main; main()"
LIFE_S: Final = 40.0
"""How long a daemon lives in the scene of its restart."""

Row = dict[str, object]


@contextmanager
def group(name: str) -> Iterator[Path]:
    """A cgroup, removed at the end with what runs in it."""
    path = ROOT / name
    path.mkdir()
    try:
        yield path
    finally:
        for _ in range(100):
            members = (path / "cgroup.procs").read_text().split()
            if not members:
                break
            for pid in members:
                os.kill(int(pid), 9)
            time.sleep(0.05)
        path.rmdir()


@contextmanager
def spinner(cgroup: Path, cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    """An endless loop in a cgroup, on one CPU."""
    process = subprocess.Popen(["/usr/bin/spin"])
    try:
        os.sched_setaffinity(process.pid, {cpu})
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def foreign(
    count: int, cpus: Sequence[int], pinned: bool = False, cgroup: Path | None = None
) -> Iterator[None]:
    """Counters of somebody else: single events on whole CPUs, or of a cgroup as ``perf stat -G`` has them."""
    code = EventCode(RAW, INST_RETIRED)
    fds: list[int] = []
    directory = -1 if cgroup is None else os.open(cgroup, os.O_RDONLY)
    try:
        for cpu in cpus:
            for _ in range(count):
                fds.append(_open_foreign(code, directory, cpu, pinned))
        yield
    finally:
        for fd in fds:
            os.close(fd)
        if cgroup is not None:
            os.close(directory)


def _open_foreign(code: EventCode, directory: int, cpu: int, pinned: bool) -> int:
    attr = perf_events._Attr(type=code.type, size=64, config=code.config, flags=PINNED if pinned else 0)
    flags = perf_events._FLAG_CLOEXEC | (0 if directory < 0 else perf_events._FLAG_PID_CGROUP)
    number = perf_events._SYSCALL_NUMBERS[platform.machine()]
    words = [ctypes.c_long(value) for value in (directory, cpu, -1, flags)]
    fd: int = perf_events._libc.syscall(ctypes.c_long(number), ctypes.byref(attr), *words)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open of a foreign event")
    return fd


class Watch:
    """Samples workloads, and reads the truth beside every sample."""

    def __init__(self, names: Sequence[str], codes: EventCodes | None = None, kind: Kind = Kind.LRA) -> None:
        fs = RealFs()
        cpus = CpuSet.parse(Path("/sys/devices/system/cpu/possible").read_text().strip())
        opener = PerfOpener(read_event_codes(fs) if codes is None else codes)
        self.monitor = Monitor(fs, discover(fs), cpus=cpus, opener=opener)
        self.specs = [WorkloadSpec(name, kind, f"/{name}") for name in names]
        self.rows: list[Row] = []
        self._used: dict[str, tuple[float, float, float]] = {}

    def begin(self) -> None:
        """Open everything; what that takes is not in the interval of the first sample that counts."""
        for _ in range(2):
            self.sample("", keep=False)

    def sample(self, label: str, keep: bool = True) -> None:
        """One sample of every workload, with the truth read before and after it.

        A counter of another CPU is read by that CPU. All share one host thread, so that may take a while, in which
        the workload runs on: what it has done at the moment of reading lies between the two.
        """
        now_s = time.monotonic()
        before = {spec.name: used_s(spec.name) for spec in self.specs}
        samples = self.monitor.sample(now_s, self.specs, {})
        after = {spec.name: used_s(spec.name) for spec in self.specs}
        for sample in samples:
            name = sample.workload
            low_s, high_s, at_s = self._used.get(name, (0.0, 0.0, 0.0))
            self._used[name] = before[name], after[name], now_s
            if keep:
                rate = MIPS_PER_CORE / (now_s - at_s)
                least, most = rate * max(0.0, before[name] - high_s), rate * (after[name] - low_s)
                self.rows.append(row(label, sample, least, most))

    def run(self, label: str, count: int, period_s: float = 1.0) -> None:
        """Some samples, one a period."""
        for _ in range(count):
            time.sleep(period_s)
            self.sample(label)

    def close(self) -> None:
        self.monitor.close()


def used_s(name: str) -> float:
    """CPU time of a cgroup, as the kernel accounts it."""
    return int((ROOT / name / "cpu.stat").read_text().split()[1]) / 1e6


def row(label: str, sample: Sample, least: float, most: float) -> Row:
    return {
        "label": label,
        "workload": sample.workload,
        "least": round(least, 2),
        "most": round(most, 2),
        "mips": shown(sample.mips),
        "cpi": shown(sample.cpi),
        "llc_mpki": shown(sample.llc_mpki),
        "backend_stall_ratio": shown(sample.backend_stall_ratio),
        "switches": shown(sample.context_switches_per_s),
        "usage": shown(sample.cpu_usage_cores),
        "quality": [flag.value for flag in sample.quality],
    }


def shown(reading: Reading) -> float | str:
    return reading.reason if isinstance(reading, Unavailable) else round(reading, 4)


# -- scenes -----------------------------------------------------------------------------------------------


def plain(stack: ExitStack) -> Watch:
    """Nobody else counts; one workload is busy, one at 20 % by cpu.max, one asleep."""
    for name in ("busy", "limited", "asleep"):
        stack.enter_context(group(name))
    (ROOT / "limited/cpu.max").write_text("2000 10000")
    stack.enter_context(spinner(ROOT / "busy", 0))
    stack.enter_context(spinner(ROOT / "limited", 1))
    watch = Watch(("busy", "limited", "asleep"))
    watch.begin()
    watch.run("plain", 5)
    return watch


def foreign_events(stack: ExitStack) -> Watch:
    """Two workloads on one CPU; six to twelve events of somebody else there."""
    watch = _two_on_one_cpu(stack)
    watch.begin()
    watch.run("none", 2)
    for count in range(6, 13):
        with foreign(count, [0]):
            watch.run(f"foreign {count}", 3)
    return watch


def group_beside(stack: ExitStack) -> Watch:
    """``perf stat -G`` of the same workload beside perphd, and events of the whole CPU besides; then pinned ones."""
    watch = _two_on_one_cpu(stack)
    watch.begin()
    with foreign(2, [0], cgroup=ROOT / "a"):
        watch.run("own group", 2)
        with foreign(6, [0]):
            watch.run("own group and 6", 3)
        with foreign(5, [0], pinned=True):
            watch.run("own group and 5 pinned", 3)
    return watch


def _two_on_one_cpu(stack: ExitStack) -> Watch:
    for name in ("a", "b"):
        stack.enter_context(spinner(stack.enter_context(group(name)), 0))
    return Watch(("a", "b"))


def restart_gap(stack: ExitStack) -> Watch:
    """Counters are closed for 20 s, in which the workload moves to another CPU; it comes back later."""
    app = stack.enter_context(group("app"))
    process = stack.enter_context(spinner(app, 1))
    first = Watch(("app",))
    first.begin()
    first.run("before", 3)
    first.close()
    os.sched_setaffinity(process.pid, {0})
    time.sleep(20.0)
    watch = Watch(("app",))
    watch.rows = first.rows
    watch.begin()
    # This process reads on CPU 1, which the workload has left.
    watch.run("after", 8)
    os.sched_setaffinity(process.pid, {1})
    watch.run("back", 3, 0.3)
    watch.run("back", 3)
    return watch


def pinned_on_one_cpu(stack: ExitStack) -> Watch:
    """All counters of one CPU are pinned by somebody else; the workload runs there and elsewhere."""
    app = stack.enter_context(group("app"))
    cpus = range(os.cpu_count() or 1)
    for cpu in cpus:
        stack.enter_context(spinner(app, cpu))
    watch = Watch(("app",))
    watch.begin()
    watch.run("free", 3)
    with foreign(8, [1], pinned=True):
        watch.run("pinned", 8)
    watch.run("freed", 6)
    return watch


def all_pinned(stack: ExitStack) -> Watch:
    """All counters of every CPU are pinned by somebody else, then given back."""
    app = stack.enter_context(group("app"))
    stack.enter_context(spinner(app, 0))
    watch = Watch(("app",))
    watch.begin()
    watch.run("free", 2)
    with foreign(8, range(os.cpu_count() or 1), pinned=True):
        watch.run("pinned", 8)
    watch.run("freed", 6)
    return watch


def hotplug(stack: ExitStack) -> Watch:
    """A CPU goes and comes back; an LRA and batch run on it and elsewhere."""
    for name in ("lra", "batch"):
        app = stack.enter_context(group(name))
        for cpu in range(os.cpu_count() or 1):
            stack.enter_context(spinner(app, cpu))
    watch = Watch(("lra", "batch"))
    watch.specs[1] = WorkloadSpec("batch", Kind.BATCH, "/batch")
    os.sched_setaffinity(0, {0})
    switch = Path("/sys/devices/system/cpu/cpu1/online")
    stack.callback(switch.write_text, "1")
    watch.begin()
    watch.run("whole", 3)
    switch.write_text("0")
    watch.run("offline", 4)
    switch.write_text("1")
    for pid in (ROOT / "lra/cgroup.procs").read_text().split()[1:2]:
        os.sched_setaffinity(int(pid), {1})
    for pid in (ROOT / "batch/cgroup.procs").read_text().split()[1:2]:
        os.sched_setaffinity(int(pid), {1})
    watch.run("online", 6)
    return watch


def small_pmu(stack: ExitStack) -> Watch:
    """A PMU whose counters are fewer than the group has events: the kernel refuses it with EINVAL."""
    app = stack.enter_context(group("app"))
    stack.enter_context(spinner(app, 0))
    # This PMU has no cache and stall events: instructions again stand in for them, which need counters like any other.
    stand_in = EventCode(RAW, INST_RETIRED)
    names = (PerfEventKind.LLC_MISSES, PerfEventKind.STALL_BACKEND, PerfEventKind.STALL_MEMORY)
    codes = MappingProxyType({**COMMON_CODES, **dict.fromkeys(names, stand_in)})
    whole = Watch(("app",), codes)
    whole.begin()
    whole.run("six counters", 2)
    whole.close()
    watch = Watch(("app",), codes)
    watch.rows = whole.rows
    with filled(4):
        watch.begin()
        watch.run("two counters", 3)
    return watch


@contextmanager
def filled(count: int) -> Iterator[None]:
    """While a member is opened, its group has this many more: the kernel answers as for a smaller PMU."""
    plain_open = perf_events._perf_event_open

    def opening(code: EventCode, pid: int, cpu: int, group: int, flags: int) -> int:
        fillers: list[int] = []
        try:
            if group >= 0:
                filler = EventCode(RAW, INST_RETIRED)
                fillers = [plain_open(filler, pid, cpu, group, flags) for _ in range(count)]
            return plain_open(code, pid, cpu, group, flags)
        finally:
            for fd in fillers:
                os.close(fd)

    with mock.patch.object(perf_events, "_perf_event_open", opening):
        yield


def written_late(stack: ExitStack) -> Watch:
    """cgroup.subtree_control is written for the first time since boot while perphd runs. Only once in a boot."""
    app = stack.enter_context(group("app"))
    stack.enter_context(spinner(app, 0))
    watch = Watch(("app",))
    watch.begin()
    watch.run("unseen", 3)
    (ROOT / "cgroup.subtree_control").write_text("+cpu")
    watch.run("seen", 12)
    return watch


def daemon_restart(stack: ExitStack) -> list[Row]:
    """The whole daemon, observing an LRA without SLI; stopped, and started again when the LRA is on another CPU."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
    app = stack.enter_context(group("app"))
    # As dear as a processor of its own: what perphd and this script use is not to be the LRA's contention.
    process = stack.enter_context(spinner(app, 1))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "perphd.toml")
        config.write_text(
            f'[daemon]\nstate_dir = "{folder}/state"\nsocket = "{folder}/s"\nperiod_s = 1.0\n'
            '[[lra]]\nname = "app"\ncgroup = "/app"\n'
        )
        for life, cpu in (("first", 1), ("second", 0)):
            os.sched_setaffinity(process.pid, {cpu})
            began_s = time.time()
            daemon = subprocess.Popen(
                [sys.executable, "-c", START, "run", "--config", str(config)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            stack.callback(daemon.kill)
            _wait_for(Path(folder, "s"), daemon)
            time.sleep(LIFE_S)
            daemon.terminate()
            _, said = daemon.communicate(timeout=120)
            if daemon.returncode:
                raise RuntimeError(f"perphd ended with {daemon.returncode}: {said.decode()[-2000:]}")
            rows += told(Path(folder, "state", "perphd.db"), life, began_s)
            if life == "first":
                os.sched_setaffinity(process.pid, {0})
                time.sleep(20.0)
    return rows


def _wait_for(socket: Path, daemon: subprocess.Popen[bytes]) -> None:
    """Until the daemon answers there: its start is slow on an emulated processor."""
    for _ in range(600):
        if socket.exists():
            return
        if daemon.poll() is not None:
            break
        time.sleep(0.5)
    daemon.kill()
    _, said = daemon.communicate()
    raise RuntimeError(f"perphd did not start: {said.decode()[-2000:]}")


def told(store: Path, life: str, since_s: float) -> list[Row]:
    """What the daemon has stored of a life: every sample, and the health that was decided at or before it."""
    with sqlite3.connect(store) as connection:
        samples = connection.execute(
            "SELECT at_s, mips, cpi, cpu_usage_cores, quality FROM samples WHERE wall_s >= ? ORDER BY at_s",
            (since_s,),
        ).fetchall()
        decisions = connection.execute(
            "SELECT at_s, health FROM decisions WHERE wall_s >= ? ORDER BY at_s", (since_s,)
        ).fetchall()
    rows: list[Row] = []
    for at_s, mips, cpi, usage, quality in samples:
        health = next((known for when, known in reversed(decisions) if when <= at_s), "none")
        flags = [flag for flag in quality.split(",") if flag]
        # Usage of the same sample, so that how well the store keeps both is seen as well.
        truth = 0.0 if usage is None else MIPS_PER_CORE * usage
        rows.append(
            {"label": life, "workload": "app", "least": truth, "most": truth, "mips": mips, "cpi": cpi}
            | {"quality": flags, "health": health}
        )
    return rows


SCENES: Final = MappingProxyType(
    {
        scene.__name__: scene
        for scene in (
            written_late,
            plain,
            foreign_events,
            group_beside,
            restart_gap,
            pinned_on_one_cpu,
            all_pinned,
            hotplug,
            small_pmu,
        )
    }
)


def main() -> None:
    # Nothing comes between the moments at which one sample's files and counters are read.
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(10))
    os.sched_setaffinity(0, {(os.cpu_count() or 1) - 1})
    with ExitStack() as stack:
        if sys.argv[1] == daemon_restart.__name__:
            rows = daemon_restart(stack)
        else:
            watch = SCENES[sys.argv[1]](stack)
            rows = watch.rows
            watch.close()
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
