from __future__ import annotations

import errno
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.errors import Denied, Gone
from perphd.domain.reading import Unavailable
from perphd.host.fs import KernelFile, RealFs
from perphd.host.schedstat import RunDelay, RunDelayReader
from perphd.host.taskstats import TaskStats


class _Proc(RealFs):
    """/proc with threads: pid -> tid -> delay in ns; what is removed answers ESRCH, as an open file there does."""

    def __init__(self, processes: dict[int, dict[int, int]], denied: bool = False) -> None:
        super().__init__()
        self.processes, self.denied, self.opened = processes, denied, 0

    def listdir(self, path: str) -> list[str]:
        pid = int(path.split("/")[2])
        if pid not in self.processes:
            raise Gone(path, "list", errno.ENOENT)
        return sorted(map(str, self.processes[pid]))

    def open(self, path: str) -> KernelFile:
        if self.denied:
            raise Denied(path, "open", errno.EACCES)
        _, _, pid, _, tid, _ = path.split("/")
        self.opened += 1
        return _Schedstat(self, int(pid), int(tid))


@dataclass
class _Schedstat:
    proc: _Proc
    pid: int
    tid: int
    closed: bool = False

    def read(self) -> bytes:
        try:
            return b"123 %d 4\n" % self.proc.processes[self.pid][self.tid]
        except KeyError:
            raise Gone(f"/proc/{self.pid}", "read", errno.ESRCH) from None

    def close(self) -> None:
        if not self.closed:
            self.proc.opened -= 1
        self.closed = True


class _Stats(TaskStats):
    """Taskstats of invented processes."""

    def __init__(self, totals: dict[int, int]) -> None:
        self.totals, self.denied = totals, False

    def run_delay_ns(self, pid: int) -> int:
        if self.denied:
            raise Denied("taskstats", "read", errno.EPERM)
        if pid not in self.totals:
            raise Gone("taskstats", "read", errno.ESRCH)
        return self.totals[pid]

    def close(self) -> None:
        pass


def test_only_growth_since_a_thread_was_first_seen_counts() -> None:
    proc = _Proc({7: {7: 1000, 8: 50}})
    reader = RunDelayReader(proc)
    reader.update([7])
    assert reader.read() == RunDelay(0, present=2, followed=2)

    proc.processes[7] = {7: 1010, 8: 55, 9: 10**9}
    assert reader.read() == RunDelay(15, 2, 2)
    reader.update([7])
    assert reader.read() == RunDelay(0, 3, 3)
    proc.processes[7][9] += 1
    assert reader.read() == RunDelay(1, 3, 3)


def test_ended_threads_never_make_it_fall() -> None:
    proc = _Proc({7: {7: 0, 8: 500}})
    reader = RunDelayReader(proc)
    reader.update([7])
    reader.read()

    proc.processes[7] = {7: 3}
    assert reader.read() == RunDelay(3, 1, 1)
    assert reader.fds == proc.opened == 1
    proc.processes[7] = {7: 3, 8: 2}  # the number is used again, with less than its predecessor had
    reader.update([7])
    proc.processes[7][8] = 6
    assert reader.read() == RunDelay(4, 2, 2)


def test_a_process_that_ended_before_it_was_looked_at() -> None:
    reader = RunDelayReader(_Proc({7: {7: 0}}))
    reader.update([7, 99])
    assert reader.read() == RunDelay(0, 1, 1)


def test_many_threads_are_sampled_and_the_sample_is_stable() -> None:
    proc = _Proc({7: dict.fromkeys(range(100, 200), 0)})
    reader = RunDelayReader(proc, max_threads=10)
    reader.update([7])
    for tid in range(100, 200):
        proc.processes[7][tid] = 5
    found = reader.read()
    assert found == RunDelay(500, present=100, followed=10)
    assert isinstance(found, RunDelay)
    assert found.sampled

    proc.processes[7] |= dict.fromkeys(range(200, 300), 0)
    reader.update([7])
    assert reader.read() == RunDelay(0, 200, 10), "no newcomer takes the place of a thread that is followed"
    assert proc.opened == reader.fds == 10


def test_no_answer_is_unavailable_and_nobody_there_is_zero() -> None:
    proc = _Proc({7: {7: 0}}, denied=True)
    reader = RunDelayReader(proc)
    reader.update([7])
    refused = reader.read()
    assert isinstance(refused, Unavailable)
    assert "EACCES" in refused.reason

    proc.denied = False
    reader.update([7])
    assert reader.read() == RunDelay(0, 1, 1)
    reader.update([])
    assert reader.read() == RunDelay(0, 0, 0)


def test_closing_gives_every_descriptor_back() -> None:
    proc = _Proc({7: dict.fromkeys(range(20), 0)})
    reader = RunDelayReader(proc)
    reader.update([7])
    reader.close()
    reader.close()
    assert proc.opened == reader.fds == 0


def test_with_taskstats_whole_processes_count() -> None:
    stats = _Stats({7: 1000, 8: 20})
    reader = RunDelayReader(_Proc({}), stats)
    reader.update([7, 8, 99])
    assert reader.read() == RunDelay(0, 2, 2)

    stats.totals = {7: 1100, 8: 21}
    assert reader.read() == RunDelay(101, 2, 2)
    del stats.totals[8]
    assert reader.read() == RunDelay(0, 1, 1)
    stats.totals = {7: 5}  # another process under the same number
    assert reader.read() == RunDelay(0, 1, 1)
    assert reader.fds == 0


def test_taskstats_that_stop_answering_are_unavailable() -> None:
    stats = _Stats({7: 1000})
    reader = RunDelayReader(_Proc({}), stats)
    reader.update([7])
    stats.denied = True
    assert isinstance(reader.read(), Unavailable)
    stats.denied, stats.totals = False, {7: 1003}
    assert reader.read() == RunDelay(3, 1, 1), "nothing is lost meanwhile"


_THREADS = st.dictionaries(st.integers(1, 30), st.integers(0, 1000), max_size=12)


@given(st.lists(st.tuples(_THREADS, st.booleans()), max_size=8), st.integers(1, 12))
def test_growth_is_never_negative_and_no_descriptor_leaks(
    steps: list[tuple[dict[int, int], bool]], limit: int
) -> None:
    proc = _Proc({1: {}})
    reader = RunDelayReader(proc, max_threads=limit)
    for threads, look in steps:
        proc.processes[1] = threads
        if look:
            reader.update([1])
        found = reader.read()
        if isinstance(found, RunDelay):
            assert found.delay_ns >= 0
            assert found.followed <= found.present
        assert reader.fds == proc.opened <= limit
    reader.close()
    assert proc.opened == 0


@pytest.mark.parametrize("content", [b"", b"1 2\n", b"1 x 3\n"])
def test_nonsense_in_schedstat_is_not_a_number(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Schedstat, "read", lambda self: content)
    reader = RunDelayReader(_Proc({7: {7: 0}}))
    reader.update([7])
    assert reader.read() == RunDelay(0, 0, 0)
