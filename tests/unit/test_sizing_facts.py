"""What sizing reads of the kernel: kills, memory that cannot be reclaimed, room; on v2 and v1. And ending processes."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest

from perphd.domain.errors import Gone, KernelError, Unsupported
from perphd.domain.plan import Write
from perphd.domain.reading import Unavailable
from perphd.host.cgroup import Hierarchies, Hierarchy, Layout, discover
from perphd.host.cgroup.knobs import same
from perphd.host.fs import RealFs
from perphd.isolation.ending import Ender
from perphd.monitor.memory_facts import KEPT_S, KILLS_READ_AT_ONCE, READ_AT_ONCE, Facts, MemoryFacts

MIB = 1 << 20
GIB = 1 << 30
MEMINFO = "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nSwapFree: {swap} kB\n"


def _write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    _write(tmp_path, "/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    _write(tmp_path, "/proc/meminfo", MEMINFO.format(swap=0))
    group = "/sys/fs/cgroup/top/a"
    _write(tmp_path, "/sys/fs/cgroup/cgroup.controllers", "memory cpu\n")
    _write(tmp_path, f"{group}/memory.events", "low 0\nhigh 3\nmax 0\noom 1\noom_kill 2\n")
    stat = (
        "anon 104857600\nshmem 0\nunevictable 0\nslab_unreclaimable 1048576\nkernel_stack 0\npagetables 0\n"
    )
    _write(tmp_path, f"{group}/memory.stat", stat)
    _write(tmp_path, f"{group}/cgroup.procs", "11\n12\n")
    _write(tmp_path, f"{group}/cgroup.kill", "")
    _write(tmp_path, "/sys/fs/cgroup/top/memory.max", f"{GIB}\n")
    _write(tmp_path, "/sys/fs/cgroup/top/memory.current", f"{300 * MIB}\n")
    _write(tmp_path, "/sys/fs/cgroup/top/memory.stat", f"inactive_file {100 * MIB}\n")
    return tmp_path


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    _write(tmp_path, "/proc/self/mounts", "cgroup /cg/memory cgroup rw,memory 0 0\n")
    _write(tmp_path, "/proc/meminfo", MEMINFO.format(swap=0))
    _write(tmp_path, "/cg/memory/top/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    _write(tmp_path, "/cg/memory/top/a/memory.stat", "rss 1\ntotal_rss 52428800\ntotal_shmem 0\n")
    _write(tmp_path, "/cg/memory/top/a/cgroup.procs", "11\n")
    _write(tmp_path, "/cg/memory/top/a/b/cgroup.procs", "12\n")
    _write(tmp_path, "/cg/memory/top/memory.limit_in_bytes", f"{GIB}\n")
    _write(tmp_path, "/cg/memory/top/memory.usage_in_bytes", f"{200 * MIB}\n")
    _write(tmp_path, "/cg/memory/top/memory.stat", "total_inactive_file 0\n")
    return tmp_path


def _facts(root: Path) -> MemoryFacts:
    fs = RealFs(root)
    return MemoryFacts(fs, discover(fs))


def _of(facts: MemoryFacts, cgroup: str, used: float, now_s: float) -> Facts:
    facts.look({cgroup: used}, now_s)
    return facts.of(cgroup)


def test_v2(v2: Path) -> None:
    assert _of(_facts(v2), "/top/a", 105.0 * MIB, 0.0) == Facts(2.0, 101.0 * MIB)
    # The group's limit less what others in it use, and 2 %.
    assert _facts(v2).capacity(lambda: {"/top/a": 150.0 * MIB}, 0.0) == pytest.approx(0.98 * GIB - 50 * MIB)
    # What is available, what the workloads hold, less 2 % of all.
    assert _facts(v2).capacity(lambda: {"/other/b": 1.0 * GIB}, 0.0) == pytest.approx((4 + 1 - 0.16) * GIB)


def test_v1(v1: Path) -> None:
    assert _of(_facts(v1), "/top/a", 55.0 * MIB, 0.0) == Facts(4.0, 50.0 * MIB)
    assert _facts(v1).capacity(lambda: {"/top/a": 200.0 * MIB}, 0.0) == pytest.approx(0.98 * GIB)


def test_swap_takes_anonymous_memory(v2: Path) -> None:
    _write(v2, "/proc/meminfo", MEMINFO.format(swap=65536))
    assert _of(_facts(v2), "/top/a", 105.0 * MIB, 0.0).unreclaimable_bytes == (101 - 64) * MIB


def test_what_is_not_there_is_unavailable(v2: Path) -> None:
    found = _of(_facts(v2), "/top/gone", 0.0, 0.0)
    assert isinstance(found.kills, Unavailable)
    assert isinstance(found.unreclaimable_bytes, Unavailable)
    (v2 / "proc/meminfo").unlink()
    assert isinstance(_facts(v2).capacity(dict, 0.0), Unavailable)


def test_facts_are_read_again_when_use_moves_or_after_a_while(v2: Path) -> None:
    facts = _facts(v2)
    first = _of(facts, "/top/a", 100.0 * MIB, 0.0)
    _write(v2, "/sys/fs/cgroup/top/a/memory.events", "oom_kill 3\n")
    assert _of(facts, "/top/a", 102.0 * MIB, 1.0) == first
    assert _of(facts, "/top/a", 50.0 * MIB, 1.0).kills == 3.0
    _write(v2, "/sys/fs/cgroup/top/a/memory.events", "oom_kill 4\n")
    assert _of(facts, "/top/a", 50.0 * MIB, 1.0 + KEPT_S).kills == 4.0


def test_a_look_reads_few_groups_again_and_the_most_overdue_first(v2: Path) -> None:
    used = {f"/top/w{number:02}": 1.0 * GIB for number in range(3 * READ_AT_ONCE)}
    facts, last = _facts(v2), max(used)
    for cgroup in used:
        _write(v2, f"/sys/fs/cgroup{cgroup}/memory.events", "oom_kill 0\n")
        _write(v2, f"/sys/fs/cgroup{cgroup}/memory.stat", "anon 7\n")
    facts.look(used, 0.0)
    assert {facts.of(cgroup).kills for cgroup in used} == {0.0}, "what is new is read at once"
    for cgroup in used:
        _write(v2, f"/sys/fs/cgroup{cgroup}/memory.events", "oom_kill 1\n")
    moved = {name: 0.5 * GIB if name == last else amount for name, amount in used.items()}
    seen = []
    for look in range(3):
        facts.look(moved, KEPT_S + look)
        seen.append(sum(facts.of(cgroup).kills == 1.0 for cgroup in used))
        assert facts.of(last).kills == 1.0, "a use that moved comes first"
    assert seen == [READ_AT_ONCE, 2 * READ_AT_ONCE, 3 * READ_AT_ONCE]
    facts.forget("/top/w01")
    assert facts.of("/top/w01") == Facts()


def test_a_kill_is_seen_at_the_next_look_whatever_is_due(v2: Path) -> None:
    used = {f"/top/w{number:02}": 1.0 * GIB for number in range(2 * KILLS_READ_AT_ONCE)}
    for cgroup in used:
        _write(v2, f"/sys/fs/cgroup{cgroup}/memory.events", "oom_kill 0\n")
        _write(v2, f"/sys/fs/cgroup{cgroup}/memory.stat", "anon 7\n")
    _write(v2, "/proc/vmstat", "nr_free_pages 5\noom_kill 7\ndrop_pagecache 0\n")
    facts, last = _facts(v2), max(used)
    assert facts.look(used, 0.0) == []
    _write(v2, f"/sys/fs/cgroup{last}/memory.events", "oom_kill 1\n")
    assert facts.look(used, 2 * KEPT_S) == [], "the host's count stands still: no group is asked"
    assert facts.of(last).kills == 0.0
    _write(v2, "/proc/vmstat", "nr_free_pages 5\noom_kill 8\ndrop_pagecache 0\n")
    assert facts.look({last: 1.0 * GIB}, 2 * KEPT_S + 1) == [last], "whoever is looked at now comes first"
    assert facts.of(last).kills == 1.0
    first = min(used)
    _write(v2, f"/sys/fs/cgroup{first}/memory.events", "oom_kill 1\n")
    _write(v2, "/proc/vmstat", "nr_free_pages 5\noom_kill 9\ndrop_pagecache 0\n")
    found = [*facts.look({last: 1.0 * GIB}, 20.0), *facts.look({last: 1.0 * GIB}, 21.0)]
    assert found == [first], "two looks are enough for all of them"


def test_ending_on_v2_is_one_write(v2: Path) -> None:
    told: list[tuple[Write, str]] = []
    fs = RealFs(v2)
    ender = Ender(fs, discover(fs), lambda _: None, lambda write, text: told.append((write, text)))
    assert ender.end("a", "/top/a", ender.identity("/top/a")) == ""
    assert (v2 / "sys/fs/cgroup/top/a/cgroup.kill").read_text() == "1\n"
    assert [(write.knob, text) for write, text in told] == [("ended", "written")]


def test_ending_on_v1_signals_everybody_in_the_group_and_below(v1: Path) -> None:
    killed: list[tuple[int, int]] = []
    fs = RealFs(v1)
    ender = Ender(fs, discover(fs), lambda _: None, kill=lambda *sent: killed.append(sent))
    assert ender.end("a", "/top/a", ender.identity("/top/a")) == ""
    assert set(killed) == {(11, signal.SIGKILL), (12, signal.SIGKILL)}


def test_a_group_that_must_not_be_written_is_not_ended(v2: Path) -> None:
    fs = RealFs(v2)
    ender = Ender(fs, discover(fs), lambda _: "a unit of systemd")
    assert ender.end("a", "/top/a", ender.identity("/top/a")) == "a unit of systemd"
    assert (v2 / "sys/fs/cgroup/top/a/cgroup.kill").read_text() == ""


def test_another_group_with_the_path_is_not_ended(v2: Path) -> None:
    fs = RealFs(v2)
    ender = Ender(fs, discover(fs), lambda _: None)
    meant = ender.identity("/top/a")
    (v2 / "sys/fs/cgroup/top/a").rename(v2 / "sys/fs/cgroup/top/before")
    assert "gone" in ender.end("a", "/top/a", meant)
    _write(v2, "/sys/fs/cgroup/top/a/cgroup.procs", "13\n")
    _write(v2, "/sys/fs/cgroup/top/a/cgroup.kill", "")
    assert "another one" in ender.end("a", "/top/a", meant)
    assert "another one" in ender.end("a", "/top/a", None)
    assert (v2 / "sys/fs/cgroup/top/a/cgroup.kill").read_text() == ""


def test_a_process_of_an_unseen_pid_namespace_is_not_signalled(v1: Path) -> None:
    killed: list[tuple[int, int]] = []
    _write(v1, "/cg/memory/top/a/cgroup.procs", "0\n11\n")  # kill(0) would end the daemon's own group
    fs = RealFs(v1)
    ender = Ender(fs, discover(fs), lambda _: None, kill=lambda *sent: killed.append(sent))
    assert "pid namespace" in ender.end("a", "/top/a", ender.identity("/top/a"))
    assert not killed


class _Vanishing(RealFs):
    """The processes of ``group`` cannot be read, for this reason."""

    def __init__(self, root: Path, group: str, error: KernelError) -> None:
        super().__init__(root)
        self._unread, self._error = f"{group}/cgroup.procs", error

    def read(self, path: str) -> bytes:
        if path.endswith(self._unread):
            raise self._error
        return super().read(path)


def test_a_group_that_is_removed_while_its_processes_are_killed_is_ended(v1: Path) -> None:
    killed: list[tuple[int, int]] = []
    _write(v1, "/cg/memory/top/a/gone/cgroup.procs", "13\n")
    fs = _Vanishing(v1, "/a/gone", Gone("/cg/memory/top/a/gone/cgroup.procs", "open", errno.ENOENT))
    ender = Ender(fs, discover(fs), lambda _: None, kill=lambda *sent: killed.append(sent))
    assert ender.end("a", "/top/a", ender.identity("/top/a")) == ""
    assert set(killed) == {(11, signal.SIGKILL), (12, signal.SIGKILL)}


def test_a_group_with_threaded_groups_inside_is_ended_by_its_file(v2: Path) -> None:
    told: list[str] = []
    _write(v2, "/sys/fs/cgroup/top/a/threads/cgroup.procs", "")
    error = Unsupported("/sys/fs/cgroup/top/a/threads/cgroup.procs", "read", errno.EOPNOTSUPP)
    fs = _Vanishing(v2, "/a/threads", error)
    hierarchies = discover(fs)
    tree = Hierarchy(1, "/cg/memory", frozenset({"memory"}))
    hybrid = Hierarchies(Layout.HYBRID, hierarchies.unified, {"memory": tree})
    for each in (hierarchies, hybrid):
        (v2 / "sys/fs/cgroup/top/a/cgroup.kill").write_text("")
        ender = Ender(fs, each, lambda _: None, lambda write, text: told.append(text), kill=None)
        assert ender.end("a", "/top/a", ender.identity("/top/a")) == ""
        assert (v2 / "sys/fs/cgroup/top/a/cgroup.kill").read_text() == "1\n"
    assert told == ["written", "written"]


def test_a_v1_group_that_is_freezing_holds_what_was_written() -> None:
    assert same("/g/freezer.state", "FREEZING", "FROZEN")
    assert same("/g/freezer.state", "FROZEN", "FREEZING")
    assert not same("/g/freezer.state", "FROZEN", "THAWED")
    assert not same("/g/freezer.state", "THAWED", "FREEZING")
