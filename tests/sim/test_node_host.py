"""The simulated host on the node model: what is written into the kernel's files acts, through caches, disk and bus."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perphd.host.psi import parse_pressure
from perphd.sim.events import Arrival, Departure, WorkChange
from perphd.sim.host import SimHost
from perphd.sim.kernel.cgroup2.rules import DISK
from perphd.sim.machine import CGROUP_ROOT
from perphd.sim.node.archetypes import archetype
from perphd.sim.node.load import Arrivals, Bursts, Diurnal, Steps
from perphd.sim.node.machine import SILVER_4110, SILVER_4114
from perphd.sim.workload import Batch, Lra, placed

RESCTRL = "/sys/fs/resctrl"


def pids(host: SimHost, cgroup: str) -> list[str]:
    return host.fs.read(f"{CGROUP_ROOT}{cgroup}/cgroup.threads").decode().split()


def move(host: SimHost, cgroup: str, group: str) -> None:
    for tid in pids(host, cgroup):
        host.fs.raw.write(f"{RESCTRL}/{group}/tasks", tid.encode())


def counter(host: SimHost, group: str, event: str, domain: int = 0) -> int:
    where = f"{RESCTRL}/{group}/mon_data/mon_L3_{domain:02d}/{event}".replace("//", "/")
    return int(host.fs.read(where))


class TestResctrl:
    def host(self) -> SimHost:
        works = [placed("xapian", "/lra/xapian", rate_per_s=4000), placed("batch-thrash", "/batch/thrash")]
        host = SimHost(works, machine=SILVER_4114, resctrl=True, pmu=True)
        cpus = SILVER_4114.first_cores
        host.fs.write(f"{CGROUP_ROOT}/lra/xapian/cpuset.cpus", str(cpus(6)).encode())
        host.fs.write(f"{CGROUP_ROOT}/batch/thrash/cpuset.cpus", str(cpus(4, 6)).encode())
        for group in ("lra", "batch"):
            host.fs.raw.mkdir(f"{RESCTRL}/{group}")
        move(host, "/lra/xapian", "lra")
        move(host, "/batch/thrash", "batch")
        return host

    def test_masks_act(self) -> None:
        host = self.host()
        host.advance(10)
        before, theirs = host.outcome("xapian"), host.outcome("batch-thrash")
        host.fs.write(f"{RESCTRL}/lra/schemata", b"L3:0=7f0\n")
        host.fs.write(f"{RESCTRL}/batch/schemata", b"L3:0=00f\n")
        host.advance(20)
        after, starved = host.outcome("xapian"), host.outcome("batch-thrash")
        assert after.occupancy_bytes > 1.3 * before.occupancy_bytes
        assert after.mpki < 0.8 * before.mpki
        assert after.service_s < before.service_s
        assert starved.work_per_s < theirs.work_per_s
        assert starved.occupancy_bytes <= 4 * SILVER_4114.way_bytes * 1.001

    def test_throttling_acts_and_is_seen(self) -> None:
        host = self.host()
        host.advance(10)
        moved = counter(host, "batch", "mbm_total_bytes")
        host.advance(15)
        rate = (counter(host, "batch", "mbm_total_bytes") - moved) / 5
        assert rate == pytest.approx(host.outcome("batch-thrash").bandwidth_bytes_per_s, rel=0.05)
        host.fs.write(f"{RESCTRL}/batch/schemata", b"MB:0=10\n")
        host.advance(18)
        moved = counter(host, "batch", "mbm_total_bytes")
        host.advance(23)
        throttled = (counter(host, "batch", "mbm_total_bytes") - moved) / 5
        assert throttled < 0.75 * rate
        # Four cores at about 2.2 GB/s each: the floor is high.
        assert throttled <= 4 * 2.3e9

    def test_occupancy_is_told_by_group(self) -> None:
        host = self.host()
        host.advance(10)
        held = {group: counter(host, group, "llc_occupancy") for group in ("lra", "batch")}
        for name, group in (("xapian", "lra"), ("batch-thrash", "batch")):
            assert held[group] == pytest.approx(host.outcome(name).occupancy_bytes, abs=65536)
        assert sum(held.values()) <= SILVER_4114.l3_bytes
        assert counter(host, "", "llc_occupancy") == 0

    def test_the_kernel_tells_that_it_is_mounted(self) -> None:
        assert b" /sys/fs/resctrl resctrl " in self.host().fs.read("/proc/self/mounts")
        assert not SimHost([Batch("pi", "/pi")]).fs.exists(f"{RESCTRL}/schemata")


def test_archetypes_by_name_run_on_their_machine() -> None:
    works = [placed("mysql-oltp", "/lra/mysql", "mysql"), placed("batch-pi", "/batch/pi", "pi")]
    host = SimHost(works, machine=SILVER_4110, events=[Arrival(20, "pi")])
    host.advance(20)
    alone = host.outcome("mysql")
    host.advance(40)
    native = host.outcome("mysql")
    assert host.running("pi")
    assert native.work_per_s < 0.93 * alone.work_per_s
    assert native.p99_ms > 1.3 * alone.p99_ms
    assert native.mpki >= alone.mpki
    host.fs.write(f"{CGROUP_ROOT}/batch/pi/cpu.idle", b"1")
    host.advance(60)
    assert host.outcome("mysql").work_per_s > native.work_per_s


def test_a_disk_is_shared_and_io_max_divides_it() -> None:
    works = [placed("mysql-olap", "/lra/olap", "olap"), placed("batch-fio", "/batch/fio", "fio")]
    host = SimHost(works, machine=SILVER_4110, events=[Arrival(60, "fio")])
    host.advance(60)
    alone = host.outcome("olap").work_per_s
    host.advance(90)
    beside = host.outcome("olap")
    assert beside.work_per_s < 0.9 * alone
    pressure = parse_pressure(host.fs.read(f"{CGROUP_ROOT}/batch/fio/io.pressure").decode())
    assert pressure.some.avg10_pct > 50
    host.fs.write(f"{CGROUP_ROOT}/batch/fio/io.max", f"{DISK} rbps=20971520".encode())
    host.advance(120)
    assert host.outcome("fio").disk_bytes_per_s == pytest.approx(20971520, rel=0.05)
    assert host.outcome("olap").work_per_s > 1.1 * beside.work_per_s


def test_jobs_end_when_their_work_is_done() -> None:
    works = [Batch("a", "/a", threads=2, work_per_core_s=10.0), Batch("b", "/b", threads=2)]
    host = SimHost(works, jobs={"a": 100.0})
    host.advance(20)
    finished = host.finished_s("a")
    assert finished == pytest.approx(5.0, abs=0.5)
    assert not host.running("a")
    assert host.running("b")
    assert host.finished_s("b") is None


def test_what_a_workload_is_can_change() -> None:
    work = placed("xapian", "/x", rate_per_s=3000)
    grown = replace(work.node, code=replace(work.node.code, mpki_swing=4 * work.node.code.mpki_swing))
    slower = replace(grown, code=replace(grown.code, cpi=1.3 * grown.code.cpi))
    host = SimHost([work], machine=SILVER_4114, events=[WorkChange(10, grown), WorkChange(20, slower)])
    seen = []
    for now_s in (10, 20, 30):
        host.advance(now_s)
        seen.append(host.outcome("xapian").cpi)
    assert seen == sorted(seen)
    assert seen[1] > 1.01 * seen[0]
    assert seen[2] > 1.15 * seen[1]
    with pytest.raises(ValueError, match="must be of that kind"):
        SimHost(
            [work], events=[WorkChange(0, replace(archetype("batch-pi").workload, name="xapian"))]
        ).advance(1)


def test_load_follows_its_trace() -> None:
    trace = Steps(((10.0, 2.0), (20.0, 0.5)))
    host = SimHost([Lra("web", "/web", rate_per_s=400)], loads={"web": trace})
    cursor, seen = host.sli("web"), []
    for now_s in (10, 20, 30):
        host.advance(now_s)
        window = cursor.read()
        assert window is not None
        seen.append(window.work_rate_per_s)
    assert seen == pytest.approx([400, 800, 200], rel=0.08)


def test_a_frozen_group_stands_still() -> None:
    host = SimHost([Batch("pi", "/pi", threads=2)])
    host.advance(2)
    host.fs.write(f"{CGROUP_ROOT}/pi/cgroup.freeze", b"1")
    host.advance(3)
    done = host.work_done("pi")
    host.advance(5)
    assert host.work_done("pi") == pytest.approx(done, abs=0.01)
    host.fs.write(f"{CGROUP_ROOT}/pi/cgroup.freeze", b"0")
    host.advance(7)
    assert host.work_done("pi") > done + 3


def test_killing_the_group_ends_the_workload() -> None:
    host = SimHost([Batch("pi", "/pi", threads=2)], events=[Departure(9, "pi")])
    host.advance(1)
    host.fs.write(f"{CGROUP_ROOT}/pi/cgroup.kill", b"1")
    assert not host.running("pi")
    host.advance(10)
    assert host.outcome("pi").usage_cores == 0


def test_traces() -> None:
    day = Diurnal(0.2, 1.0)
    assert day.at(0) == pytest.approx(0.2)
    assert day.at(43_200) == pytest.approx(1.0)
    bursts = Bursts(1.0, 3.0, every_s=30, length_s=5, seed=4)
    values = [bursts.at(now / 10) for now in range(60_000)]
    assert set(values) == {1.0, 3.0}
    assert sum(value == 3.0 for value in values) / len(values) == pytest.approx(5 / 30, rel=0.3)
    again = Bursts(1.0, 3.0, every_s=30, length_s=5, seed=4)
    assert values == [again.at(now / 10) for now in range(60_000)]
    arrivals = Arrivals.of([0.1, 0.2, 0.3, 1.5], bin_s=1.0)
    assert (arrivals.at(0.5), arrivals.at(1.5), arrivals.at(2.5)) == (1.5, 0.5, 1.5)
    with pytest.raises(ValueError, match="order"):
        Steps(((5.0, 1.0), (1.0, 2.0)))
