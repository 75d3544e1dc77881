"""One record per knob: what it holds, in which order it is reported, and when it is forgotten."""

from __future__ import annotations

import errno
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.backoff import BackoffRule
from perphd.domain.errors import Busy
from perphd.domain.plan import NotEnforceable, Stage, Write
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.egress_fs import MOUNT, EgressFs, with_egress
from perphd.isolation import Executor, Journal
from perphd.isolation.backends import Backends
from perphd.isolation.knob_states import KnobStates
from tests.unit.isolation_systemd import FakeSystemd
from tests.unit.network_fakes import FakePrograms, FakeTc

WEIGHT, QUOTA = ("pi", "cpu_weight"), ("pi", "cpu_max_cores")
TARGETS = {"pi": Settings(cpu_weight=10, cpu_max_cores=1.0)}


def _write(key: tuple[str, str]) -> Write:
    return Write(*key, f"/{key[1]}", "1", "2", Stage.SHRINK)


def test_a_plan_replaces_what_the_last_one_reported_and_nothing_else() -> None:
    knobs = KnobStates()
    knobs.set(WEIGHT, 10)
    knobs.planned(
        TARGETS, [_write(WEIGHT)], [NotEnforceable(*QUOTA, "refused")], [NotEnforceable(*WEIGHT, "half")]
    )
    assert knobs.blocked("pi") == ("cpu_weight", "cpu_max_cores"), "in the order of Settings"
    assert [left.reason for left in knobs.not_enforceable("pi")] == ["refused"]
    assert [left.reason for left in knobs.limited("pi")] == ["half"]
    assert knobs.pending("pi") == {"cpu_weight"}
    knobs.written([WEIGHT, ("gone", "cpus")])
    assert not knobs.pending("pi")
    knobs.planned(TARGETS, [], [], [])
    assert not knobs.blocked("pi")
    assert not knobs.not_enforceable("pi")
    assert not knobs.limited("pi")
    assert knobs.in_force("pi") == Settings(cpu_weight=10)


def test_a_change_of_targets_is_pending_until_a_plan_has_them() -> None:
    knobs, spec = KnobStates(), WorkloadSpec("pi", Kind.BATCH, "/pi")
    knobs.planned(TARGETS, [], [], [])
    for _ in range(3):
        knobs.waiting({"pi": Settings(cpu_weight=11, cpu_max_cores=1.0)}, [spec])
        assert knobs.pending("pi") == {"cpu_weight"}
    assert len(knobs._reported) == 1, "a write that is stuck for hours fills no memory"
    knobs.planned(TARGETS, [], [], [])
    assert not knobs.pending("pi")


def test_workloads_without_targets_are_kept_only_while_something_is_known_of_them() -> None:
    knobs = KnobStates()
    knobs.planned(TARGETS, [_write(WEIGHT)], [], [])
    knobs.interfered(("db", "cpus"), "/db/cpuset.cpus", found="0", expected="1")
    knobs.planned({}, [], [], [])
    assert not list(knobs.all("pi"))
    assert [conflict.workload for conflict in knobs.conflicts] == ["db"]
    knobs.forget("db")
    assert not knobs.conflicts


def test_the_second_interference_yields_the_knob() -> None:
    knobs = KnobStates()
    for yielded in (False, True):
        knobs.interfered(WEIGHT, "/pi/cpu.weight", found="7", expected="10")
        assert (knobs.yielded(WEIGHT) is not None) is yielded


def test_what_is_given_back_is_neither_pending_nor_in_force() -> None:
    knobs = KnobStates()
    for key in (WEIGHT, ("db", "cpu_weight")):
        knobs.set(key, 10)
    knobs.planned({**TARGETS, "db": UNTOUCHED}, [_write(WEIGHT)], [], [])
    knobs.given_back(frozenset({"pi"}))
    assert knobs.in_force("pi") == UNTOUCHED
    assert not knobs.blocked("pi")
    assert knobs.in_force("db") == Settings(cpu_weight=10)
    knobs.set(("db", "cpu_weight"), KEEP)
    assert knobs.in_force("db") == UNTOUCHED


@given(first=st.floats(0.1, 100), ratio=st.floats(1, 100), failures=st.integers(1, 20))
def test_pauses_double_up_to_the_longest(first: float, ratio: float, failures: int) -> None:
    rule, pause = BackoffRule(first, first * ratio), 0.0
    for _ in range(failures):
        pause = rule.after(pause)
    assert pause == min(first * 2.0 ** (failures - 1), first * ratio)


def test_each_file_has_the_backend_of_its_kind() -> None:
    systemd = FakeSystemd()
    systemd.start("job.service")
    at = "/sys/fs/cgroup"
    egress = EgressFs(
        systemd.fs(), with_egress(systemd.kernel.hierarchies), ("eth0",), tc=FakeTc, programs=FakePrograms()
    )
    for fs in (systemd.fs(), egress):
        backends = Backends(fs)
        unit = backends.of(f"{at}/system.slice/job.service/cpu.weight")
        assert unit.answers_late
        assert unit.persists(f"{at}/system.slice/job.service/cpu.weight")
        assert not unit.persists(f"{at}/system.slice/job.service/cgroup.freeze")
        plain = backends.of(f"{at}/pi/cpu.weight")
        assert not plain.answers_late
        assert not plain.persists(f"{at}/pi/cpu.weight")
    backends = Backends(egress)
    assert backends.of(f"{MOUNT}/pi/egress.max") is not backends.of(f"{at}/pi/cpu.weight")
    assert not Backends(systemd.kernel).of(f"{at}/system.slice/job.service/cpu.weight").answers_late


async def test_a_refused_direct_write_leaves_no_record_on_a_host_with_systemd(tmp_path: Path) -> None:
    """Only systemd may still carry out a request that failed; the kernel has answered."""
    systemd = FakeSystemd()
    systemd.kernel.mkdir("/pi")
    systemd.kernel.before_write = lambda number, path, text: errno.EBUSY
    with Journal(tmp_path, boot_id="boot") as journal:
        executor = Executor(systemd.fs(), systemd.kernel.hierarchies, journal, in_thread=False)
        spec = WorkloadSpec("pi", Kind.BATCH, "/pi")
        applied = await executor.apply(executor.plan({"pi": Settings(cpu_weight=10)}, [spec]))
        assert isinstance(applied.failed, Busy)
        assert not journal.originals
