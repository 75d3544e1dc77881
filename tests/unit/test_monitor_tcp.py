"""From counts to indicators, and where a workload's connections are looked for; no kernel is asked."""

from __future__ import annotations

import inspect
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perphd.domain.errors import Denied
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.workload import SliSpec
from perphd.host.sock_diag import ListeningSocket
from perphd.host.tcp_latency import HookPlace, LatencyCounter, TcpCounts
from perphd.host.tcp_latency.counts import COUNTERS, Region
from perphd.host.tcp_latency.histogram import BUCKETS, bucket_of
from perphd.host.tcp_latency.placement import HookFacts, _ids_below, decide, systemd_version
from perphd.monitor.sli.reading import SampleSize, SliReading
from perphd.monitor.sli.resolution import EXACT
from perphd.monitor.sli.tcp import LOOK_AGAIN_S, TcpSource, WithTcpLatency
from perphd.monitor.sli.tcp_window import APART_SIGN, PUSHED_SIGN, SPACING_S, TcpWindow


class Kernel:
    """Counts as the programs make them."""

    def __init__(self, offset: int = 0) -> None:
        self.counters = [offset] * COUNTERS
        self.counters[LatencyCounter.STARTED] += offset  # answered and dropped add up to what was started
        self.regions = np.zeros((len(Region), BUCKETS), np.uint32)

    def start(self, count: int) -> None:
        self.counters[LatencyCounter.STARTED] += count

    def serve(self, count: int, ms: float, first_ms: float | None = None) -> None:
        self.start(count)
        self.counters[LatencyCounter.ANSWERED] += count
        last = bucket_of(int(ms * 1e6))
        if first_ms is None:
            self.regions[Region.WHOLE][last] += np.uint32(count)
            return
        self.counters[LatencyCounter.SPLIT] += count
        self.regions[Region.SPLIT_LAST][last] += np.uint32(count)
        self.regions[Region.SPLIT_FIRST][bucket_of(int(first_ms * 1e6))] += np.uint32(count)

    def push(self, count: int) -> None:
        self.counters[LatencyCounter.PUSHED] += count

    def counts(self) -> TcpCounts:
        wrapped = np.array([one % 2**32 for one in self.counters], np.uint32)
        return TcpCounts(wrapped, self.regions.copy())


def text(reading: Reading) -> str:
    assert isinstance(reading, Unavailable)
    return reading.reason


# -- window -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 2**32 - 50])
def test_rate_and_percentiles_of_the_interval_even_where_counts_wrap(offset: int) -> None:
    kernel, window = Kernel(offset), TcpWindow(from_first=False)
    assert "first reading" in text(window.update(kernel.counts(), 5.0).work_rate_per_s)
    kernel.serve(990, 2.0)
    kernel.serve(10, 50.0)
    reading = window.update(kernel.counts(), 7.0)
    assert reading.work_rate_per_s == 500.0
    assert reading.latency_p50_ms == pytest.approx(2.0, rel=0.03)
    assert reading.latency_p99_ms == pytest.approx(2.0, rel=0.03)
    kernel.serve(100, 9.0)
    after = window.update(kernel.counts(), 8.0)
    assert after.work_rate_per_s == 100.0
    assert after.latency_p95_ms == pytest.approx(9.0, rel=0.03), (
        "what came before does not count where these are enough"
    )


def test_few_requests_are_added_up_but_not_for_ever() -> None:
    kernel, window = Kernel(), TcpWindow(from_first=False)
    window.update(kernel.counts(), 0.0)
    readings: list[SliReading] = []
    for second in range(1, 61):
        kernel.serve(4, 3.0)
        readings.append(window.update(kernel.counts(), float(second)))
    assert [available(one.latency_p50_ms) for one in readings[:4]] == [False, False, True, True]
    assert [available(one.latency_p95_ms) for one in readings[23:26]] == [False, True, True], "25 x 4 are 100"
    assert text(readings[-1].latency_p99_ms) == "fewer than 500 requests in 30 s", "120 of them"
    assert readings[-1].p95 == SampleSize(100.0, 25.0)
    assert readings[-1].work == SampleSize(4.0, 1.0)


