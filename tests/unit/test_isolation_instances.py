"""Several perphds on one kernel: nobody takes another's value for an original, and nothing that is kept is lost."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from posixpath import dirname
from typing import cast

import pytest

from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Busy, KernelError
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.fs import KernelFs
from perphd.isolation import Applied, Executor, Journal, instances
from perphd.isolation.instances import (
    Instance,
    InstanceRegister,
    OtherInstances,
    open_originals,
    orphaned_journals,
)
from perphd.isolation.journal import FILE, this_boot
from perphd.isolation.journal_format import COPY, Original
from perphd.isolation.refusals import TRIES_AT_ONCE
from perphd.isolation.restore import restore, restore_each
from tests.unit.isolation_kernel import FakeKernel

JOB = WorkloadSpec("job", Kind.BATCH, "/job")
SHARES = "/sys/fs/cgroup/cpu/job/cpu.shares"


def weight(value: int) -> dict[str, Settings]:
    return {"job": Settings(cpu_weight=value)}


@pytest.fixture
def kernel() -> FakeKernel:
    made = FakeKernel("v1")
    made.mkdir("/job")
    made.mkdir("/job2")
    return made


@pytest.fixture
def register(tmp_path: Path) -> InstanceRegister:
    return InstanceRegister(str(tmp_path / "run" / "journals"))


class Perphd:
    """An executor with a state directory of its own, known to the others."""

    def __init__(self, kernel: FakeKernel, state: Path, register: InstanceRegister, config: str = "") -> None:
        self.state, self.slept = str(state), 0
        self.neighbours = OtherInstances(self.state, kernel, kernel.hierarchies, register, sleep=self._sleep)
        self.journal = Journal(state, guard=self.neighbours.recording)
        self.neighbours.enter(config)
        self.executor = Executor(
            kernel,
            kernel.hierarchies,
            self.journal,
            in_thread=False,
            refuse=self.neighbours.refusal,
            on_plan=self.neighbours.look,
        )

    def _sleep(self, seconds: float) -> None:
        self.slept += 1

    async def set(self, value: int, spec: WorkloadSpec = JOB) -> Applied:
        return await self.executor.apply(self.executor.plan({spec.name: Settings(cpu_weight=value)}, [spec]))

    async def stop(self, give_back: bool = True) -> None:
        if give_back:
            assert (await self.executor.restore()).complete
        self.close()

    def close(self) -> None:
        self.executor.close()
        self.neighbours.close()
        self.journal.close()

    def die(self) -> None:
        self.executor.close()
        self.journal.close()


Start = Callable[..., Perphd]


@pytest.fixture
def start(kernel: FakeKernel, tmp_path: Path, register: InstanceRegister) -> Start:
    return lambda name, config="": Perphd(kernel, tmp_path / name, register, config)


# -- one group, one perphd -----------------------------------------------------------------------------------------


async def test_what_another_has_set_is_no_original(kernel: FakeKernel, start: Start) -> None:
    first, second = start("first"), start("second")
    assert (await first.set(50)).written
    mine = kernel.read(SHARES)
    assert not (await second.set(20)).written
    assert kernel.read(SHARES) == mine
    _, refused = second.executor.enforceable(JOB)
    reasons = {item.reason for item in refused}
    assert len(reasons) == 1
    reason = reasons.pop()
    assert f"{first.state} (process {os.getpid()})" in reason
    assert f"perphd restore --state-dir {first.state}" in reason
    assert not first.neighbours.refusal("/job")
    assert (await second.set(20, WorkloadSpec("other", Kind.BATCH, "/job2"))).written, (
        "its own group is its own"
    )
    await first.stop()
    assert (await second.set(20)).written, "given back: it is free"
    await second.stop()
    assert kernel.read(SHARES) == b"1024\n"


async def test_of_two_that_begin_at_once_one_is_refused_and_writes_nothing(
    kernel: FakeKernel, start: Start
) -> None:
    first, second = start("first"), start("second")
    plans = [(one, one.executor.plan(weight(value), [JOB])) for one, value in ((first, 50), (second, 20))]
    done = [await one.executor.apply(plan) for one, plan in plans]
    assert done[0].ok
    assert isinstance(done[1].failed, Busy)
    assert first.state in str(done[1].failed)
    assert not second.journal.originals
    assert not second.executor.plan(weight(30), [JOB]), "known from now on"
    await second.stop()
    await first.stop()
    assert kernel.read(SHARES) == b"1024\n"


async def test_what_a_dead_one_left_is_known_and_ends_with_its_group_or_its_restore(
    kernel: FakeKernel, start: Start
) -> None:
    dead, second = start("dead"), start("second")
    assert (await dead.set(50)).ok
    dead.die()
    assert not (await second.set(20)).written
    kernel.rmdir("/job")
    kernel.mkdir("/job")
    assert (await second.set(20)).written, "another group of the same path"
    await second.stop()
    assert kernel.read(SHARES) == b"1024\n"


async def test_one_that_is_stuck_while_it_records_is_not_waited_for_for_ever(
    start: Start, register: InstanceRegister
) -> None:
    perphd = start("first")
    fd = os.open(f"{register.directory}/lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    done = await perphd.set(50)
    os.close(fd)
    assert isinstance(done.failed, Busy)
    assert perphd.slept > 1
    assert not perphd.journal.originals
    perphd.close()


async def test_without_a_register_nobody_is_known_and_nothing_is_held_back(
    kernel: FakeKernel, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    nowhere = InstanceRegister(str(tmp_path / "file" / "run" / "journals"))
    with pytest.raises(KernelError, match="other instances cannot see"):
        Perphd(kernel, tmp_path / "first", nowhere)
    neighbours = OtherInstances(str(tmp_path / "state"), kernel, kernel.hierarchies, nowhere)
    assert not neighbours.refusal("/job")
    with neighbours.recording([]):
        pass


async def test_one_group_of_anothers_below_a_workload_keeps_only_that_knob_from_being_set(
    kernel: FakeKernel, start: Start
) -> None:
    for cgroup in ("/db", "/db/old"):
        kernel.mkdir(cgroup)
    first, second = start("first"), start("second")
    old = WorkloadSpec("old", Kind.BATCH, "/db/old")
    first_plan = first.executor.plan({"old": Settings(cpu_weight=50)}, [old])
    assert (await first.executor.apply(first_plan)).ok
    db = WorkloadSpec("db", Kind.LRA, "/db")
    wanted = {"db": Settings(cpus=CpuSet.of([0])), "job": Settings(cpu_weight=20)}
    for _ in range(TRIES_AT_ONCE + 1):
        await second.executor.apply(second.executor.plan(wanted, [db, JOB]))
    assert second.executor.in_force("job") == wanted["job"]
    assert second.executor.in_force("db") == UNTOUCHED
    reasons = " ".join(item.reason for item in second.executor.not_enforceable("db"))
    assert "/db/old is changed by the perphd with the state directory" in reasons
    await second.stop()
    await first.stop()


# -- the register --------------------------------------------------------------------------------------------------


def test_who_is_in_the_register(tmp_path: Path, register: InstanceRegister) -> None:
    states = [str(tmp_path / name) for name in ("a", "b", "c")]
    for state in states:
        os.mkdir(state)
    assert register.entries() == ()
    register.enter(states[0], "/etc/perphd.toml")
    register.enter(states[1], "/etc/../etc/perphd.toml")
    register.enter(states[2], "")
    assert set(register.of_config("/etc/perphd.toml")) == set(states[:2])
    assert {entry.state_dir for entry in register.others(states[0])} == set(states[1:])
    os.symlink(states[0], tmp_path / "link")
    assert {entry.state_dir for entry in register.others(str(tmp_path / "link"))} == set(states[1:])
    register.forget(states[1])
    register.forget(states[1])
    assert register.of_config("/etc/perphd.toml") == (states[0],)
    for name, text in (("x", "{"), ("y", "[]"), ("z", '{"state_dir": 1, "config": ""}')):
        Path(register.directory, f"{name}.json").write_text(text)
    shutil.rmtree(states[2])
    register.enter(states[0], "/other.toml")
    mine = os.getpid()
    left = {Instance(states[0], "/other.toml", mine), Instance(states[2], "", mine)}
    assert set(register.entries()) == left, "what is not seen here may be seen by others"
    assert [entry.state_dir for entry in register.entries() if entry.is_hidden] == [states[2]]
    Path(register.directory, "old.json").write_text('{"state_dir": "/old", "config": ""}')
    assert Instance("/old", "") in register.entries(), "whose process is not told"
    assert os.stat(register.directory).st_mode & 0o777 == 0o700


async def test_what_is_on_record_is_read_without_the_lock_and_from_either_file(
    start: Start, tmp_path: Path
) -> None:
    perphd = start("first")
    assert (await perphd.set(50)).ok
    found = set(perphd.journal.originals)
    state = tmp_path / "first"
    assert set(open_originals(str(state))) == found
    with (state / FILE).open("a") as file:
        file.write('{"kind":"closed","pa')
    assert set(open_originals(str(state))) == found, "a line that is just being written"
    perphd.die()
    (state / FILE).write_text("damaged\n")
    assert set(open_originals(str(state))) == found
    text = (state / COPY).read_text()
    shutil.rmtree(state)
    assert not open_originals(str(state))
    Journal(state, boot_id="another").close()
    (state / FILE).write_text(text.replace(this_boot(), "another"))
    assert not open_originals(str(state)), "the header's checksum does not hold"


async def test_values_of_another_boot_are_nobodys(start: Start, tmp_path: Path) -> None:
    with Journal(tmp_path / "old", boot_id="another boot") as journal:
        perphd = start("first")
        assert (await perphd.set(50)).ok
        journal.record(perphd.journal.originals.values())
        assert not open_originals(str(tmp_path / "old"))
        perphd.close()


# -- giving back what is elsewhere ---------------------------------------------------------------------------------


async def test_what_is_given_back_at_the_start(
    kernel: FakeKernel, start: Start, register: InstanceRegister
) -> None:
    config = "/etc/perphd/perphd.toml"
    by_config, by_group, unrelated = start("a", config), start("b"), start("c")
    other = WorkloadSpec("other", Kind.BATCH, "/job2")
    third = WorkloadSpec("third", Kind.BATCH, "/job3")
    kernel.mkdir("/job3")
    assert (await by_config.set(50)).written
    assert (await by_group.set(50, other)).written
    assert (await unrelated.set(50, third)).written
    for perphd in (by_config, by_group, unrelated):
        await perphd.stop(give_back=False)
    empty = start("d", config)
    empty.die()
    own = unrelated.state + "-own"
    found = orphaned_journals(own, config, kernel.hierarchies, ["/job2"], register)
    assert set(found) == {by_config.state, by_group.state}
    assert orphaned_journals(by_config.state, config, kernel.hierarchies, [], register) == ()
    assert orphaned_journals(own, "", kernel.hierarchies, ["/job", "/none"], register) == (by_config.state,)


async def test_several_state_directories_are_restored_as_one(kernel: FakeKernel, start: Start) -> None:
    first, second = start("a"), start("b")
    assert (await first.set(50)).written
    assert (await second.set(50, WorkloadSpec("other", Kind.BATCH, "/job2"))).written
    before = kernel.read(SHARES)
    first.die()
    report = restore_each(kernel, (first.state, second.state))
    assert kernel.read(SHARES) == b"1024\n" != before
    assert [file.path for file in report.restored] == [SHARES]
    assert [file.path for file in report.failed] == [f"{second.state}/{FILE}"]
    assert f"process {os.getpid()}" in str(report)
    await second.stop()
    assert restore_each(kernel, (first.state, second.state)).complete


async def test_who_has_given_everything_back_is_forgotten(
    kernel: FakeKernel, start: Start, register: InstanceRegister, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["perphd.isolation.restore"]
    monkeypatch.setattr(module, "is_running_kernel", lambda fs: True)
    monkeypatch.setattr(module, "EgressFs", lambda fs, hierarchies, **_: fs)
    monkeypatch.setattr(module, "_swept", lambda *_: ())
    monkeypatch.setattr(module, "InstanceRegister", lambda: register)
    perphd = start("first")
    assert (await perphd.set(50)).written
    await perphd.stop(give_back=False)
    assert register.entries(), "kept: the others must know"
    kernel.set(SHARES, "77")
    again = start("first")
    again.executor.keep()
    again.die()
    assert not restore(kernel, perphd.state, but={"job"})
    assert register.entries(), "still kept"
    report = restore(kernel, perphd.state)
    assert report.foreign
    assert not register.entries(), "what others have set since is not perphd's, and holds nobody up"


def test_traffic_classes_on_anothers_record_are_not_swept(
    tmp_path: Path, register: InstanceRegister, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Swept:
        def __init__(self) -> None:
            self.swept: list[bool] = []

        def sweep(self) -> None:
            self.swept.append(True)

    module = sys.modules["perphd.isolation.restore"]
    monkeypatch.setattr(module, "EgressFs", Swept)
    monkeypatch.setattr(module, "is_egress", lambda path: path == "/egress/job/class")
    fs, other, own = Swept(), str(tmp_path / "other"), str(tmp_path / "own")
    with Journal(other) as journal:
        journal.record([Original("/egress/job/class", b"none\n", (1, 2), "egress_max", "job")])
        register.enter(other, "")
        assert not module._swept(cast(KernelFs, fs), register, own, {})
        assert not fs.swept
        journal.close_out(["/egress/job/class"])
    assert not module._swept(cast(KernelFs, fs), register, own, {})
    assert fs.swept


def test_records_that_have_not_changed_are_not_read_again(
    kernel: FakeKernel, tmp_path: Path, register: InstanceRegister, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(state_dir: str) -> Mapping[str, Original]:
        read.append(state_dir)
        return open_originals(state_dir)

    monkeypatch.setattr(instances, "open_originals", counted)
    now_ns = [time.time_ns()]
    one = OtherInstances(
        str(tmp_path / "one"), kernel, kernel.hierarchies, register, wall_clock_ns=lambda: now_ns[0]
    )
    other = tmp_path / "other"
    with Journal(other, boot_id=this_boot()) as journal:
        register.enter(str(other), "")
        journal.record([Original(SHARES, b"1024\n", kernel.identity(dirname(SHARES)), "cpu_weight", "job")])
        for _ in range(3):
            one.look()
        assert len(read) == 3, "so young that it may change once more and look the same"
        now_ns[0] += 10_000_000_000
        for _ in range(3):
            one.look()
        assert len(read) == 4
        assert str(other) in one.refusal("/job")
        journal.close_out([SHARES])
        os.utime(other / "originals.jsonl", ns=(now_ns[0], now_ns[0]))
        one.look()
        assert not one.refusal("/job")
