"""The running kernel through perphd.host: what it says agrees with what other sources say of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Denied, Gone, KernelError, Unsupported
from perphd.domain.reading import Unavailable, available
from perphd.host.capabilities import probe
from perphd.host.catalogue import list_cgroups, suggest
from perphd.host.cgroup import Hierarchies, discover
from perphd.host.fs import RealFs, read_text
from perphd.host.perf_event_types import HARDWARE_EVENTS, SOFTWARE_EVENTS, PerfEventKind
from perphd.host.perf_events import open_group, probe_events
from perphd.host.psi import PSI_OFF, Pressure, PsiTrigger, pressure_at
from perphd.host.schedstat import RunDelay, RunDelayReader
from perphd.host.taskstats import TaskStats, open_taskstats
from perphd.host.topology import read_topology

FS = RealFs()
GROUP = f"/perphd-test-host-{os.getpid()}"


def _fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def _made(directory: str) -> Iterator[str]:
    os.mkdir(directory)
    try:
        yield directory
    finally:
        with suppress(FileNotFoundError):
            os.rmdir(directory)


@pytest.fixture
def hierarchies() -> Hierarchies:
    return discover(FS)


@pytest.fixture
def group(hierarchies: Hierarchies) -> Iterator[str]:
    """A cgroup of our own in the unified tree."""
    assert hierarchies.unified is not None
    with _made(hierarchies.unified.path(GROUP)) as directory:
        yield directory


def _burn_in(directory: str, cpu_seconds: float, processes: int = 1) -> None:
    """Let processes use that much CPU each inside this cgroup, and wait until they are gone from it."""
    code = (
        "import os, sys, time\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "while time.process_time() < float(sys.argv[2]): pass\n"
    )
    command = [sys.executable, "-S", "-c", code, directory, str(cpu_seconds)]
    started = [subprocess.Popen(command) for _ in range(processes)]
    assert [process.wait() for process in started] == [0] * processes


# --- topology, capabilities ----------------------------------------------------------------------------------


def test_topology_agrees_with_the_c_library_and_psutil() -> None:
    found = read_topology(FS)
    assert len(found.online) == os.cpu_count()
    assert sum(len(core.cpus) for core in found.cores) == os.cpu_count()
    assert psutil.cpu_count(logical=False) in (len(found.cores), None)
    assert found.memory_bytes == psutil.virtual_memory().total
    for domain in found.l3_domains:
        assert domain.cpus <= found.online
        assert domain.size_bytes > 0


def test_the_report_is_complete_and_leaves_nothing_open(hierarchies: Hierarchies) -> None:
    before = _fds()
    found = probe(FS, hierarchies)
    assert _fds() == before
    assert found.has("cgroup") == bool(hierarchies.all())
    assert found.has("systemd") == (read_text(FS, "/proc/1/comm") == "systemd")
    for item in found:
        assert item.present or (item.detail and item.cost and item.remedy), item.name


# --- performance events --------------------------------------------------------------------------------------


@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v2
def test_software_events_count_what_ran_in_the_group(group: str) -> None:
    support = probe_events(group)
    if not set(SOFTWARE_EVENTS) <= set(support.supported):
        pytest.skip(f"needs software events per cgroup: {next(iter(support.missing.values()))}")
    before = _fds()
    cpus = read_topology(FS).online
    with open_group(group, cpus, SOFTWARE_EVENTS) as counters:
        assert counters.fds == len(cpus) * len(SOFTWARE_EVENTS)
        assert not counters.lost_cpus
        assert set(counters.read().values()) == {0.0}
        _burn_in(group, 0.1)
        found = counters.read()
        used_ns = 1000 * int(read_text(FS, f"{group}/cpu.stat").split()[1])
        clock_ns = found[PerfEventKind.TASK_CLOCK_NS]
        assert available(clock_ns)
        assert clock_ns == pytest.approx(used_ns, rel=0.25)
        faults = found[PerfEventKind.PAGE_FAULTS]
        assert available(faults)
        assert faults > 0
        assert not counters.starved_cpus
        assert counters.read() == found, "nothing runs in the group any more"
    assert _fds() == before


@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v2
def test_hardware_events_count_or_say_that_there_is_no_pmu(group: str) -> None:
    support = probe_events(group)
    for kind in HARDWARE_EVENTS:
        if kind in support.supported:
            continue
        refusal = support.missing[kind]
        assert isinstance(refusal, Unsupported | Denied)
        assert kind.label in str(refusal)
        assert refusal.advice
    if PerfEventKind.INSTRUCTIONS in support.supported:
        with open_group(group, read_topology(FS).online, (PerfEventKind.INSTRUCTIONS,)) as counters:
            _burn_in(group, 0.05)
            instructions = counters.read()[PerfEventKind.INSTRUCTIONS]
            assert available(instructions)
            assert instructions > 1e6


@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v2
def test_a_refused_group_leaves_nothing_open(group: str, tmp_path: Path) -> None:
    before = _fds()
    cpu = CpuSet.of([min(os.sched_getaffinity(0))])
    with pytest.raises(Gone):
        open_group(f"{group}/missing", cpu, SOFTWARE_EVENTS)
    with pytest.raises(KernelError, match=r"EBADF.*not a cgroup"):
        open_group(str(tmp_path), cpu, SOFTWARE_EVENTS)
    missing = [kind for kind in HARDWARE_EVENTS if kind in probe_events(group).missing]
    if missing:
        with pytest.raises(Unsupported):
            open_group(group, cpu, (*SOFTWARE_EVENTS, missing[0]))
    assert _fds() == before


# --- pressure ------------------------------------------------------------------------------------------------


def _needs_psi(path: str) -> None:
    found = pressure_at(FS, path)
    if isinstance(found, Unavailable):
        pytest.skip(f"needs PSI: {found.reason}")


def test_system_pressure_is_read_or_said_to_be_off() -> None:
    found = pressure_at(FS, "/proc/pressure/memory")
    assert isinstance(found, Pressure) or found is PSI_OFF or "does not exist" in found.reason


@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v2
async def test_a_trigger_fires_under_contention_and_ends_with_its_cgroup(group: str) -> None:
    _needs_psi(f"{group}/cpu.pressure")
    before = _fds()
    pressed, gone = asyncio.Event(), asyncio.Event()
    with PsiTrigger(f"{group}/cpu.pressure", pressed.set, gone.set, threshold_us=20_000) as trigger:
        pin = min(os.sched_getaffinity(0))
        work = asyncio.create_task(asyncio.to_thread(_contend, group, pin))
        await asyncio.wait_for(pressed.wait(), 30)
        await work
        assert not gone.is_set()

        os.rmdir(group)
        await asyncio.wait_for(gone.wait(), 30)
        assert trigger.closed
    assert _fds() <= before + 2, "only the loop's own thread pool may have grown"


def _contend(directory: str, cpu: int) -> None:
    """Two processes on one CPU: each waits for the other."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})  # of this thread; its children inherit it
    try:
        _burn_in(directory, 0.3, processes=2)
    finally:
        os.sched_setaffinity(0, own)


