"""Groups made below a confined one (cgroup v1): what they copied is not theirs; those that go leave no trace."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path
from posixpath import basename, dirname
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.allocation import Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.isolation import Applied, Executor, Journal, restore
from perphd.isolation.backends.backend import Backend
from perphd.isolation.survey import BELOW_S
from tests.unit.isolation_kernel import FakeKernel

AT = "/sys/fs/cgroup/cpuset"
SPECS = (WorkloadSpec("db", Kind.LRA, "/db"), WorkloadSpec("pi", Kind.BATCH, "/pi"))
both = pytest.mark.parametrize("name", ["db", "pi"])


def cpus(*numbers: int) -> Settings:
    return Settings(cpus=CpuSet.of(numbers))


class Killed(BaseException):
    """The process ends here."""


class World:
    """A v1 host with an LRA and a batch group, each with one group below."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.kernel = FakeKernel("v1")
        for group in ("/db", "/db/old", "/pi", "/pi/old"):
            self.kernel.mkdir(group)
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.state, boot_id="boot")
        self.executor = Executor(self.kernel, self.kernel.hierarchies, self.journal, in_thread=False)

    def end(self) -> None:
        """As kill -9 does."""
        self.journal.close()

    def go(self, targets: dict[str, Settings], now_s: float = 0.0) -> Applied:
        changes = self.executor.plan(targets, SPECS, now_s)
        return asyncio.run(self.executor.apply(changes))

    def lists(self, group: str, file: str = "cpuset.cpus") -> dict[str, str]:
        """What the group and those below it read, by the rest of their paths."""
        top = f"{AT}{group}"
        found = [path for path in self.kernel.directories if path == top or path.startswith(f"{top}/")]
        return {path[len(top) :]: self.kernel.directories[path].files[file] for path in found}


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perphd.isolation.journal.os.fsync", lambda fd: None)
    monkeypatch.setattr("perphd.isolation.journal.os.fdatasync", lambda fd: None)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.end()


@both
def test_a_group_made_while_the_one_above_is_confined_gains_what_that_gains(world: World, name: str) -> None:
    group = f"/{name}"
    assert world.go({name: cpus(1)}).ok
    world.kernel.mkdir(f"{group}/pod")
    world.kernel.mkdir(f"{group}/pod/new")
    assert set(world.lists(group).values()) == {"1"}
    assert not world.go({name: cpus(1)}).written
    assert world.go({name: cpus(0, 1)}).ok
    assert set(world.lists(group).values()) == {"0-1"}
    assert world.go({name: cpus(3)}).ok
    assert world.go({name: cpus(2, 3)}).ok
    assert set(world.lists(group).values()) == {"2-3"}
    assert world.go({}).ok
    assert set(world.lists(group).values()) == {"0-3"}
    assert not world.journal.originals


@both
def test_such_a_group_is_released_with_the_one_above(world: World, name: str) -> None:
    world.go({name: cpus(1)})
    world.kernel.mkdir(f"/{name}/new")
    assert world.go({}).ok
    assert set(world.lists(f"/{name}").values()) == {"0-3"}
    assert not world.journal.originals


@both
def test_what_a_container_copied_is_given_back_without_the_daemon(world: World, name: str) -> None:
    world.go({name: cpus(1)})
    for below in ("pod", "pod/new", "pod/new/inner"):
        world.kernel.mkdir(f"/{name}/{below}")
    world.end()
    report = restore(world.kernel, world.state, boot_id="boot")
    assert report.complete
    assert not report.foreign
    assert {f"{AT}/{name}/pod/cpuset.cpus", f"{AT}/{name}/pod/new/cpuset.cpus"} <= {
        file.path for file in report.restored
    }
    assert set(world.lists(f"/{name}").values()) == {"0-3"}
    assert not restore(world.kernel, world.state, boot_id="boot")
    world.start()


