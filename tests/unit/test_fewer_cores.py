"""A batch job that gains little from its cores gets fewer of batch's, and all of them back when that is wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.features.confinement import CoreCap, capped_cpus, next_cap
from perphd.admission.perph import PerphPolicy
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import HostView, Snapshot, WorkloadView
from perphd.domain.sample import Sample
from perphd.domain.topology import Core, L3Domain, Topology
from perphd.domain.workload import Kind, WorkloadSpec
from tests.unit.admission_world import topology
from tests.unit.batch_jobs_world import Jobs

CPUS = frozenset({"cpus"})
LAST_THREE = CpuSet.of([5, 6, 7])


def saturates(name: str, cores: Mapping[str, int]) -> float:
    """The streamer gains less than in proportion to its cores; each core that it lacks helps the others."""
    has = min(cores["stream"], 4)
    return (has / 4.0) ** 0.6 if name == "stream" else 1.0 + 0.7 * (4 - has)


def settled(**changes: object) -> Jobs:
    """A world in which the streamer has its cap."""
    world = Jobs(knobs=CPUS, by_cores=saturates, **changes)  # type: ignore[arg-type]
    world.step(60)
    assert world.in_force["stream"].cpus == LAST_THREE
    return world


def test_the_job_that_gains_little_gets_fewer_cores_and_the_others_keep_all() -> None:
    world = settled()
    assert world.in_force["thrash"] == Settings()
    assert world.in_force["db"] == Settings()
    first = world.outcomes[0]
    assert first.kept
    assert first.text.startswith("3 of batch's 8 cores as a trial: stream -1")
    assert "thrash +7" in first.text
    assert [o.text[:1] for o in world.outcomes[1:]] == ["2"], "a further step is tried once"
    assert not world.outcomes[1].kept, "it loses too much of what it had with all cores"


def test_the_mask_is_tried_first_and_both_hold_together() -> None:
    world = Jobs(knobs=frozenset({"cpus", "llc_masks"}), by_cores=saturates)
    world.step(80)
    assert world.in_force["stream"] == Settings(cpus=LAST_THREE, llc_masks=((0, 1),))
    assert [o.text[:5] for o in world.outcomes if o.kept] == ["the l", "3 of "]


def test_where_masks_can_be_set_only_jobs_without_use_for_the_cache_lose_cores() -> None:
    world = Jobs(
        names=("plain", "stream", "thrash"), knobs=frozenset({"cpus", "llc_masks"}), by_cores=saturates
    )
    for _ in range(300):
        world.step(1)
        assert world.cores["stream"] == 8 or "stream" in world.confined
        assert world.cores["thrash"] == world.cores["plain"] == 8
    assert world.cores["stream"] == 3
    assert not any(o.workload == "thrash" for o in world.outcomes), (
        "it gained by more cache, so it would lose by less"
    )


def test_a_trial_that_a_change_of_resources_ended_is_soon_repeated() -> None:
    world = Jobs(knobs=CPUS, by_cores=saturates)
    world.until_tried()
    began_s = world.now_s
    cpus = Settings(cpus=CpuSet.of(range(1, 8)))
    world.given = {"stream": cpus, "thrash": cpus}
    world.step(1)
    assert world.state.trial is None
    assert world.in_force["stream"] == cpus
    assert "batch's resources changed meanwhile" in world.outcomes[0].text
    world.until_tried()
    assert world.now_s - began_s < 10.0
    assert world.in_force["stream"].cpus == LAST_THREE


def test_it_may_lose_only_what_the_configuration_allows() -> None:
    for loss_pct in (0.0, 3.0):
        world = Jobs(knobs=CPUS, by_cores=saturates, policy=PolicySettings(streaming_loss_pct=loss_pct))
        world.step(60)
        assert world.cores["stream"] == 8
        assert [o.kept for o in world.outcomes if o.workload == "stream"] == [False]
    generous = Jobs(knobs=CPUS, by_cores=saturates, policy=PolicySettings(streaming_loss_pct=30.0))
    generous.step(80)
    assert generous.cores["stream"] < 3


def test_a_trial_ends_when_an_lra_is_below_its_target() -> None:
    world = Jobs(knobs=CPUS, by_cores=saturates)
    world.until_tried()
    assert world.cores["stream"] == 3
    world.well = False
    world.step(1)
    assert world.cores["stream"] == 8
    assert [o.kept for o in world.outcomes] == [False]
    assert "below its target" in world.outcomes[0].text
    world.step(60)
    assert world.cores["stream"] == 8, "no trial starts meanwhile"


def test_a_cap_kept_just_before_an_lra_gets_into_trouble_is_taken_back() -> None:
    world = Jobs(knobs=CPUS, by_cores=saturates)
    while not any(o.kept for o in world.outcomes):
        world.step(1)
    world.well = False
    world.step(1)
    assert world.cores["stream"] == 8
    assert "batch's cores are returned" in world.outcomes[-1].text
    world.well = True
    world.step(200)
    assert world.cores["stream"] == 8, "it is under suspicion"


def test_it_is_lifted_from_time_to_time_and_later_each_time() -> None:
    world = settled(policy=PolicySettings(streaming_recheck_s=100.0))
    world.step(1500)
    lifts = [o.decided_at_s for o in world.outcomes if o.text.startswith("all of batch's 8 cores back")]
    assert len(lifts) >= 3
    assert lifts[2] - lifts[1] > 1.7 * (lifts[1] - lifts[0])
    assert world.cores["stream"] == 3


def test_it_gets_its_cores_back_when_it_comes_to_need_them() -> None:
    world = settled(policy=PolicySettings(streaming_recheck_s=60.0))
    world.by_cores = lambda name, cores: min(cores["stream"], 4) / 4.0 if name == "stream" else 1.0
    world.step(40)
    assert world.cores["stream"] == 8
    assert any(o.kept and "back as a trial" in o.text for o in world.outcomes)


def test_a_lift_that_hurts_an_lra_is_not_repeated_soon() -> None:
    world = settled(policy=PolicySettings(streaming_recheck_s=60.0))
    lifts = 0
    for _ in range(900):
        lifted = world.state.trial is not None and not world.state.trial.confines
        lifts += lifted and world.well
        world.well = not lifted
        world.step(1)
    assert 1 <= lifts <= 5
    assert world.cores["stream"] == 3


def test_the_cap_follows_the_cores_that_batch_has() -> None:
    world = settled()
    outcomes = len(world.outcomes)
    for theirs, its in (([2, 3, 4, 5], [3, 4, 5]), ([6, 7], [6, 7]), ([1], [1]), ([4, 5, 6, 7], [5, 6, 7])):
        cpus = Settings(cpus=CpuSet.of(theirs))
        world.given = {"stream": cpus, "thrash": cpus}
        world.step(1)
        assert world.in_force["stream"].cpus == CpuSet.of(its)
        assert world.in_force["thrash"] == cpus
    assert len(world.outcomes) == outcomes


def test_with_nobody_left_to_gain_it_gets_its_cores_back_after_a_while() -> None:
    world = settled()
    world.idle = frozenset({"thrash"})
    world.step(15)
    assert world.cores["stream"] == 3
    world.step(10)
    assert world.cores["stream"] == 8


def test_where_cores_cannot_be_set_or_would_be_too_few_none_are_taken() -> None:
    for world in (
        Jobs(knobs=frozenset({"cpu_weight"}), by_cores=saturates),
        Jobs(knobs=CPUS, by_cores=saturates, names=("stream",)),
        Jobs(knobs=CPUS, by_cores=saturates, counted=False),
        Jobs(knobs=CPUS, by_cores=saturates, policy=PolicySettings(confine_streaming=False)),
        Jobs(knobs=CPUS, by_cores=saturates, allowed=CpuSet.of(range(4))),
        Jobs(knobs=CPUS, by_cores=saturates, least=8.0),
        Jobs(knobs=CPUS, by_cores=saturates, used=1.0),
        Jobs(
            knobs=CPUS,
            by_cores=saturates,
            given={n: Settings(cpus=CpuSet.of([7])) for n in ("stream", "thrash")},
        ),
    ):
        world.step(60)
        assert world.outcomes == []
        assert all(world.in_force[n] == world.given.get(n, Settings()) for n in world.in_force)


def test_one_other_job_keeps_all_of_batchs_cores() -> None:
    def all_gain(_name: str, cores: Mapping[str, int]) -> float:
        return 1.0 + 0.1 * sum(8 - each for each in cores.values())

    world = Jobs(names=("plain", "stream", "thrash"), knobs=CPUS, by_cores=all_gain)
    for _ in range(400):
        world.step(1)
        assert max(world.cores.values()) == 8
    assert min(world.cores.values()) == 1


def test_one_batch_job_is_settled_as_without_this() -> None:
    known = Jobs(names=("stream",), knobs=frozenset({"cpus", "llc_masks"}))
    with_it, without = PerphPolicy(), PerphPolicy(PolicySettings(confine_streaming=False))
    memories = [None, None]
    for tick in range(60):
        known.now_s += 1.0
        lra = Sample("db", known.now_s, 1.0, cpu_usage_cores=1.0)
        views = (
            WorkloadView(WorkloadSpec("db", Kind.LRA, "/db"), lra, enforceable=known.knobs, enforced=True),
            known.view("stream"),
        )
        told = []
        for place, policy in enumerate((with_it, without)):
            target = policy.decide(Snapshot(tick, known.now_s, 1.0, known.host, views, memories[place]))
            memories[place] = target.memory
            told.append((target.settings, target.decisions, target.outcomes, target.newcomer))
        assert told[0] == told[1]


# -- which cores -----------------------------------------------------------------------------------------


def smt(cores_each: int, sockets: int) -> Topology:
    """Sockets with one L3 domain each and two threads a core; the siblings' numbers follow all others."""
    total = cores_each * sockets
    cores = tuple(Core(n // cores_each, n % cores_each, CpuSet.of([n, n + total])) for n in range(total))
    homes = [[c.cpus for c in cores if c.socket == s] for s in range(sockets)]
    domains = tuple(
        L3Domain(s, CpuSet(sum(cpus.mask for cpus in home)), 11 << 20) for s, home in enumerate(homes)
    )
    return Topology(cores, domains, (), CpuSet.of(range(2 * total)))


def job(
    used: float, waits_pct: float = 0.0, threads: float = 8.0, least: float | None = None
) -> WorkloadView:
    sample = Sample("a", 1.0, 1.0, cpu_usage_cores=used, cpu_some_pct=waits_pct, threads=threads)
    return WorkloadView(WorkloadSpec("a", Kind.BATCH, "/a", min_cores=least), sample, enforced=True)


@pytest.mark.parametrize(
    ("view", "now", "expected"),
    [
        (job(8.0), None, 3),
        (job(8.0), CoreCap("a", 3), 2),
        (job(2.0), CoreCap("a", 2), None),
        (job(1.0), None, None),
        (job(2.0), None, None),
        (job(3.0), None, 1),
        (job(18.0), None, 6),
        (job(6.0, waits_pct=60.0), None, 4),
        (job(6.0, waits_pct=60.0, threads=500.0), None, 6),
        (job(6.0, waits_pct=60.0), CoreCap("a", 4), 3),
        (job(8.0, least=2.5), None, 3),
        (job(8.0, least=2.5), CoreCap("a", 3), None),
    ],
)
def test_the_next_step_takes_a_quarter_of_what_the_job_fills(
    view: WorkloadView, now: CoreCap | None, expected: int | None
) -> None:
    batch = Settings(cpus=CpuSet.of([*range(1, 10), *range(11, 20)]))
    assert next_cap(view, smt(10, 1), batch, now) == expected


def test_each_cache_keeps_its_share_of_a_capped_job() -> None:
    host = smt(8, 2)
    assert capped_cpus(host, KEEP, 4) == CpuSet.of([6, 7, 14, 15, 22, 23, 30, 31])
    assert capped_cpus(host, KEEP, 1) == CpuSet.of([15, 31])
    uneven = CpuSet.of([*range(6, 16), *range(22, 32)])  # two cores of one, all of the other
    assert capped_cpus(host, uneven, 5) == CpuSet.of([7, 12, 13, 14, 15, 23, 28, 29, 30, 31])


@given(
    cores=st.integers(1, 12),
    sockets=st.integers(1, 3),
    mask=st.integers(1, (1 << 72) - 1),
    count=st.integers(1, 40),
)
def test_a_cap_is_part_of_batchs_cpus_in_whole_cores_and_never_empty(
    cores: int, sockets: int, mask: int, count: int
) -> None:
    host = smt(cores, sockets)
    for cpus in (KEEP, CpuSet(mask) & host.usable):
        base = host.usable if cpus is KEEP else cpus
        found = capped_cpus(host, cpus, count)
        its = base if found is KEEP else found
        assert its <= base
        assert its or not base
        touched = [core for core in host.cores if core.cpus & base]
        chosen = [core for core in touched if core.cpus & its]
        assert len(chosen) == min(count, len(touched))
        assert all(core.cpus & base <= its for core in chosen)


@given(
    seed=st.integers(0, 99),
    noise=st.floats(0.0, 0.3),
    plan=st.lists(
        st.tuples(
            st.integers(1, 15),
            st.booleans(),
            st.sets(st.sampled_from(("stream", "thrash", "plain"))),
            st.integers(0, 7),
        ),
        max_size=8,
    ),
)
def test_only_cpus_and_masks_of_batch_change_and_they_stay_within_its_own(
    seed: int, noise: float, plan: list[tuple[int, bool, set[str], int]]
) -> None:
    knobs = frozenset({"cpus", "llc_masks"})
    world = Jobs(names=("plain", "stream", "thrash"), noise=noise, by_cores=saturates, knobs=knobs)
    world.random = random.Random(seed)
    for seconds, well, idle, first in plan:
        world.well, world.idle = well, frozenset(idle)
        cpus = CpuSet.of(range(first, 8)) if first else KEEP
        world.given = {name: Settings(cpus=cpus) for name in world.names} | {"db": Settings()}
        for _ in range(seconds):
            unwell_trial = world.state.trial is not None and not well
            world.step(1)
            assert world.in_force["db"] == Settings()
            assert world.state.trial is None or not unwell_trial
            whole = CpuSet.of(range(first, 8))
            for name in world.names:
                found = world.in_force[name]
                its = whole if found.cpus is KEEP else found.cpus
                assert its
                assert its <= whole
                assert replace(found, llc_masks=KEEP, cpus=cpus) == Settings(cpus=cpus)
            assert max(world.cores.values()) == len(whole)


def test_a_host_without_caches_known_is_one_domain() -> None:
    assert capped_cpus(topology(4), KEEP, 2) == CpuSet.of([2, 3])
    assert HostView(topology(4)).llc_ways == 0
