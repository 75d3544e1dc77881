"""What a declared band adds to the settings of a workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.qos.band_settings import with_band
from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra

GIB = 1 << 30
ALL = frozenset({"memory_min_bytes", "memory_low_bytes", "io_weight"})


def lra(**changes: Any) -> WorkloadSpec:
    return WorkloadSpec("db", Kind.LRA, "/t/db", **changes)


def test_gold_is_protected_by_the_best_that_the_host_has() -> None:
    gold = lra(band="gold", reserved_memory_bytes=GIB)
    assert with_band(gold, UNTOUCHED, ALL) == Settings(memory_min_bytes=GIB)
    assert with_band(gold, UNTOUCHED, ALL - {"memory_min_bytes"}) == Settings(memory_low_bytes=GIB)
    # Nothing protects memory here: it is asked for, so that the status says why it is not in force.
    assert with_band(gold, UNTOUCHED, frozenset()) == Settings(memory_low_bytes=GIB)


def test_a_protection_is_raised_and_never_lowered() -> None:
    silver = lra(band="silver", reserved_memory_bytes=GIB)
    for had, found in ((GIB // 2, GIB), (2 * GIB, 2 * GIB)):
        assert with_band(silver, Settings(memory_low_bytes=had), ALL).memory_low_bytes == found


@pytest.mark.parametrize(
    "spec",
    [
        lra(reserved_memory_bytes=GIB),
        lra(band="gold"),
        lra(band="silver", reserved_memory_bytes=GIB, shape="core"),
        WorkloadSpec("pi", Kind.BATCH, "/t/pi"),
    ],
    ids=["no band", "no reservation", "the shaper's", "batch without a band"],
)
def test_what_declares_nothing_is_left_alone(spec: WorkloadSpec) -> None:
    assert with_band(spec, UNTOUCHED, ALL) == UNTOUCHED


def test_copper_has_the_least_weight_unless_the_policy_chose_one() -> None:
    copper = WorkloadSpec("pi", Kind.BATCH, "/t/pi", band="copper", reserved_memory_bytes=GIB)
    assert with_band(copper, UNTOUCHED, ALL) == Settings(io_weight=1)
    assert with_band(copper, Settings(io_weight=50), ALL).io_weight == 50
    assert with_band(copper, UNTOUCHED, frozenset()).io_weight is KEEP


async def test_the_executor_writes_it_in_enforce_and_gives_it_back(tmp_path: Path) -> None:
    host = SimHost(
        [Lra("db", "/t/db", clients=2, service_ms=2.0), Batch("pi", "/t/pi", threads=2)],
        machine=Machine(1, 4),
        seed=1,
    )
    config = Config(
        daemon=DaemonConfig(mode=Mode.ENFORCE, policy="none", state_dir=str(tmp_path)),
        store=StoreConfig(enabled=False),
        workloads=(
            WorkloadSpec(
                "db", Kind.LRA, "/t/db", sli=SliSpec("simulated", (("workload", "db"),)), band="gold",
                reserved_memory_bytes=GIB,
            ),
            WorkloadSpec("pi", Kind.BATCH, "/t/pi", band="copper"),
        ),
    )  # fmt: skip
    path, ceiling = f"{CGROUP_ROOT}/t/db/memory.min", f"{CGROUP_ROOT}/t/pi/memory.high"
    before = host.fs.read(path)
    assert host.fs.read(ceiling) == b"max\n"
    agent = build_agent(config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host))
    for second in (1.0, 2.0, 3.0):
        host.advance(second)
        await agent.tick(second)
    assert int(host.fs.read(path)) == GIB
    assert int(host.fs.read(ceiling)) == pytest.approx(0.8 * host.machine.memory_bytes, abs=1 << 16)
    assert not agent.blocked("pi")
    await agent.stop(restore=True)
    assert host.fs.read(path) == before
    assert host.fs.read(ceiling) == b"max\n"


def test_copper_may_have_four_fifths_of_the_host_and_a_lower_ceiling_stays() -> None:
    copper = WorkloadSpec("pi", Kind.BATCH, "/t/pi", band="copper")
    knobs = frozenset({"memory_high_bytes"})
    assert with_band(copper, UNTOUCHED, knobs, 10 * GIB) == Settings(memory_high_bytes=8 * GIB)
    assert with_band(copper, Settings(memory_high_bytes=GIB), knobs, 10 * GIB).memory_high_bytes == GIB
    assert with_band(copper, UNTOUCHED, knobs, 0) == UNTOUCHED, "the host's memory is not known"
    assert with_band(copper, UNTOUCHED, frozenset(), 10 * GIB) == UNTOUCHED
    assert with_band(lra(band="silver"), UNTOUCHED, knobs, 10 * GIB) == UNTOUCHED


def test_gold_that_the_host_cannot_hold_has_the_next_best_protection() -> None:
    gold = lra(band="gold", reserved_memory_bytes=GIB)
    assert with_band(gold, UNTOUCHED, ALL, guaranteed=False) == Settings(memory_low_bytes=GIB)
