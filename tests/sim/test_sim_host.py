"""Laws of the simulated host that hold whatever is written to its files, and its parts seen from perphd's side."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Gone, Invalid, Unsupported
from perphd.domain.reading import Unavailable, available
from perphd.host.perf_event_types import PerfEventKind
from perphd.host.psi import parse_pressure
from perphd.host.schedstat import RunDelayReader
from perphd.sim.host import Arrival, Departure, Event, LoadChange, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra, Workload

DB = f"{CGROUP_ROOT}/lab/db"
PI = f"{CGROUP_ROOT}/lab/pi"


def make_host(seed: int = 1, pmu: bool = True, events: tuple[Event, ...] = ()) -> SimHost:
    works: list[Workload] = [
        Lra("db", "/lab/db", clients=6, service_ms=2.0),
        Lra("web", "/lab/web", rate_per_s=400.0),
        Batch("pi", "/lab/pi", threads=6),
    ]
    return SimHost(works, machine=Machine(1, 4), seed=seed, pmu=pmu, events=events)


def number(host: SimHost, path: str, key: str) -> int:
    for line in host.fs.read(path).decode().splitlines():
        if line.startswith(f"{key} "):
            return int(line.split()[1])
    raise AssertionError(f"{path} has no {key}")


def everything(host: SimHost, path: str = CGROUP_ROOT) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    directories = host.fs.subdirectories(path)
    for name in host.fs.listdir(path):
        inner = f"{path}/{name}"
        if name in directories:
            found.update(everything(host, inner))
        else:
            with suppress(Invalid):  # files for writing alone
                found[inner] = host.fs.read(inner)
    return found


def test_the_same_seed_gives_the_same_bytes() -> None:
    def run(seed: int) -> tuple[dict[str, bytes], object]:
        host = make_host(seed, events=(Arrival(3, "pi"), Departure(15, "pi"), LoadChange(9, "web", 1.5)))
        cursor = host.sli("web")
        host.advance(5)
        host.fs.write(f"{PI}/cpu.weight", b"7")
        host.advance(20)
        return everything(host), cursor.read()

    assert run(4) == run(4)
    assert run(4) != run(5)


def test_looking_does_not_change_the_run() -> None:
    seldom, often = make_host(), make_host()
    seldom.advance(12)
    for step in range(1, 49):
        often.advance(step / 4)
        often.fs.read(f"{DB}/cpu.stat")
    assert everything(seldom) == everything(often)


writes = st.lists(
    st.tuples(
        st.sampled_from(["db", "web", "pi"]),
        st.one_of(
            st.tuples(st.just("cpu.weight"), st.integers(1, 10000).map(str)),
            st.tuples(st.just("cpu.idle"), st.sampled_from(["0", "1"])),
            st.tuples(st.just("cpuset.cpus"), st.integers(1, 15).map(lambda mask: str(CpuSet(mask)))),
            st.tuples(st.just("cpu.max"), st.sampled_from(["max", "50000 100000", "150000 100000"])),
            st.tuples(st.just("memory.high"), st.sampled_from(["max", "600M", "64M"])),
            st.tuples(st.just("memory.low"), st.sampled_from(["0", "1G", "max"])),
        ),
    ),
    max_size=6,
)


@settings(max_examples=30)
@given(writes, st.integers(0, 1000))
def test_counters_only_grow_and_nobody_gets_more_than_there_is(
    wanted: list[tuple[str, tuple[str, str]]], seed: int
) -> None:
    host = make_host(seed)
    before = dict.fromkeys(("db", "web", "pi"), 0)
    pressures = dict.fromkeys(before, 0)
    host.advance(1.0)
    for index in range(len(wanted) + 1):
        if index:
            name, (file, value) = wanted[index - 1]
            with suppress(Invalid):  # cpu.weight while idle
                host.fs.write(f"{CGROUP_ROOT}/lab/{name}/{file}", value.encode())
        host.advance(host.now_s + 1.0)
        total = 0.0
        for name, old in list(before.items()):
            directory = f"{CGROUP_ROOT}/lab/{name}"
            used = number(host, f"{directory}/cpu.stat", "usage_usec")
            cpus = len(CpuSet.parse(host.fs.read(f"{directory}/cpuset.cpus.effective").decode()))
            grown = used - old
            assert grown >= 0
            if index:
                assert grown <= cpus * 1e6 + 2
                total += grown
            before[name] = used
            pressure = parse_pressure(host.fs.read(f"{directory}/cpu.pressure").decode())
            assert pressure.full is not None
            assert pressures[name] <= pressure.some.total_us <= host.now_s * 1e6 + 1
            assert pressure.full.total_us <= pressure.some.total_us
            pressures[name] = pressure.some.total_us
        assert total <= host.machine.cpus * 1e6 + 10
    assert number(host, f"{CGROUP_ROOT}/cpu.stat", "usage_usec") == pytest.approx(sum(before.values()), abs=5)


@settings(max_examples=20)
@given(st.integers(1, 8), st.integers(1, 8))
def test_no_pressure_without_contention(cores: int, threads: int) -> None:
    host = SimHost([Batch("pi", "/pi", threads=threads)], machine=Machine(1, cores))
    host.advance(3.0)
    pressure = parse_pressure(host.fs.read(f"{CGROUP_ROOT}/pi/cpu.pressure").decode())
    assert (pressure.some.total_us == 0) == (threads <= cores)
    used = number(host, f"{CGROUP_ROOT}/pi/cpu.stat", "usage_usec")
    assert used == pytest.approx(min(threads, cores) * 3e6, rel=1e-6)


def test_a_quiet_application_is_hardly_stalled() -> None:
    host = SimHost([Lra("web", "/web", rate_per_s=500)], machine=Machine(1, 16))
    host.advance(30.0)
    assert (
        parse_pressure(host.fs.read(f"{CGROUP_ROOT}/web/cpu.pressure").decode()).some.total_us < 30e6 * 0.005
    )
    assert parse_pressure(host.fs.read("/proc/pressure/memory").decode()).some.avg60_pct == pytest.approx(
        0, abs=2
    )


def test_a_slice_that_competes_above_is_what_counts() -> None:
    """Demoting a group inside its own slice does nothing against groups beside the slice."""
    works: list[Workload] = [Batch("a", "/one/a", threads=4), Batch("b", "/two/b", threads=4)]
    host = SimHost(works, machine=Machine(1, 4))
    host.fs.write(f"{CGROUP_ROOT}/one/a/cpu.weight", b"1")
    host.advance(5.0)
    assert host.work_done("a") == pytest.approx(host.work_done("b"), rel=0.01)
    host.fs.write(f"{CGROUP_ROOT}/one/cpu.weight", b"1")
    done = host.work_done("a")
    host.advance(10.0)
    assert host.work_done("a") - done < 0.5


def test_a_quota_is_kept_and_told() -> None:
    host = make_host()
    host.fs.write(f"{PI}/cpu.max", b"50000 100000")
    host.advance(10.0)
    assert number(host, f"{PI}/cpu.stat", "usage_usec") <= 0.51 * 10e6
    assert number(host, f"{PI}/cpu.stat", "nr_throttled") > 90


def test_arrivals_and_departures() -> None:
    events = (Arrival(2.0, "pi"), Departure(4.0, "pi", remove_cgroup=True), Arrival(6.0, "pi"))
    host = make_host(events=events)
    host.advance(1.0)
    assert host.fs.read(f"{PI}/cgroup.procs") == b""
    host.advance(3.0)
    pids = host.fs.read(f"{PI}/cgroup.procs").decode().split()
    assert len(pids) == 1
    assert b"0::/lab/pi" in host.fs.read(f"/proc/{pids[0]}/cgroup")
    kept = host.fs.open(f"{PI}/cpu.stat")
    host.advance(5.0)
    assert not host.fs.exists(PI)
    assert not host.fs.exists(f"/proc/{pids[0]}")
    assert not host.running("pi")
    with pytest.raises(Gone):
        kept.read()
    host.advance(7.0)
    assert host.fs.read(f"{PI}/cgroup.procs") not in (b"", "\n".join(pids).encode())


def test_more_load_is_seen_in_the_indicators() -> None:
    host = make_host(events=(LoadChange(10.0, "web", 2.0),))
    cursor, closed = host.sli("web"), host.sli("db")
    host.advance(10.0)
    before, _ = cursor.read(), closed.read()
    assert cursor.read() is None  # no time has passed
    host.advance(20.0)
    after, other = cursor.read(), closed.read()
    assert before is not None
    assert after is not None
    assert other is not None
    assert before.load_per_s is not None
    assert after.load_per_s == pytest.approx(2 * before.load_per_s, rel=0.1)
    assert other.load_per_s is None


def test_run_queue_delay_is_read_from_the_processes() -> None:
    host = make_host()
    reader = RunDelayReader(host.fs, None)
    pids = [int(pid) for pid in host.fs.read(f"{PI}/cgroup.procs").split()]
    reader.update(pids)
    reader.read()
    host.advance(10.0)
    delay = reader.read()
    assert not isinstance(delay, Unavailable)
    used = number(host, f"{PI}/cpu.stat", "usage_usec") / 1e6
    assert delay.delay_ns / 1e9 == pytest.approx(60.0 - used, rel=0.05)  # 6 threads always want to run
    reader.close()


def test_counters_follow_the_work() -> None:
    host = make_host()
    group = host.perf_opener(DB, host.machine.online, (PerfEventKind.INSTRUCTIONS, PerfEventKind.CYCLES))
    host.fs.write(f"{PI}/cpu.idle", b"1")
    host.advance(10.0)
    first = group.read()
    host.fs.write(f"{PI}/cpu.idle", b"0")
    host.advance(20.0)
    second = group.read()
    done = [
        (a, b) for a, b in ((first[kind], second[kind]) for kind in first) if available(a) and available(b)
    ]
    assert len(done) == 2
    (instructions, later_instructions), (cycles, later_cycles) = done
    assert instructions / cycles < 1.0  # disturbed: below its IPC of 1
    assert later_instructions - instructions < instructions  # and getting less of the CPU
    assert later_cycles > cycles
    group.close()


def test_no_pmu_no_hardware_counters() -> None:
    host = make_host(pmu=False)
    with pytest.raises(Unsupported):
        host.perf_opener(DB, host.machine.online, (PerfEventKind.CYCLES,))
    host.perf_opener(DB, host.machine.online, (PerfEventKind.CONTEXT_SWITCHES,)).close()
    with pytest.raises(Gone):
        host.perf_opener(f"{CGROUP_ROOT}/none", host.machine.online, (PerfEventKind.CONTEXT_SWITCHES,))


class TestMemory:
    def host(self, memory_bytes: int = 16 << 30) -> SimHost:
        works: list[Workload] = [
            Lra("db", "/lab/db", rate_per_s=500, anon_bytes=512 << 20, cache_bytes=1 << 30),
            Batch("pi", "/lab/pi", threads=2, anon_bytes=256 << 20, cache_bytes=2 << 30),
        ]
        return SimHost(works, machine=Machine(1, 8, memory_bytes=memory_bytes))

    def current(self, host: SimHost, directory: str) -> int:
        return int(host.fs.read(f"{directory}/memory.current"))

    def test_room_for_all(self) -> None:
        host = self.host()
        host.advance(20.0)
        before = number(host, f"{DB}/memory.stat", "workingset_refault_file")
        host.advance(30.0)
        assert self.current(host, DB) == pytest.approx((512 << 20) + (1 << 30), rel=0.001)
        assert number(host, f"{DB}/memory.stat", "workingset_refault_file") == before

    def test_high_reclaims_and_costs_latency(self) -> None:
        host = self.host()
        host.advance(20.0)
        cursor = host.sli("db")
        host.advance(25.0)
        good = cursor.read()
        host.fs.write(f"{DB}/memory.high", b"700M")
        host.advance(30.0)
        cursor.read()
        host.advance(35.0)
        bad = cursor.read()
        assert good is not None
        assert bad is not None
        assert good.p95_ms is not None
        assert bad.p95_ms is not None
        assert self.current(host, DB) <= 700 << 20
        assert bad.p95_ms > 1.2 * good.p95_ms
        assert number(host, f"{DB}/memory.events", "high") > 0
        assert parse_pressure(host.fs.read(f"{DB}/memory.pressure").decode()).some.avg10_pct > 5

    def test_low_protects_when_the_host_is_short(self) -> None:
        def resident(protect: bool) -> tuple[int, int]:
            host = self.host(memory_bytes=3 << 30)
            if protect:
                host.fs.write(f"{DB}/memory.low", b"1600M")
            host.advance(60.0)
            return self.current(host, DB), self.current(host, PI)

        open_db, open_pi = resident(protect=False)
        kept_db, kept_pi = resident(protect=True)
        assert kept_db > open_db
        assert kept_pi < open_pi
        assert kept_db >= (1536 << 20) * 0.99

    def test_max_below_what_cannot_be_reclaimed_kills(self) -> None:
        host = self.host()
        host.advance(20.0)
        host.fs.write(f"{PI}/memory.max", b"1G")  # the cache gives way
        assert host.running("pi")
        assert self.current(host, PI) <= 1 << 30
        host.fs.write(f"{PI}/memory.max", b"\n")  # an empty line is 0
        assert not host.running("pi")
        assert number(host, f"{PI}/memory.events", "oom_kill") == 1
        assert self.current(host, PI) == 0
        host.advance(21.0)

    def test_high_below_the_anonymous_memory_throttles(self) -> None:
        host = self.host()
        host.advance(20.0)
        done = host.work_done("pi")
        host.fs.write(f"{PI}/memory.high", b"64M")
        host.advance(30.0)
        assert host.work_done("pi") - done < 0.3 * done / 2
        assert parse_pressure(host.fs.read(f"{PI}/memory.pressure").decode()).some.avg10_pct > 40


def test_an_lra_asks_in_one_way() -> None:
    with pytest.raises(ValueError, match="either clients"):
        Lra("db", "/db")
    with pytest.raises(ValueError, match="either clients"):
        Lra("db", "/db", clients=1, rate_per_s=1.0)
