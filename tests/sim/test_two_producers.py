"""What the policy bench gives a policy, beside what the agent provides on that kind of host, field by field."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from perphd.admission.baselines import NonePolicy
from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.allocation import Settings
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.reading import Unavailable, available
from perphd.domain.sample import READINGS
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.node.archetypes import archetype
from perphd.sim.workload import placed
from tools.bench.policies.driver import Seat
from tools.bench.policies.hostkind import HostKind
from tools.bench.policies.scene import Actor, Goal, Scenario
from tools.bench.policies.world import World

MACHINE = Machine(2, 8)
ARRIVES_S = 6.0
SECONDS = 14
NARROW = Settings(llc_masks=((0, 0x3), (1, 0x3)))
NARROW_FROM_S = 10.0
BEGUN = 2
"""The bench begins with a host that was read before; the agent needs these many samples for its first rates."""


class Watching:
    """Keeps what it was shown; narrows batch's cache from a moment on, where that can be done."""

    def __init__(self) -> None:
        self.shown: list[Snapshot] = []
        self._none = NonePolicy()

    @property
    def name(self) -> str:
        return "watching"

    def decide(self, snapshot: Snapshot) -> TargetState:
        self.shown.append(snapshot)
        target = self._none.decide(snapshot)
        hog = next(view for view in snapshot.workloads if view.spec.name == "hog")
        if len(self.shown) < NARROW_FROM_S or "llc_masks" not in hog.enforceable:
            return target
        return TargetState({"hog": NARROW}, target.decisions, target.outcomes, target.memory)


async def by_the_agent(kind: HostKind, state: Path) -> list[Snapshot]:
    """What the agent shows its policy, second by second."""
    host = SimHost(
        (placed("masstree", "/t/db", "db"), placed("batch-stream", "/t/hog", "hog")),
        machine=MACHINE,
        events=(Arrival(ARRIVES_S, "hog"),),
        seed=5,
        pmu=kind.has_pmu,
        resctrl=kind.has_resctrl,
    )
    for cgroup in ("/t/db", "/t/hog"):
        host.fs.write(f"{CGROUP_ROOT}{cgroup}/cpuset.cpus", str(host.machine.online).encode())
    config = Config(
        daemon=DaemonConfig(mode=Mode.ENFORCE, state_dir=str(state)),
        store=StoreConfig(enabled=False),
        workloads=(
            WorkloadSpec("db", Kind.LRA, "/t/db", sli=SliSpec("simulated", (("workload", "db"),))),
            WorkloadSpec("hog", Kind.BATCH, "/t/hog"),
        ),
    )
    policy = Watching()
    agent = build_agent(
        config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host), policy=policy
    )
    for second in range(1, SECONDS + 1):
        host.advance(float(second))
        await agent.tick(float(second))
    await agent.stop(restore=True)
    return policy.shown


def by_the_bench(kind: HostKind) -> list[Snapshot]:
    """What the bench shows a policy in the same scenario."""
    actors = (
        Actor(archetype("masstree").named("db"), Goal()),
        Actor(archetype("batch-stream").named("hog"), starts_s=ARRIVES_S),
    )
    scenario = Scenario("both", "test", "A test.", MACHINE, actors, float(SECONDS), kind=kind)
    world, policy = World(scenario, 1), Watching()
    seat = Seat(scenario, policy, 1.0, models=False)
    for _ in range(SECONDS):
        interval = world.advance(1.0)
        snapshot = seat.snapshot(world.samples(interval), world.busy_cores(interval), world.now_s)
        world.apply(seat.decide(snapshot).settings)
    return policy.shown


def known(view: WorkloadView) -> set[str]:
    """Names of the readings that a policy has of this workload."""
    return set() if view.sample is None else {n for n in READINGS if available(view.sample.reading(n))}


@pytest.mark.parametrize("kind", HostKind)
async def test_the_bench_gives_a_policy_nothing_that_the_agent_does_not(
    kind: HostKind, tmp_path: Path
) -> None:
    agent, bench = await by_the_agent(kind, tmp_path), by_the_bench(kind)
    assert len(agent) == len(bench) == SECONDS
    for shown, given in list(zip(agent, bench, strict=True))[BEGUN:]:
        for ours, theirs in zip(shown.workloads, given.workloads, strict=True):
            place = (kind.value, theirs.spec.name, given.at_s)
            assert ours.spec.name == theirs.spec.name
            assert known(theirs) <= known(ours), (place, known(theirs) - known(ours))
            assert theirs.enforceable <= ours.enforceable, place
            if theirs.sample is not None and theirs.sample.domains:
                assert ours.sample is not None
                assert len(ours.sample.domains) == len(theirs.sample.domains)
        compare_hosts(kind, shown.host, given.host)
    compare_counters(kind, agent[8], bench[8])


def compare_hosts(kind: HostKind, ours: HostView, theirs: HostView) -> None:
    """Bounds of actuators are equal where the bench states them; readings that it has the agent has as well."""
    for field in fields(HostView):
        mine, given = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name == "topology":
            assert (mine.usable, len(mine.usable_cores)) == (given.usable, len(given.usable_cores))
        elif isinstance(given, Unavailable) or given == field.default:
            continue  # nothing is given
        elif field.name == "busy_cores":
            assert available(mine), (kind.value, mine)
        else:
            assert mine == given, (kind.value, field.name)


def compare_counters(kind: HostKind, agent: Snapshot, bench: Snapshot) -> None:
    """In a steady state both have the same of what counters tell: neither forgets what the other has."""
    counters = {"mips", "cpi", "llc_mpki", "llc_occupancy_bytes", "mbw_bytes_per_s"}
    expected = ({"mips", "cpi", "llc_mpki"} if kind.has_pmu else set()) | (
        {"llc_occupancy_bytes", "mbw_bytes_per_s"} if kind.has_resctrl else set()
    )
    for shown in (agent, bench):
        for view in shown.workloads:
            assert known(view) & counters == expected, (kind.value, view.spec.name)