def test_what_is_kept_is_what_percentiles_need() -> None:
    kernel, window = Kernel(), TcpWindow(from_first=False)
    reading = window.update(kernel.counts(), 0.0)
    for step in range(1, 1000):
        kernel.serve(2, 3.0)
        reading = window.update(kernel.counts(), 0.1 * step)
    assert available(reading.latency_p99_ms), "20 a second make 500 in 25 seconds"
    assert len(window._kept) <= 25 / SPACING_S + 3
    kernel.serve(600, 3.0)
    for step in range(3):
        kernel.serve(600, 3.0)
        window.update(kernel.counts(), 200.0 + step)
    assert len(window._kept) <= 3


def test_no_time_no_rate_and_the_interval_goes_on() -> None:
    kernel, window = Kernel(), TcpWindow(from_first=False)
    window.update(kernel.counts(), 1.0)
    kernel.serve(10, 1.0)
    assert "no time has passed" in text(window.update(kernel.counts(), 1.0).work_rate_per_s)
    assert window.update(kernel.counts(), 2.0).work_rate_per_s == 10.0


def test_requests_that_wait_while_none_is_answered_leave_no_latency() -> None:
    kernel, window = Kernel(), TcpWindow(from_first=False)
    window.update(kernel.counts(), 0.0)
    kernel.serve(500, 1.0)
    kernel.start(3)
    assert available(window.update(kernel.counts(), 1.0).latency_p99_ms)
    stalled = window.update(kernel.counts(), 2.0)
    assert stalled.work_rate_per_s == 0.0
    assert "none was answered" in text(stalled.latency_p99_ms)


def test_an_idle_server_keeps_its_latency_for_a_while() -> None:
    kernel, window = Kernel(), TcpWindow(from_first=False)
    window.update(kernel.counts(), 0.0)
    kernel.serve(500, 1.0)
    window.update(kernel.counts(), 1.0)
    idle = [window.update(kernel.counts(), 2.0 + n) for n in range(33)]
    assert idle[0].work_rate_per_s == 0.0
    assert available(idle[0].latency_p95_ms)
    assert "fewer than 100" in text(idle[-1].latency_p95_ms)


def test_from_first_and_last_and_the_sign_that_they_are_far_apart() -> None:
    kernel, last, first = Kernel(), TcpWindow(from_first=False), TcpWindow(from_first=True)
    for window in (last, first):
        window.update(kernel.counts(), 0.0)
    kernel.serve(300, 1.0)
    kernel.serve(200, 1.0, first_ms=40.0)
    assert last.update(kernel.counts(), 1.0).latency_p95_ms == pytest.approx(1.0, rel=0.03)
    assert first.update(kernel.counts(), 1.0).latency_p95_ms == pytest.approx(40.0, rel=0.03)
    assert last.signs == first.signs == (APART_SIGN,)
    for second in range(2, 5):
        kernel.serve(500, 1.0)
        last.update(kernel.counts(), float(second))
    assert not last.signs


def test_the_sign_of_pushed_segments_and_none_from_few_requests() -> None:
    kernel, window = Kernel(), TcpWindow(from_first=False)
    window.update(kernel.counts(), 0.0)
    kernel.serve(50, 1.0)
    kernel.push(500)
    window.update(kernel.counts(), 1.0)
    assert not window.signs, "too few to judge"
    kernel.serve(100, 1.0)
    window.update(kernel.counts(), 2.0)
    assert window.signs == (PUSHED_SIGN,)


# -- source -------------------------------------------------------------------------------------------------


class Probe:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.closed = kernel, 0

    def read(self) -> TcpCounts:
        return self.kernel.counts()

    def close(self) -> None:
        self.closed += 1


