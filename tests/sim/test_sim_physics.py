"""Performance on the simulated host follows what was measured: MariaDB under sysbench beside four CPU-bound
processes on two cores. Orders are asserted closely, figures roughly: the measurement itself varies by 10-20 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra

BATCH_PER_CORE = 254.0  # million samples a second

# What is written to which file; "flat" takes the cpu controller away, as on a host that never enabled it.
SCHEMES: dict[str, tuple[tuple[str, str], ...]] = {
    "uncontrolled": (("cgroup.subtree_control", "-cpu"),),
    "two groups": (),
    "shares": (("pi/cpu.weight", "6"),),
    "idle": (("pi/cpu.idle", "1"),),
    "exclusive": (("db/cpuset.cpus", "0"), ("pi/cpuset.cpus", "1")),
    "confined shares": (("pi/cpuset.cpus", "1"), ("pi/cpu.weight", "6")),
    "confined idle": (("pi/cpuset.cpus", "1"), ("pi/cpu.idle", "1")),
}

# scheme: (transactions/s, p95 ms, batch's million samples/s)
MEASURED_CLOSED = {
    "alone": (1527, 4.7, 0),
    "alone on one": (1032, 5.6, 0),
    "uncontrolled": (681, 13.5, 268),
    "two groups": (962, 8.6, 210),
    "shares": (1186, 6.6, 113),
    "idle": (1174, 5.6, 135),
    "exclusive": (901, 6.8, 245),
    "confined shares": (1417, 4.9, 60),
    "confined idle": (1471, 4.7, 77),
}
MEASURED_OPEN = {
    "alone": (506, 3.6, 0),
    "uncontrolled": (499, 18.3, 316),
    "two groups": (498, 7.3, 317),
    "shares": (506, 6.5, 320),
    "idle": (498, 5.8, 316),
    "exclusive": (496, 24.8, 253),
}


@dataclass(frozen=True)
class Result:
    tps: float
    p50: float
    p95: float
    p99: float
    batch: float


@cache
def measure(load: str, scheme: str) -> Result:
    """Ten virtual seconds in the steady state."""
    database = Lra("db", "/lab/db", clients=4) if load == "closed" else Lra("db", "/lab/db", rate_per_s=500)
    works = [database]
    alone = scheme.startswith("alone")
    batch = [] if alone else [Batch("pi", "/lab/pi", threads=4, work_per_core_s=BATCH_PER_CORE)]
    host = SimHost([*works, *batch], machine=Machine(1, 2), seed=3)
    for name, value in (("db/cpuset.cpus", "0"),) if scheme == "alone on one" else SCHEMES.get(scheme, ()):
        host.fs.write(f"{CGROUP_ROOT}/lab/{name}", value.encode())
    host.advance(10.0)
    cursor, done = host.sli("db"), 0.0 if alone else host.work_done("pi")
    host.advance(20.0)
    window = cursor.read()
    assert window is not None
    assert window.p50_ms is not None
    assert window.p95_ms is not None
    assert window.p99_ms is not None
    work = 0.0 if alone else (host.work_done("pi") - done) / 10.0
    return Result(window.work_rate_per_s, window.p50_ms, window.p95_ms, window.p99_ms, work)


@pytest.mark.parametrize("scheme", MEASURED_CLOSED)
def test_closed_loop_figures(scheme: str) -> None:
    tps, p95, batch = MEASURED_CLOSED[scheme]
    got = measure("closed", scheme)
    assert got.tps == pytest.approx(tps, rel=0.2)
    assert got.p95 == pytest.approx(p95, rel=0.35)
    assert got.batch == pytest.approx(batch, rel=0.45, abs=1)


@pytest.mark.parametrize("scheme", MEASURED_OPEN)
def test_open_loop_figures(scheme: str) -> None:
    tps, p95, batch = MEASURED_OPEN[scheme]
    got = measure("open", scheme)
    assert got.tps == pytest.approx(tps, rel=0.05)
    assert got.p95 == pytest.approx(p95, rel=0.4)
    assert got.batch == pytest.approx(batch, rel=0.2, abs=1)


def ordered(load: str, field: str, *schemes: str) -> None:
    values = [getattr(measure(load, scheme), field) for scheme in schemes]
    assert values == sorted(values), dict(zip(schemes, values, strict=True))


def test_closed_loop_order() -> None:
    ordered("closed", "tps", "uncontrolled", "two groups", "shares", "confined shares", "alone")
    ordered("closed", "tps", "uncontrolled", "exclusive", "idle", "confined idle", "alone")
    ordered("closed", "p95", "alone", "confined idle", "idle", "shares", "two groups", "uncontrolled")
    ordered("closed", "batch", "confined shares", "shares", "two groups", "uncontrolled")
    ordered("closed", "batch", "confined idle", "idle", "exclusive")


def test_open_loop_order() -> None:
    """Throughput tells nothing; an exclusive split of two cores is worse than no control; demotion is nearly free."""
    ordered("open", "p95", "alone", "idle", "shares", "two groups", "uncontrolled", "exclusive")
    ordered("open", "p95", "alone", "confined idle", "two groups")
    assert measure("open", "idle").batch > 0.92 * measure("open", "uncontrolled").batch
    assert measure("open", "confined idle").batch < 0.85 * measure("open", "idle").batch


@pytest.mark.parametrize("machine", [Machine(1, 16), Machine(2, 8, 2)])
def test_the_same_on_a_bigger_host(machine: Machine) -> None:
    def run(*writes: tuple[str, str], batch: bool = True) -> tuple[float, float, float]:
        works = [Lra("db", "/lab/db", clients=20, service_ms=2.0, serial_ms=0.02, wait_ms=1.0)]
        jobs = [Batch("pi", "/lab/pi", threads=machine.cpus)] if batch else []
        host = SimHost([*works, *jobs], machine=machine, seed=2)
        for name, value in writes:
            host.fs.write(f"{CGROUP_ROOT}/lab/{name}", value.encode())
        host.advance(5.0)
        cursor = host.sli("db")
        host.advance(15.0)
        window = cursor.read()
        assert window is not None
        assert window.p95_ms is not None
        return window.work_rate_per_s, window.p95_ms, host.work_done("pi") if batch else 0.0

    alone, native, demoted = run(batch=False), run(), run(("pi/cpu.weight", "2"))
    idle = run(("pi/cpu.idle", "1"))
    assert native[0] < 0.85 * alone[0]
    assert native[1] > 1.3 * alone[1]
    assert native[0] < demoted[0] < alone[0]
    assert native[0] < idle[0] < alone[0]
    assert 0 < idle[2] < native[2]


def test_hyperthreads_share_a_core() -> None:
    def work_per_s(threads: int) -> float:
        host = SimHost([Batch("pi", "/pi", threads=threads)], machine=Machine(1, 4, 2))
        host.advance(10.0)
        return host.work_done("pi") / 10.0

    one, four, eight = work_per_s(1), work_per_s(4), work_per_s(8)
    assert one == pytest.approx(1.0, rel=0.05)
    assert four < eight < 2 * four
    assert eight == pytest.approx(8 * 0.62, rel=0.05)