def test_a_restore_that_is_killed_at_any_write_leaves_the_copies_to_the_next(tmp_path: Path) -> None:
    number = 0
    while True:
        world = World(tmp_path / str(number))
        world.go({"db": cpus(1)})
        for below in ("pod", "pod/new"):
            world.kernel.mkdir(f"/db/{below}")
        world.end()
        last = world.kernel.attempts + number

        def die(attempt: int, _path: str, _text: str, last: int = last) -> int | None:
            if attempt >= last:
                raise Killed
            return None

        world.kernel.before_write = die
        try:
            restore(world.kernel, world.state, boot_id="boot")
        except Killed:
            world.kernel.before_write = None
            assert restore(world.kernel, world.state, boot_id="boot").complete
            assert set(world.lists("/db").values()) == {"0-3"}
            number += 1
            continue
        break
    assert number >= 4


@both
def test_whoever_is_killed_while_a_copy_gains_has_left_a_record_of_it(tmp_path: Path, name: str) -> None:
    number = 0
    while True:
        world = World(tmp_path / str(number))
        world.go({name: cpus(1)})
        world.kernel.mkdir(f"/{name}/new")
        last = world.kernel.attempts + number

        def die(attempt: int, _path: str, _text: str, last: int = last) -> int | None:
            if attempt >= last:
                raise Killed
            return None

        world.kernel.before_write = die
        with contextlib.suppress(Killed):
            world.go({name: cpus(0, 1)})
            break
        world.kernel.before_write = None
        world.end()
        report = restore(world.kernel, world.state, boot_id="boot")
        assert report.complete
        assert not report.foreign
        assert set(world.lists(f"/{name}").values()) == {"0-3"}
        number += 1
    assert number == 3


@both
def test_a_copy_is_still_known_as_one_after_a_change_that_was_undone(world: World, name: str) -> None:
    world.go({name: cpus(1)})
    world.kernel.mkdir(f"/{name}/new")
    world.kernel.before_write = lambda _number, path, text: (
        errno.EIO if text == "0-1\n" and "new" in path else None
    )
    assert not world.go({name: cpus(0, 1)}).ok
    world.kernel.before_write = None
    assert set(world.lists(f"/{name}").values()) == {"1"}
    world.end()
    report = restore(world.kernel, world.state, boot_id="boot")
    assert not report.foreign
    assert set(world.lists(f"/{name}").values()) == {"0-3"}
    world.start()


@both
def test_memory_nodes_are_copied_and_given_back_alike(world: World, name: str) -> None:
    one, two = (Settings(mems=CpuSet.of(nodes)) for nodes in ((1,), (0, 1)))
    for group in (f"/{name}", f"/{name}/old"):
        world.kernel.set(f"{AT}{group}/cpuset.mems", "0-1")
    world.go({name: one})
    world.kernel.mkdir(f"/{name}/new")
    assert set(world.lists(f"/{name}", "cpuset.mems").values()) == {"1"}
    assert world.go({name: two}).ok
    assert set(world.lists(f"/{name}", "cpuset.mems").values()) == {"0-1"}
    world.go({name: one})
    world.kernel.mkdir(f"/{name}/newer")
    asyncio.run(world.executor.restore())
    assert set(world.lists(f"/{name}", "cpuset.mems").values()) == {"0-1"}


@both
def test_a_group_that_was_there_keeps_its_own_list_though_it_reads_as_a_copy(world: World, name: str) -> None:
    world.kernel.mkdir(f"/{name}/pinned", cpus="1")
    before = world.lists(f"/{name}")
    world.go({name: cpus(1)})
    world.go({name: cpus(0, 1)})
    assert world.lists(f"/{name}")["/pinned"] == "1"
    world.go({name: cpus(1)})
    world.end()
    world.start()  # one that goes on from there knows it as well
    world.go({name: cpus(1, 2)})
    assert world.lists(f"/{name}") == {"": "1-2", "/old": "1-2", "/pinned": "1"}
    assert asyncio.run(world.executor.restore()).complete
    assert world.lists(f"/{name}") == before