class World:
    """A directory as the group, and what would be found and attached."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.place: HookPlace | str = HookPlace(str(folder), os.stat(folder).st_ino)
        self.kernel = Kernel()
        self.asked: list[tuple[str, tuple[int, ...]]] = []
        self.probes: list[Probe] = []
        self.source = TcpSource(SliSpec("tcp", tuple(options.items())), "/app", self._find, self._open)

    def _find(self, cgroup, ports):
        self.asked.append((cgroup, tuple(ports)))
        return self.place

    def _open(self, directory, inode, ports):
        assert isinstance(self.place, HookPlace)
        assert (directory, inode, ports) == (self.place.directory, self.place.inode, self.place.ports)
        self.probes.append(Probe(self.kernel))
        return self.probes[-1]


async def test_a_place_that_is_not_there_is_the_reason_and_is_looked_for_again(tmp_path: Path) -> None:
    world = World(tmp_path, ports="80, 443")
    there, world.place = world.place, "nothing listens"
    assert "tcp: nothing listens" in text((await world.source.read(0.0)).latency_p95_ms)
    world.place = there
    assert "nothing listens" in text((await world.source.read(0.5)).latency_p95_ms), "not at once again"
    assert "first reading" in text((await world.source.read(2.0)).latency_p95_ms)
    assert world.asked == [("/app", (80, 443))] * 2
    await world.source.close()
    await world.source.close()
    assert [probe.closed for probe in world.probes] == [1]


async def test_a_group_that_is_made_anew_is_attached_anew(tmp_path: Path) -> None:
    folder = tmp_path / "group"
    folder.mkdir()
    world = World(folder)
    await world.source.read(0.0)
    world.place = (
        replace(world.place, inode=os.stat(tmp_path).st_ino) if isinstance(world.place, HookPlace) else ""
    )
    folder.rename(tmp_path / "old")
    folder.symlink_to(tmp_path)
    assert "first reading" in text((await world.source.read(1.0)).work_rate_per_s)
    assert [probe.closed for probe in world.probes] == [1, 0]
    await world.source.close()


async def test_a_quiet_source_looks_whether_the_socket_is_elsewhere_and_says_where(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.source.read(0.0)
    await world.source.read(LOOK_AGAIN_S - 1.0)
    assert len(world.asked) == 1
    world.place = HookPlace(
        str(tmp_path.parent), 0, (80,), "port 80: the listening socket belongs to /x.socket"
    )
    await world.source.read(LOOK_AGAIN_S + 1.0)
    assert world.source.notes == ("port 80: the listening socket belongs to /x.socket",)
    world.kernel.serve(5, 1.0)
    await world.source.read(2.0 * LOOK_AGAIN_S)
    await world.source.read(2.0 * LOOK_AGAIN_S + 2.0)
    assert len(world.probes) == 2, "requests come: it stays"
    await world.source.close()
    assert not world.source.notes


async def test_beside_a_source_without_latency_only_latency_is_taken(tmp_path: Path) -> None:
    class Database:
        closed = 0
        resolution = EXACT

        def worked(self, cpu_s: float | None) -> None:
            raise AssertionError("nobody told how much it worked")

        async def read(self, now_s: float) -> SliReading:
            return SliReading(7.0, Unavailable("no load"), work=SampleSize(7.0, 1.0))

        async def close(self) -> None:
            self.closed += 1

    world, database = World(tmp_path), Database()
    both = WithTcpLatency(database, world.source)
    await both.read(0.0)
    world.kernel.serve(1000, 4.0)
    reading = await both.read(1.0)
    assert reading.work_rate_per_s == 7.0
    assert text(reading.load_per_s) == "no load"
    assert reading.latency_p99_ms == pytest.approx(4.0, rel=0.03)
    assert (reading.work.events, reading.p99.events) == (7.0, 1000.0)
    assert both.resolution == EXACT
    await both.close()
    assert (database.closed, world.probes[0].closed) == (1, 1)


async def test_a_refusal_to_attach_is_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path)

    def refuse(directory, inode, ports):
        raise Denied(directory, "attach BPF programs", 1, advice="CAP_BPF")

    source = TcpSource(SliSpec("tcp"), "/app", world._find, refuse)
    assert "CAP_BPF" in text((await source.read(0.0)).work_rate_per_s)
    await source.close()


# -- placement ----------------------------------------------------------------------------------------------

MOUNT, OWN, SOCKET_UNIT, ELSEWHERE = "/cg", 10, 20, 30
DIRECTORIES = {
    1: MOUNT,
    OWN: f"{MOUNT}/a.slice/web.service",
    SOCKET_UNIT: f"{MOUNT}/a.slice/web.socket",
    ELSEWHERE: "/cg/else",
}
FACTS = HookFacts(
    directory=DIRECTORIES[OWN],
    inode=OWN,
    mount=MOUNT,
    own_ids=frozenset({OWN, 11}),
    socket_unit_id=SOCKET_UNIT,
    held=frozenset({77}),
    listeners=(),
    systemd=None,
)


def placed(
    *listeners: ListeningSocket, ports: tuple[int, ...] = (), systemd: int | None = None
) -> HookPlace | str:
    facts = replace(FACTS, listeners=listeners, systemd=systemd)
    return decide(facts, ports, lambda number: DIRECTORIES.get(number, ""))


def test_the_own_group_whatever_listens_there_or_nothing() -> None:
    own = HookPlace(DIRECTORIES[OWN], OWN)
    assert placed() == own
    assert placed(ListeningSocket(80, 11, 5), ListeningSocket(443, SOCKET_UNIT, 6)) == own
    assert placed(ListeningSocket(9, ELSEWHERE, 6)) == own, "somebody else's"
    assert placed(ports=(80,)) == replace(own, ports=(80,)), "perhaps in another network namespace"


@pytest.mark.parametrize(
    ("listener", "ports", "directory"),
    [
        (ListeningSocket(80, SOCKET_UNIT, 5), (), "/cg/a.slice/web.socket"),
        (ListeningSocket(80, ELSEWHERE, 77), (), "/cg/else"),
        (ListeningSocket(80, ELSEWHERE, 5), (80,), "/cg/else"),
        (ListeningSocket(80, 999, 77), (), MOUNT),
        (ListeningSocket(80, 1, 77), (), MOUNT),
    ],
)
def test_where_the_listening_socket_belongs_with_its_port(
    listener: ListeningSocket, ports: tuple[int, ...], directory: str
) -> None:
    place = placed(listener, ports=ports)
    assert isinstance(place, HookPlace)
    assert (place.directory, place.inode, place.ports) == (directory, 0, (80,))
    assert place.why.startswith("port 80: the listening socket belongs to /") or directory == MOUNT


def test_listeners_of_several_groups_are_seen_from_the_top() -> None:
    place = placed(ListeningSocket(80, SOCKET_UNIT, 5), ListeningSocket(81, ELSEWHERE, 77))
    assert isinstance(place, HookPlace)
    assert (place.directory, place.ports) == (MOUNT, (80, 81))


def test_a_systemd_that_does_not_share_is_measured_at_the_slice_above_or_not() -> None:
    place = placed(ListeningSocket(80, 11, 5), systemd=247)
    assert isinstance(place, HookPlace)
    assert (place.directory, place.inode, place.ports) == ("/cg/a.slice", 0, (80,))
    assert "systemd 247" in place.why
    unknown = placed(systemd=247)
    assert isinstance(unknown, str)
    assert "ports in [lra.sli]" in unknown
    activated = placed(ListeningSocket(80, SOCKET_UNIT, 5), systemd=247)
    assert isinstance(activated, HookPlace)
    assert activated.directory == "/cg/a.slice"


def test_processes_in_the_root_group_need_a_port() -> None:
    facts = replace(FACTS, directory="", inode=0, own_ids=frozenset())
    assert "ports in [lra.sli]" in str(decide(facts, (), lambda _: ""))
    found = decide(replace(facts, listeners=(ListeningSocket(80, 1, 5),)), (80,), lambda _: MOUNT)
    assert isinstance(found, HookPlace)
    assert (found.directory, found.ports) == (MOUNT, (80,))


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("usr/lib/systemd/libsystemd-shared-247.so", 247),
        ("usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so", 252),
        ("usr/lib/systemd/libsystemd-shared-255.4-1.fc40.so", 255),
        ("usr/lib/systemd/libsystemd.so", None),
    ],
)
def test_the_version_of_systemd_is_in_the_name_of_its_library(
    tmp_path: Path, name: str, version: int | None
) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).touch()
    assert systemd_version([str(tmp_path / "usr/lib"), str(tmp_path / "lib")]) == version


def test_groups_nested_deeper_than_python_recurses_are_found(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "/".join("a" * 200))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        found = _ids_below(str(tmp_path))
    finally:
        sys.setrecursionlimit(limit)
    assert list(found.values()) == [str(tmp_path) + "/a" * depth for depth in range(201)]