@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v2
async def test_closing_a_trigger_leaves_nothing_open(group: str) -> None:
    _needs_psi(f"{group}/cpu.pressure")
    before = _fds()
    for _ in range(20):
        PsiTrigger(f"{group}/cpu.pressure", print, print).close()
    assert _fds() == before


# --- run-queue delay -----------------------------------------------------------------------------------------


@contextmanager
def _waiting_threads(count: int) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _taskstats(stack: ExitStack) -> TaskStats:
    found = open_taskstats(os.getpid())
    if isinstance(found, Unavailable):
        pytest.skip(f"needs taskstats: {found.reason}")
    stack.callback(found.close)
    return found


def test_schedstat_follows_every_thread_of_this_process() -> None:
    if not FS.exists("/proc/self/schedstat"):
        pytest.skip("needs /proc/PID/schedstat (CONFIG_SCHED_INFO)")
    before = _fds()
    with _waiting_threads(10):
        reader = RunDelayReader(FS)
        reader.update([os.getpid()])
        found = reader.read()
        assert isinstance(found, RunDelay)
        assert found.present == found.followed == reader.fds == len(os.listdir("/proc/self/task"))
    # A joined thread is gone for Python a moment before it is for the kernel.
    left = -1
    for _ in range(1000):
        after = reader.read()
        assert isinstance(after, RunDelay)
        assert after.delay_ns >= 0
        left = after.followed
        if left == found.followed - 10:
            break
        time.sleep(0.01)
    assert left == found.followed - 10
    reader.close()
    assert _fds() == before


def test_taskstats_agree_with_the_sum_over_threads() -> None:
    with ExitStack() as stack, _waiting_threads(10):
        taskstats = _taskstats(stack)
        child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        stack.callback(child.communicate)
        # The child soon sleeps; then nothing moves between the two ways of reading.
        one, threads = -1, -2
        for _ in range(1000):
            one = taskstats.run_delay_ns(child.pid)
            threads = sum(
                int(read_text(FS, f"/proc/{child.pid}/task/{tid}/schedstat").split()[1])
                for tid in os.listdir(f"/proc/{child.pid}/task")
            )
            if one == threads:
                break
            time.sleep(0.01)
        assert one == threads


def test_taskstats_count_threads_that_have_ended() -> None:
    with ExitStack() as stack:
        taskstats = _taskstats(stack)
        with _waiting_threads(20):
            alive = taskstats.run_delay_ns(os.getpid())
        assert taskstats.run_delay_ns(os.getpid()) >= alive
        with pytest.raises(Gone, match="ESRCH"):
            taskstats.run_delay_ns(2**22 + 1)


# --- names ---------------------------------------------------------------------------------------------------


@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v1("cpu")
def test_groups_of_v1_are_found_with_cgroupspy(hierarchies: Hierarchies) -> None:
    cpu = hierarchies.of("cpu")
    assert cpu is not None
    with _made(cpu.path(GROUP)), _made(cpu.path(f"{GROUP}/a b.service")):
        entries = list_cgroups(FS, hierarchies, 100_000)
        ours = [entry for entry in entries if entry.path.startswith(GROUP)]
        assert [entry.path for entry in ours] == [GROUP, f"{GROUP}/a b.service"]
        assert not any(entry.populated for entry in ours)
        assert suggest(f"{GROUP}/ab.service", entries)[0] == f"{GROUP}/a b.service"


@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v2
def test_groups_of_v2_are_found(group: str, hierarchies: Hierarchies) -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        FS.write(f"{group}/cgroup.procs", str(child.pid).encode())
        found = {entry.path: entry for entry in list_cgroups(FS, hierarchies, 100_000)}
        assert found[GROUP].processes == 1
        assert found[GROUP].populated
    finally:
        child.communicate()