@both
def test_a_list_of_its_own_in_a_new_group_stays(world: World, name: str) -> None:
    world.go({name: cpus(1, 2)})
    world.kernel.mkdir(f"/{name}/new", cpus="2")
    world.go({name: cpus(2)})
    world.go({name: cpus(2, 3)})
    assert world.lists(f"/{name}") == {"": "2-3", "/old": "2-3", "/new": "2"}
    asyncio.run(world.executor.restore())
    assert world.lists(f"/{name}") == {"": "0-3", "/old": "0-3", "/new": "2"}


def test_a_list_that_perphd_never_wrote_may_be_set_anew_meanwhile(world: World) -> None:
    world.kernel.mkdir("/pi/pinned", cpus="1")
    world.go({"pi": cpus(1, 2)})
    assert f"{AT}/pi/pinned/cpuset.cpus" in world.journal.originals
    world.kernel.set(f"{AT}/pi/pinned/cpuset.cpus", "2")
    report = asyncio.run(world.executor.restore())
    assert report.complete
    assert not report.foreign
    assert world.lists("/pi") == {"": "0-3", "/old": "0-3", "/pinned": "2"}
    assert not world.journal.originals
    world.go({"pi": cpus(1, 2)})
    world.kernel.set(f"{AT}/pi/pinned/cpuset.cpus", "1")
    world.go({"pi": cpus(2, 3)})  # which takes CPU 1 from it
    assert world.go({}).ok
    assert world.lists("/pi")["/pinned"] == "1"
    assert not world.journal.originals


def test_a_group_that_copied_what_was_there_before_a_change_follows_a_little_later(world: World) -> None:
    world.go({"db": cpus(1)})
    world.go({"db": cpus(0, 1)}, now_s=1.0)
    world.kernel.mkdir("/db/late", cpus="1")  # read before the change and written after it
    assert not world.go({"db": cpus(0, 1)}, now_s=2.0).written
    assert world.go({"db": cpus(0, 1)}, now_s=2.0 + BELOW_S).ok
    assert world.lists("/db")["/late"] == "0-1"


def test_where_nothing_changes_the_groups_below_are_listed_only_now_and_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.go({"db": cpus(1), "pi": cpus(2)})
    listed: list[str] = []
    subdirectories = world.kernel.subdirectories

    def list_and_tell(path: str) -> list[str]:
        listed.append(path)
        return subdirectories(path)

    monkeypatch.setattr(world.kernel, "subdirectories", list_and_tell)
    for second in range(1, 10):
        assert not world.go({"db": cpus(1), "pi": cpus(2)}, now_s=float(second)).written
    assert not listed
    world.go({"db": cpus(1), "pi": cpus(2)}, now_s=BELOW_S)
    assert sorted(listed) == [f"{AT}{group}" for group in ("/db", "/db/old", "/pi", "/pi/old")]


def test_who_changes_a_group_below_meanwhile_is_not_overruled_where_nothing_changes(world: World) -> None:
    world.go({"pi": cpus(1, 2)})
    world.kernel.set(f"{AT}/pi/old/cpuset.cpus", "2")
    world.kernel.mkdir("/pi/new")
    assert not world.go({"pi": cpus(1, 2)}, now_s=BELOW_S).written
    assert world.lists("/pi")["/old"] == "2"


def test_a_group_made_while_all_is_given_back_is_not_forgotten(world: World) -> None:
    world.go({"pi": cpus(1)})

    def start(_number: int, path: str, _text: str) -> None:
        if f"{AT}/pi/new" not in world.kernel.directories and basename(path) == "cpuset.cpus":
            world.kernel.mkdir("/pi/new")

    world.kernel.before_write = start
    assert world.go({}).ok
    assert world.lists("/pi")["/new"] == "1"
    assert world.journal.originals
    assert world.go({}).ok
    assert world.lists("/pi")["/new"] == "0-3"
    assert not world.journal.originals


def test_copies_are_left_where_the_group_above_is_somebody_elses_by_now(world: World) -> None:
    world.go({"pi": cpus(1)})
    world.kernel.set(f"{AT}/pi/cpuset.cpus", "1-2")
    world.kernel.mkdir("/pi/new")
    report = asyncio.run(world.executor.restore())
    assert [file.path for file in report.foreign] == [f"{AT}/pi/cpuset.cpus"]
    assert not [file for file in report.failed if "new" in file.path]
    assert world.lists("/pi")["/new"] == "1-2"


