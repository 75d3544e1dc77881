"""Keep over a restart: what is in force stays until somebody decides; what ended otherwise is given back."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perphd.domain.allocation import IoLimit, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.systemd_jobs import is_restarting, own_unit
from perphd.isolation import Executor, Journal, restore
from tests.unit.host_tree import write_tree
from tests.unit.isolation_kernel import FakeKernel

SPECS = [WorkloadSpec("pi", Kind.BATCH, "/pi"), WorkloadSpec("db", Kind.LRA, "/db")]
TARGETS = {
    "pi": Settings(cpus=CpuSet.of([3]), cpu_weight=10, io_max=(IoLimit("8:0", read_bytes=1 << 20),)),
    "db": Settings(memory_low_bytes=1 << 20),
}


@pytest.fixture
def kernel() -> FakeKernel:
    found = FakeKernel("v2")
    for group in ("/pi", "/db"):
        found.mkdir(group)
    return found


async def ended(kernel: FakeKernel, state: Path, *, kept: bool) -> None:
    with Journal(state, boot_id="boot") as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
        assert (await executor.apply(executor.plan(TARGETS, SPECS, 0.0))).ok
        if kept:
            executor.keep()


async def test_what_was_kept_stays_until_somebody_decides(kernel: FakeKernel, tmp_path: Path) -> None:
    before = kernel.texts()
    await ended(kernel, tmp_path, kept=True)
    in_force = kernel.texts()
    report = restore(kernel, tmp_path, boot_id="boot", but={"pi", "db"})
    assert not report
    assert kernel.texts() == in_force
    with Journal(tmp_path, boot_id="boot") as journal:
        assert not journal.take_kept(), "once is enough"
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False, adopt_s=60.0)
        assert not executor.plan({}, SPECS, 1000.0)
        assert executor.in_force("pi") == TARGETS["pi"], "and it is known"
        assert (await executor.apply(executor.plan({"pi": Settings(cpu_weight=20)}, SPECS, 1010.0))).ok
        assert executor.in_force("pi") == Settings(cpu_weight=20), "decided"
        assert executor.in_force("db") == TARGETS["db"], "not yet"
        assert (await executor.apply(executor.plan({}, SPECS, 1060.0))).ok
        assert not executor.conflicts()
    after = kernel.texts()
    assert {path for path, text in before.items() if after[path] != text} == {"/sys/fs/cgroup/pi/cpuset.cpus"}


async def test_a_change_of_mode_ends_what_was_kept(kernel: FakeKernel, tmp_path: Path) -> None:
    await ended(kernel, tmp_path, kept=True)
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False, adopt_s=60.0)
        assert not executor.plan({}, SPECS, 0.0)
        executor.forget_conflicts()
        assert executor.plan({}, SPECS, 1.0)


async def test_workloads_that_are_not_enforced_any_more_keep_nothing(
    kernel: FakeKernel, tmp_path: Path
) -> None:
    await ended(kernel, tmp_path, kept=True)
    report = restore(kernel, tmp_path, boot_id="boot", but={"db"})
    assert {file.workload for file in report.restored} == {"pi"}
    assert kernel.read("/sys/fs/cgroup/db/memory.low") == f"{1 << 20}\n".encode()


async def test_a_daemon_that_was_killed_has_kept_nothing_on_purpose(
    kernel: FakeKernel, tmp_path: Path
) -> None:
    await ended(kernel, tmp_path, kept=False)
    report = restore(kernel, tmp_path, boot_id="boot", but={"pi", "db"})
    assert {file.workload for file in report.restored} == {"pi", "db"}
    await ended(kernel, tmp_path, kept=True)
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
        assert (await executor.apply(executor.plan({"pi": Settings(cpu_weight=5)}, SPECS, 0.0))).ok
    assert restore(kernel, tmp_path, boot_id="boot", but={"pi", "db"}).restored, "it did more, and died"


async def test_an_operators_restore_gives_back_what_was_kept(kernel: FakeKernel, tmp_path: Path) -> None:
    await ended(kernel, tmp_path, kept=True)
    assert restore(kernel, tmp_path, boot_id="boot").complete
    assert kernel.read("/sys/fs/cgroup/pi/cpu.weight") == b"100\n"


OWN = {"/proc/self/cgroup": "0::/system.slice/perphd.service", "/run/systemd/system/": ""}


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ("123 perphd.service restart running\n", True),
        ("123 perphd.service stop running\n", False),
        ("5 other.service restart running\n6 perphd.service.d start waiting\n", False),
        ("", False),
    ],
)
def test_a_restart_is_told_from_a_stop(tmp_path: Path, jobs: str, expected: bool) -> None:
    fs = write_tree(tmp_path, OWN)
    assert own_unit(fs) == "perphd.service"
    assert is_restarting(fs, lambda *_, **__: SimpleNamespace(stdout=jobs)) is expected


def test_what_cannot_be_asked_is_no_restart(tmp_path: Path) -> None:
    def hangs(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("systemctl", 3)

    assert not is_restarting(write_tree(tmp_path / "a", OWN), hangs)
    never = write_tree(tmp_path / "b", {"/proc/self/cgroup": "0::/user.slice/x.scope"})
    assert not is_restarting(never, hangs)
