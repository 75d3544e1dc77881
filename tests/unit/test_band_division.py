"""CPUs and cache ways by band: who gets which, who is never narrowed, and that it is written and given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.config.workloads import read_workload
from perphd.domain.allocation import IDLE, KEEP, UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ConfigError
from perphd.domain.topology import Core, L3Domain, Topology
from perphd.domain.workload import Kind, Mode, SliSpec, Touch, WorkloadSpec
from perphd.isolation import Executor, Journal
from perphd.qos.band_report import BandMember, HostControls, report
from perphd.qos.band_settings import weight_for, with_band
from perphd.qos.bands import QosBand
from perphd.qos.division import SYSTEM, Division, Masks, beside_gold, divided, over, way_shares
from perphd.qos.ledger import violations
from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra
from tests.unit.isolation_kernel import FakeKernel

KNOBS = frozenset({"cpus", "cpu_weight", "llc_masks", "memory_min_bytes", "memory_low_bytes"})
WAYS = 12


def topology(sockets: int = 2, cores: int = 4, threads: int = 2) -> Topology:
    """CPU numbers as on x86: first one thread of every core."""
    count = sockets * cores
    found = tuple(Core(n // cores, n, CpuSet.of(range(n, count * threads, count))) for n in range(count))
    caches = []
    for socket in range(sockets):
        cpus = CpuSet()
        for core in found:
            cpus = cpus | core.cpus if core.socket == socket else cpus
        caches.append(L3Domain(socket, cpus, 1 << 24))
    return Topology(found, tuple(caches), (), CpuSet.of(range(count * threads)))


HOST = topology()


def lra(name: str, band: str | None, cpus: float = 0.0, **changes: Any) -> WorkloadSpec:
    return WorkloadSpec(name, Kind.LRA, f"/{name}", band=band, reserved_cpus=cpus, **changes)


def batch(name: str = "pi", band: str | None = None, **changes: Any) -> WorkloadSpec:
    return WorkloadSpec(name, Kind.BATCH, f"/{name}", band=band, **changes)


def division(*specs: WorkloadSpec, host: Topology = HOST, knobs: frozenset[str] = KNOBS) -> Division:
    return divided(host, specs, {spec.name: knobs for spec in specs})


def settings(
    spec: WorkloadSpec, made: Division, wanted: Settings = UNTOUCHED, masks: dict[int, Masks] | None = None
) -> Settings:
    return over(spec, wanted, made, masks or {}, KNOBS, 1)


def test_gold_has_whole_cores_and_nobody_else_runs_there() -> None:
    db, web, pi = lra("db", "gold", 3.0), lra("web", "silver", 4.0), batch()
    made = division(db, web, pi)
    assert made.cores["db"] == CpuSet.of((0, 1, 8, 9)), "3 CPUs are two cores, with their siblings"
    assert settings(db, made) == Settings(cpus=CpuSet.of((0, 1, 8, 9)))
    rest = HOST.usable - made.cores["db"]
    assert settings(web, made) == Settings(cpus=rest, cpu_weight=400)
    assert settings(pi, made) == Settings(cpus=rest)


def test_an_lra_that_may_not_be_narrowed_keeps_its_cpus_and_batch_leaves_room() -> None:
    db = lra("db", "gold", 4.0, touch=Touch.BATCH)
    web = lra("web", None, touch=Touch.BATCH)
    made = division(db, web, batch())
    assert settings(db, made) == Settings(cpu_weight=400)
    assert settings(web, made, masks={0: Masks(1, 1)}) == UNTOUCHED
    assert settings(batch(), made).cpus == HOST.usable - CpuSet.of((0, 1, 8, 9))


def test_the_policy_may_be_stricter_to_batch_but_not_laxer() -> None:
    made = division(lra("db", "gold", 2.0), batch())
    assert settings(batch(), made, Settings(cpus=CpuSet.of((7, 15)))).cpus == CpuSet.of((7, 15))
    assert settings(batch(), made, Settings(cpus=CpuSet.of((0, 7, 8, 15)))).cpus == CpuSet.of((7, 15))
    assert settings(batch(), made, Settings(cpus=CpuSet.of((0, 8)))).cpus == CpuSet.of((7, 15)), (
        "as many elsewhere"
    )
    assert settings(batch(), made, Settings(cpus=CpuSet.of((0,)))).cpus == CpuSet.of((7, 15)), "a whole core"


def test_one_core_and_what_batch_is_guaranteed_remain() -> None:
    made = division(lra("db", "gold", 16.0), batch())
    assert not made.cores
    assert "db asks for 16 CPUs" in made.refused["db"]
    assert settings(lra("db", "gold", 16.0), made) == Settings(cpu_weight=1600), "the next best: a weight"
    assert len(division(lra("db", "gold", 14.0), batch()).shared) == 2
    assert "db" in division(lra("db", "gold", 14.0), batch(min_cores=1.5)).refused


def test_the_more_important_is_served_first_and_gold_before_silver() -> None:
    made = division(lra("a", "silver", 14.0, priority=200), lra("b", "gold", 2.0))
    assert set(made.refused) == {"b"}
    made = division(lra("a", "silver", 14.0), lra("b", "gold", 2.0))
    assert set(made.refused) == {"a"}


def test_memory_is_promised_once_and_cpus_are_kept_without_it() -> None:
    host, gib = replace(HOST, memory_bytes=100 << 30), 1 << 30
    db = lra("db", "gold", 2.0, reserved_memory_bytes=60 * gib, priority=200)
    web = lra("web", "gold", 2.0, reserved_memory_bytes=60 * gib)
    cache = lra("cache", "silver", reserved_memory_bytes=30 * gib)
    made = division(db, web, cache, batch(), host=host)
    assert set(made.without_memory) == {"web"}
    assert "web asks for 2 CPUs and 61440 MiB in gold, but only 12 CPUs and " in made.without_memory["web"]
    assert not made.refused
    assert made.cores.keys() == {"db", "web"}
    assert made.ledger.reserved.memory_bytes == 95 * gib, "5 % remain the system's"
    assert not violations(made.ledger)
    big = division(lra("db", "gold", 40.0, reserved_memory_bytes=gib), batch(), host=host)
    assert (set(big.refused), set(big.without_memory)) == ({"db"}, set())
    both = division(lra("db", "gold", 40.0, reserved_memory_bytes=99 * gib), batch(), host=host)
    assert (set(both.refused), set(both.without_memory)) == ({"db"}, {"db"})
    unknown = division(db, web, batch())
    assert not unknown.without_memory, "the host's memory is not known"


def test_memory_of_the_shapers_and_of_undeclared_bands_is_not_promised() -> None:
    host = replace(HOST, memory_bytes=1 << 30)
    made = division(
        lra("a", "gold", reserved_memory_bytes=1 << 40, shape="core"),
        lra("b", None, reserved_memory_bytes=1 << 40),
        host=host,
    )
    assert not made.without_memory
    assert settings(batch(), made) == UNTOUCHED, "memory alone divides neither cores nor cache"
    assert not way_shares(made, host, WAYS)


def test_without_a_cpuset_gold_has_a_weight() -> None:
    made = division(lra("db", "gold", 2.0), knobs=frozenset({"cpu_weight"}))
    assert not made.own
    assert over(lra("db", "gold", 2.0), UNTOUCHED, made, {}, frozenset({"cpu_weight"})) == Settings(
        cpu_weight=200
    )
    assert over(batch(), UNTOUCHED, made, {}, frozenset({"cpu_weight"})) == UNTOUCHED


def test_a_guaranteed_weight_stays_within_the_kernels_range() -> None:
    assert [weight_for(cpus) for cpus in (0.2, 2.5, 4096.0)] == [100, 250, 10_000]


def test_ways_follow_the_cores_where_gold_is() -> None:
    made = division(lra("db", "gold", 4.0), lra("web", "silver", 6.0), batch())
    shares = way_shares(made, HOST, WAYS)
    assert (shares[0].silver, shares[0].copper) == (6, 3), "two of four cores of the first cache are gold's"
    assert (shares[1].silver, shares[1].copper) == (12, 6)
    assert not way_shares(division(batch()), HOST, WAYS)


def test_masks_of_bands_and_of_the_policy() -> None:
    db, web = lra("db", "gold", 4.0), lra("web", "silver", 4.0)
    made = division(db, web, batch())
    masks = {0: Masks(0xFC0, 0xE00)}
    assert settings(db, made, masks=masks).llc_masks is KEEP
    assert settings(web, made, masks=masks).llc_masks == ((0, 0xFC0),)
    assert settings(batch(), made, masks=masks).llc_masks == ((0, 0xE00),)
    apart = Settings(llc_masks=((0, 0x03F),))
    assert settings(web, made, apart, masks).llc_masks == ((0, 0x03F),), "the policy separated LRAs"
    stricter = Settings(llc_masks=((0, 0xC00), (1, 0xFF0)))
    assert settings(batch(), made, stricter, masks).llc_masks == ((0, 0xC00), (1, 0xFF0))
    assert settings(batch(), made, apart, masks).llc_masks == ((0, 0x03F),), "no common way: the policy's"


SPECS = st.lists(
    st.tuples(
        st.sampled_from(["gold", "silver", "copper", None]),
        st.floats(0.1, 20.0, allow_nan=False),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=7,
)


@given(SPECS, st.integers(1, 2), st.integers(1, 6), st.integers(1, 2), st.integers(1, 20))
def test_invariants_of_every_division(
    drawn: list[tuple[str | None, float, bool, int]], sockets: int, cores: int, threads: int, ways: int
) -> None:
    specs = [
        batch(f"w{n}", band, min_cores=cpus / 8 if narrow else None)
        if band in ("copper", None)
        else lra(f"w{n}", band, cpus, priority=priority, touch=Touch.ALL if narrow else Touch.BATCH)
        for n, (band, cpus, narrow, priority) in enumerate(drawn)
    ]
    host = topology(sockets, cores, threads)
    made = division(*specs, host=host)
    assert not violations(made.ledger)
    assert made.shared, "the host's own daemons have CPUs"
    assert made.ledger.held_by(SYSTEM) is not None
    whole = [core.cpus for core in host.usable_cores]
    for cpus in made.cores.values():
        assert all(core <= cpus or not core & cpus for core in whole)
        assert not cpus & made.shared
    for spec in specs:
        found = settings(spec, made)
        if spec.name in made.own:
            assert spec.band == "gold"
            assert found.cpus == made.cores[spec.name]
        elif spec.kind is Kind.LRA and spec.touch is Touch.BATCH:
            assert found.cpus is KEEP
        elif found.cpus is not KEEP:
            assert found.cpus
            assert found.cpus <= made.shared
    for share in way_shares(made, host, ways).values():
        assert 1 <= share.copper <= share.silver <= ways


def test_declared_copper_is_idle_unless_a_guarantee_needs_its_weight() -> None:
    assert with_band(batch(band="copper"), UNTOUCHED, KNOBS).cpu_weight is IDLE
    assert with_band(batch(band="copper"), Settings(cpu_weight=20), KNOBS).cpu_weight == 20
    assert with_band(batch(band="copper", min_cores=0.5), UNTOUCHED, KNOBS).cpu_weight is KEEP
    assert with_band(batch(band="copper", max_starvation_s=9.0), UNTOUCHED, KNOBS).cpu_weight is KEEP


def test_silver_batch_has_a_weight_for_the_cpus_that_it_is_guaranteed() -> None:
    assert with_band(batch(band="silver", min_cores=3.0), UNTOUCHED, KNOBS).cpu_weight == 300
    assert with_band(batch(band="silver", min_cores=0.5), UNTOUCHED, KNOBS) == UNTOUCHED


def test_reserved_cpus_need_a_band() -> None:
    table = {"name": "db", "cgroup": "/db", "reserved_cpus": 2}
    with pytest.raises(ConfigError, match="2 CPUs cannot be reserved without a band"):
        read_workload(Kind.LRA, table, "file", "lra[0]")
    assert read_workload(Kind.LRA, {**table, "band": "gold"}, "file", "lra[0]").reserved_cpus == 2.0


# --- what doctor says ----------------------------------------------------------------------------------------------


def test_doctor_names_what_is_in_force_and_the_next_best() -> None:
    db, old = (
        lra("db", "gold", 2.0),
        lra("old", "gold", 2.0, touch=Touch.BATCH, reserved_memory_bytes=1 << 30),
    )
    big, web, pi = lra("big", "gold", 40.0), lra("web", "silver", 4.0), batch(band="copper")
    paid, seen = batch("paid", band="silver"), lra("seen", "gold", 2.0)
    made = division(db, old, big, web, pi)
    members = [BandMember(spec, spec is not seen, KNOBS) for spec in (db, old, big, web, pi, paid, seen)]
    lines = dict(line.split(": ", 1) for line in report(members, made, HostControls(smt=True)))
    assert lines["db (gold)"].startswith("CPUs 0,8 are its own, with their SMT siblings")
    assert 'touch = "batch"' in lines["old (gold)"]
    assert "batch keeps off CPUs 1,9, CPU weight of at least 200" in lines["old (gold)"]
    assert "memory.min is reserved_memory" in lines["old (gold)"]
    assert lines["big (gold)"].startswith(
        "no reserved CPUs, CPU weight of at least 4000 instead: big asks for 40"
    )
    assert lines["web (silver)"].startswith("CPU weight of at least 400 for 4 reserved CPUs")
    assert lines["pi (copper)"] == (
        "idle CPU class, no I/O weight has an effect here, no memory.high can be set here"
    )
    assert lines["paid (silver)"].startswith("never restricted for LRAs")
    assert lines["seen (gold)"] == "nothing is set: it is only observed"
    assert "cache is not divided" in lines["copper"]
    assert "no MBA" in lines["copper"]
    assert "no egress ceiling" in lines["copper"]
    assert lines["system daemons"].startswith("2 of the CPUs 2-7,10-15 are reserved")


def test_doctor_says_whose_memory_does_not_fit_and_what_bounds_copper() -> None:
    host = replace(HOST, memory_bytes=8 << 30)
    db, web = (lra(name, "gold", reserved_memory_bytes=6 << 30) for name in ("db", "web"))
    pi = BandMember(
        batch(band="copper"), True, KNOBS | {"memory_high_bytes"}, Settings(memory_high_bytes=6 << 30)
    )
    made = division(db, web, pi.spec, host=host)
    lines = report([BandMember(db, True, KNOBS), BandMember(web, True, KNOBS), pi], made, HostControls())
    assert lines[0].endswith("memory.min is reserved_memory")
    assert (
        "memory.low is reserved_memory, because the host cannot guarantee every reservation: web asks for"
        in lines[1]
    )
    assert "memory.high of 6.0 GiB" in lines[2]


def test_doctor_says_what_cache_bandwidth_and_egress_copper_has() -> None:
    controls = HostControls(llc_ways=12, copper_ways={0: 3}, throttles=True, egress=("eth0",))
    made = division(lra("db", "gold", 4.0), batch())
    copper = report([BandMember(lra("db", "gold", 4.0), True, KNOBS)], made, controls)[1]
    assert "cache ways: at most 3 in L3 0, of 12" in copper
    assert "(MBA)" in copper
    assert "egress ceiling on eth0" in copper
    assert report([], None, controls) == ()


# --- on control groups ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["v1", "v2", "hybrid"])
async def test_it_is_written_on_every_layout_and_given_back(layout: str, tmp_path: Path) -> None:
    """Four CPUs, no SMT; weights and lists as kernels 6.1 to 6.18 take them."""
    kernel = FakeKernel(layout)
    specs = (lra("db", "gold", 2.0), lra("web", "silver", 1.5), batch(band="copper"))
    for spec in specs:
        kernel.mkdir(spec.cgroup)
    before = kernel.texts()
    journal = Journal(tmp_path / "state", boot_id="boot")
    executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
    knobs = {spec.name: executor.enforceable(spec)[0] for spec in specs}
    made = divided(topology(1, 4, 1), specs, knobs)
    wanted = {}
    for spec in specs:
        wanted[spec.name] = over(
            spec, with_band(spec, UNTOUCHED, knobs[spec.name]), made, {}, knobs[spec.name]
        )
    assert (await executor.apply(executor.plan(wanted, specs))).ok
    now = kernel.texts()
    root = "/sys/fs/cgroup" if layout == "v2" else "/sys/fs/cgroup/cpuset"
    lists = {spec.name: now[f"{root}/{spec.name}/cpuset.cpus"].strip() for spec in specs}
    assert lists == {"db": "0-1", "web": "2-3", "pi": "2-3"}
    cpu = "/sys/fs/cgroup" if layout == "v2" else "/sys/fs/cgroup/cpu"
    assert now[f"{cpu}/pi/cpu.idle"] == "1\n"
    weight = "cpu.weight" if layout == "v2" else "cpu.shares"
    assert now[f"{cpu}/web/{weight}"] == ("150\n" if layout == "v2" else "1536\n")
    assert not (await executor.restore()).failed
    journal.close()
    after = kernel.texts()
    changed = {path for path in before if before[path] != after[path]}
    assert changed <= {f"{root}/{spec.name}/cpuset.cpus" for spec in specs if layout == "v2"}


@pytest.mark.parametrize("layout", ["v1", "v2", "hybrid"])
@pytest.mark.parametrize(("pinned", "had"), [("3", "3"), ("1-2", "2"), ("2-3", "2-3"), ("0-1", "0-1")])
async def test_silver_never_gets_more_cpus_than_its_operator_gave_it(
    layout: str, pinned: str, had: str, tmp_path: Path
) -> None:
    """Gold owns CPUs 0 and 1 of four; the division alone would give silver 2 and 3."""
    kernel = FakeKernel(layout)
    specs = (lra("db", "gold", 2.0), lra("web", "silver", 1.5))
    for spec in specs:
        kernel.mkdir(spec.cgroup)
    root = "/sys/fs/cgroup" if layout == "v2" else "/sys/fs/cgroup/cpuset"
    file = f"{root}/web/cpuset.cpus"
    kernel.write(file, f"{pinned}\n".encode())
    everybody = CpuSet.of(range(4))
    for _ in range(2):  # the second time as a new process, with the originals from the journal
        journal = Journal(tmp_path / "state", boot_id="boot")
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
        knobs = {spec.name: executor.enforceable(spec)[0] for spec in specs}
        made = divided(topology(1, 4, 1), specs, knobs)
        wanted = {spec.name: over(spec, UNTOUCHED, made, {}, knobs[spec.name]) for spec in specs}
        assert wanted["web"].cpus == CpuSet.of((2, 3))
        assert (await executor.apply(executor.plan(wanted, specs))).ok
        assert kernel.texts()[file].strip() == had
        refused = [each.reason for each in executor.not_enforceable("web") if each.knob == "cpus"]
        assert bool(refused) == (pinned == "0-1"), "a refusal has a reason"
        wider = {**wanted, "web": replace(wanted["web"], cpus=everybody)}  # gold has left
        assert (await executor.apply(executor.plan(wider, specs))).ok
        assert kernel.texts()[file].strip() == pinned
        journal.close()


async def test_a_guarantee_never_lowers_the_weight_that_a_group_had(tmp_path: Path) -> None:
    kernel = FakeKernel("v2")
    kernel.mkdir("/web")
    kernel.set("/sys/fs/cgroup/web/cpu.weight", "900")
    web, paid = lra("web", "silver", 2.0), batch("web", band="silver", min_cores=2.0)
    with Journal(tmp_path / "state", boot_id="boot") as journal:
        executor = Executor(kernel, kernel.hierarchies, journal, in_thread=False)
        for spec in (web, paid):
            assert not executor.plan({"web": Settings(cpu_weight=weight_for(2.0))}, (spec,)).writes


def config(tmp_path: Path, mode: Mode, *more: WorkloadSpec) -> Config:
    sli = SliSpec("simulated", (("workload", "db"),))
    return Config(
        daemon=DaemonConfig(mode=mode, policy="none", state_dir=str(tmp_path)),
        store=StoreConfig(enabled=False),
        workloads=(
            WorkloadSpec("db", Kind.LRA, "/t/db", sli=sli, band="gold", reserved_cpus=3.0),
            WorkloadSpec("pi", Kind.BATCH, "/t/pi", band="copper"),
            *more,
        ),
    )


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ENFORCE])
async def test_the_agent_divides_in_enforce_alone_and_gives_back(mode: Mode, tmp_path: Path) -> None:
    host = SimHost(
        [
            Lra("db", "/t/db", clients=2, service_ms=2.0),
            Batch("pi", "/t/pi", threads=2),
            Batch("paid", "/t/paid", threads=1),
        ],
        machine=Machine(1, 4, threads_per_core=2),
        seed=1,
        resctrl=True,
    )
    paid = WorkloadSpec("paid", Kind.BATCH, "/t/paid", band="silver")
    files = [
        f"{CGROUP_ROOT}/t/{name}/{file}" for name in ("db", "pi") for file in ("cpuset.cpus", "cpu.weight")
    ]
    before = [host.fs.read(path) for path in files]
    agent = build_agent(
        config(tmp_path, mode, paid), fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host)
    )
    for second in (1.0, 2.0, 3.0):
        host.advance(second)
        await agent.tick(second)
    if mode is Mode.OBSERVE:
        assert [host.fs.read(path) for path in files] == before
        assert "db (gold): nothing is set: it is only observed" in agent.bands()
        return
    own = CpuSet.parse(host.fs.read(f"{CGROUP_ROOT}/t/db/cpuset.cpus").decode())
    others = CpuSet.parse(host.fs.read(f"{CGROUP_ROOT}/t/pi/cpuset.cpus").decode())
    assert own == CpuSet.of((0, 1, 4, 5))
    assert others == CpuSet.of((2, 3, 6, 7))
    assert host.fs.read(f"{CGROUP_ROOT}/t/pi/cpu.idle") == b"1\n"
    assert host.fs.read(f"{CGROUP_ROOT}/t/paid/cpu.idle") == b"0\n"
    assert not agent.blocked("pi")
    class_of_pi = "/sys/fs/resctrl/perphd.pi"
    assert "L3:0=ff00" in host.fs.read(f"{class_of_pi}/schemata").decode(), "eight ways, where batch's are"
    assert host.fs.read(f"{class_of_pi}/tasks").split()
    assert any("cache ways: at most 8 in L3 0, of 16" in line for line in agent.bands())
    assert any(line.startswith("db (gold): CPUs 0-1,4-5 are its own") for line in agent.bands())
    await agent.stop(restore=True)
    assert CpuSet.parse(host.fs.read(files[0]).decode()) in (CpuSet(), CpuSet.of(range(8)))
    assert host.fs.read(files[3]) == before[3]
    assert not host.fs.exists(class_of_pi)


async def test_silver_batch_is_not_the_policys_to_restrict(tmp_path: Path) -> None:
    host = SimHost(
        [
            Lra("db", "/t/db", clients=2, service_ms=2.0),
            Batch("pi", "/t/pi", threads=4),
            Batch("paid", "/t/paid", threads=1),
        ],
        machine=Machine(1, 4),
        seed=1,
    )
    found = config(tmp_path, Mode.ENFORCE, WorkloadSpec("paid", Kind.BATCH, "/t/paid", band="silver"))
    agent = build_agent(found, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host))
    host.advance(1.0)
    await agent.tick(1.0)
    views = {view.spec.name: view for view in agent.snapshot().workloads}
    assert views["pi"].enforced
    assert views["pi"].enforceable
    assert not views["paid"].enforced
    assert not views["paid"].enforceable
    await agent.stop(restore=True)


def test_only_copper_gives_way() -> None:
    assert batch().gives_way
    assert batch(band="copper").gives_way
    assert not batch(band="silver").gives_way
    assert not lra("db", None).gives_way
    assert QosBand.SILVER.protected


def test_an_lra_that_gives_up_cpus_to_gold_says_so() -> None:
    db, web = lra("db", "gold", 2.0), lra("web", "silver", 4.0)
    made = division(db, web, batch())
    asked = Settings(cpus=CpuSet.of((0, 1, 8, 9)))
    said = beside_gold(web, asked, made, KNOBS)
    assert said == "it has CPUs 1,9 instead of the policy's 0-1,8-9, because 0,8 are gold's"
    assert beside_gold(web, Settings(cpus=CpuSet.of((1, 9))), made, KNOBS) == ""
    assert beside_gold(web, UNTOUCHED, made, KNOBS) == ""
    assert beside_gold(db, asked, made, KNOBS) == beside_gold(batch(), asked, made, KNOBS) == ""
    assert beside_gold(web, asked, division(web, batch()), KNOBS) == "", "without gold"
    kept = replace(web, touch=Touch.BATCH)
    shared = beside_gold(kept, UNTOUCHED, division(db, kept, batch()), KNOBS)
    assert (
        shared == 'it may also run on gold\'s CPUs 0,8, because touch = "batch" leaves its CPUs as they are'
    )
    assert "no cpuset can be set here" in beside_gold(web, asked, made, frozenset())
    line = report([BandMember(web, True, KNOBS, beside_gold=said)], made, HostControls())[0]
    assert line.startswith(f"web (silver): CPU weight of at least 400 for 4 reserved CPUs; {said}; ")


async def test_status_and_doctor_say_that_silver_runs_beside_gold(tmp_path: Path) -> None:
    host = SimHost(
        [Lra("db", "/t/db", clients=2), Lra("web", "/t/web", clients=2), Batch("pi", "/t/pi", threads=2)],
        machine=Machine(1, 4, threads_per_core=2), seed=1, resctrl=True,
    )  # fmt: skip
    web = WorkloadSpec(
        "web", Kind.LRA, "/t/web", sli=SliSpec("simulated", (("workload", "web"),)), band="silver",
        reserved_cpus=1.0, touch=Touch.BATCH,
    )  # fmt: skip
    agent = build_agent(
        config(tmp_path, Mode.ENFORCE, web),
        fs=host.fs,
        opener=host.perf_opener,
        sli_opener=simulated_sli(host),
    )
    for second in (1.0, 2.0, 3.0):
        host.advance(second)
        await agent.tick(second)
    words = 'it may also run on gold\'s CPUs 0-1,4-5, because touch = "batch" leaves its CPUs as they are'
    assert any(line.startswith("web (silver)") and words in line for line in agent.bands())
    found = {item.spec.name: item.limited for item in agent.status().workloads}
    assert [(left.knob, left.reason) for left in found["web"]] == [("cpus", words)]
    await agent.stop(restore=True)