def test_groups_that_come_and_go_below_a_confined_one_leave_nothing_on_record(world: World) -> None:
    for turn in range(30):
        for kid in range(3):
            world.kernel.mkdir(f"/pi/c{turn}-{kid}")
        assert world.go({"pi": cpus(turn % 2)}).ok
        assert len(world.journal.originals) <= 5, turn  # the group, the old one below and the three
        for kid in range(3):
            world.kernel.rmdir(f"/pi/c{turn}-{kid}")
    world.kernel.rmdir("/pi/old")
    world.kernel.mkdir("/pi/old")  # another one of the same path
    assert world.go({"pi": cpus(2)}).ok
    assert set(world.journal.originals) == {f"{AT}/pi/cpuset.cpus", f"{AT}/pi/old/cpuset.cpus"}
    assert not asyncio.run(world.executor.restore()).gone
    assert set(world.lists("/pi").values()) == {"0-3"}


def test_what_outlives_its_group_stays_on_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a manager set everything below /db again whenever it makes the group anew."""
    monkeypatch.setattr(Backend, "persists", lambda _self, path: "/db/" in path)
    for name in ("db", "pi"):
        world.go({name: cpus(1)})
        world.kernel.rmdir(f"/{name}/old")
        world.go({name: cpus(2)})
    recorded = set(world.journal.originals)
    assert f"{AT}/db/old/cpuset.cpus" in recorded
    assert f"{AT}/pi/old/cpuset.cpus" not in recorded


some_cpus = st.sets(st.integers(0, 3), min_size=1).map(CpuSet.of)
changes = st.tuples(
    st.just("set"),
    st.dictionaries(st.sampled_from(["db", "pi"]), some_cpus.map(lambda some: Settings(cpus=some))),
)
starts = st.tuples(
    st.sampled_from(["start", "end"]), st.sampled_from(["/db", "/pi", "/db/old", "/pi/old", "/db/a", "/pi/a"])
)


@given(
    st.dictionaries(st.sampled_from(["/db", "/pi", "/db/old", "/pi/old"]), some_cpus),
    st.lists(changes | starts | st.just(("restart", "")), max_size=12),
    st.booleans(),
)
def test_whatever_comes_and_goes_all_have_what_they_had_and_the_new_what_is_above(
    pins: dict[str, CpuSet], steps: list[tuple[str, Any]], by_daemon: bool
) -> None:
    with tempfile.TemporaryDirectory() as state:
        world = World(Path(state))
        for group in ("/db/old", "/pi/old", "/db", "/pi"):
            own = pins.get(group, CpuSet.of(range(4)))
            above = pins.get(f"/{group.split('/')[1]}", own)
            world.kernel.set(f"{AT}{group}/cpuset.cpus", str(own & above or above))
        before = world.kernel.texts()
        old = {path for path in before if path.endswith("cpuset.cpus")}
        for what, which in steps:
            if what == "set":
                assert world.go(which).ok
            elif what == "restart":
                world.end()
                world.start()
            elif what == "start" and f"{AT}{which}" in world.kernel.directories:
                world.kernel.mkdir(f"{which}/new")
            elif what == "end":
                world.kernel.rmdir(f"{which}/new")
                if (
                    which.count("/") > 1
                ):  # a container that is started again, with another group of the same path
                    world.kernel.rmdir(which)
                    world.kernel.mkdir(which)
                    old -= {path for path in old if path.startswith(f"{AT}{which}/")}
        if by_daemon:
            assert world.go({}).ok
            assert not world.journal.originals
        else:
            assert not asyncio.run(world.executor.restore()).foreign
        world.end()
        after = world.kernel.texts()
        for path in (path for path in after if path.endswith("cpuset.cpus") and path.startswith(f"{AT}/")):
            above_path = f"{dirname(dirname(path))}/cpuset.cpus"
            assert after[path] == (before[path] if path in old else after[above_path]), path
