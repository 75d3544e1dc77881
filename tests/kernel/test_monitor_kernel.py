"""The sampler on real cgroups: what it measures agrees with what the processes themselves were charged."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from perphd.domain.cpuset import CpuSet
from perphd.domain.reading import Unavailable, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.perf_events import open_group
from perphd.host.schedstat import RunDelayReader
from perphd.monitor.files import sampled_hierarchies
from perphd.monitor.sampler import Monitor

pytestmark = pytest.mark.requires_root

FS = RealFs()
HIERARCHIES = discover(FS)
SPEC = WorkloadSpec("mine", Kind.LRA, f"/perphd-test-monitor-{os.getpid()}")
ONLINE = CpuSet.of(sorted(os.sched_getaffinity(0)))

# Two threads' worth of work on one CPU, so that they wait for each other; then it sleeps and is only there.
_BURN = """
import os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.fork()
os.read(0, 1)
held = bytearray(32 << 20)
end = time.process_time() + 0.25
while time.process_time() < end:
    pass
os.write(1, b"done\\n")  # in one piece: two processes write to the same pipe
time.sleep(600)
"""


def directories() -> list[str]:
    return [tree.path(SPEC.cgroup) for tree in sampled_hierarchies(HIERARCHIES)]


def memory_is_controlled() -> bool:
    """On v2 a controller may be available and not enabled for a new group."""
    memory = HIERARCHIES.of("memory")
    return memory is not None and os.path.exists(memory.path(SPEC.cgroup, "memory.stat"))


def make() -> None:
    for directory in directories():
        os.mkdir(directory)


def remove() -> None:
    for directory in directories():
        for _ in range(100):  # killed processes are listed for a moment longer
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)
            else:
                break


@pytest.fixture
def group() -> Iterator[None]:
    try:
        make()
        yield
    finally:
        remove()


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    made = Monitor(
        FS,
        HIERARCHIES,
        cpus=ONLINE,
        opener=open_group,
        run_delay=lambda: RunDelayReader(FS),
        expected_period_s=10.0,
    )
    yield made
    made.close()


@contextmanager
def burning() -> Iterator[subprocess.Popen[str]]:
    """Two processes in the group that wait for a byte each before they burn."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BURN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while len(psutil.Process(process.pid).children()) < 1:
            time.sleep(0.01)
        for pid in (process.pid, psutil.Process(process.pid).children()[0].pid):
            for directory in directories():
                with open(f"{directory}/cgroup.procs", "w", encoding="ascii") as file:
                    file.write(str(pid))
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()


def one(monitor: Monitor, now_s: float) -> Sample:
    (sample,) = monitor.sample(now_s, [SPEC], {})
    return sample


@pytest.mark.usefixtures("group")
def test_measured_work_is_the_work_done(monitor: Monitor):
    with burning() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first = one(monitor, 0.0)
        assert first.quality == (Quality.FIRST,)
        assert not available(first.cpu_usage_cores)
        process.stdin.write("go")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == ["done\n"] * 2
        # Ten "seconds" on the scale that the monitor is told.
        sample = one(monitor, 10.0)
        assert sample.quality == ()
        assert sample.threads == 2.0
        assert available(sample.cpu_usage_cores)
        assert 0.5 <= sample.cpu_usage_cores * 10.0 < 1.5
        # The two shared one CPU and other people's work besides.
        assert available(sample.run_delay_cores)
        assert sample.run_delay_cores * 10.0 > 0.1
        assert isinstance(sample.work_rate_per_s, Unavailable)
        if memory_is_controlled():
            assert available(sample.memory_current_bytes)
            assert available(sample.memory_working_set_bytes)
            # The kernel adds up memory.stat in batches of each CPU: it may lag behind by some pages.
            lag_bytes = 1 << 20
            assert sample.memory_working_set_bytes >= (64 << 20) - lag_bytes
            assert sample.memory_working_set_bytes <= sample.memory_current_bytes + lag_bytes
        if HIERARCHIES.unified is not None and os.path.exists("/proc/pressure/cpu"):
            assert available(sample.cpu_some_pct)
            assert sample.cpu_some_pct > 0.0
            assert available(sample.memory_full_pct)
        if available(sample.context_switches_per_s):
            assert sample.context_switches_per_s > 0.0
        idle = one(monitor, 20.0)
        assert available(idle.cpu_usage_cores)
        assert idle.cpu_usage_cores * 10.0 < 0.1


def test_removal_and_return_of_a_real_cgroup(monitor: Monitor):
    descriptors = len(os.listdir("/proc/self/fd"))
    assert one(monitor, 0.0).quality == (Quality.GONE,)
    try:
        make()
        assert one(monitor, 1.0).quality == (Quality.FIRST,)
        assert monitor.open_fds > 0
        assert one(monitor, 2.0).quality == ()
        remove()
        gone = one(monitor, 3.0)
        assert gone.quality == (Quality.GONE,)
        assert SPEC.cgroup in str(gone.cpu_usage_cores)
        assert monitor.open_fds == 0
        assert len(os.listdir("/proc/self/fd")) == descriptors
        make()
        assert one(monitor, 4.0).quality == (Quality.RESTARTED, Quality.FIRST)
        assert one(monitor, 5.0).cpu_usage_cores == 0.0
        remove()
        make()
        assert one(monitor, 6.0).quality == (Quality.RESTARTED, Quality.FIRST)
    finally:
        remove()


@pytest.mark.usefixtures("group")
def test_descriptors_are_counted_and_given_back(monitor: Monitor):
    before = len(os.listdir("/proc/self/fd"))
    second = Monitor(FS, HIERARCHIES, cpus=ONLINE)
    for watching in (monitor, second):
        one(watching, 0.0)
    assert len(os.listdir("/proc/self/fd")) - before == monitor.open_fds + second.open_fds
    monitor.close()
    second.close()
    assert len(os.listdir("/proc/self/fd")) == before
