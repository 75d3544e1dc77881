"""Batch that streams is found by trial, kept to the least cache, and let go when that is no longer right."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.perph import PerphPolicy
from perphd.admission.review import batch_rates
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import HostView, Snapshot, WorkloadView
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Quality
from perphd.domain.topology import L3Domain
from perphd.domain.workload import Kind, WorkloadSpec
from tests.unit.admission_world import topology
from tests.unit.batch_jobs_world import WAYS, Jobs, streams


def test_the_streamer_is_found_and_kept_to_the_lowest_way():
    world = Jobs()
    world.step(40)
    assert world.confined == {"stream"}
    assert world.in_force["stream"].llc_masks == ((0, 1),)
    assert world.in_force["thrash"] == Settings()
    assert world.in_force["db"] == Settings()
    kept = [o for o in world.outcomes if o.kept]
    assert [o.workload for o in kept] == ["stream"]
    assert "thrash +7" in kept[0].text


def test_the_job_that_needs_its_cache_is_tried_first_where_it_misses_more_and_let_go_again():
    world = Jobs()  # thrash misses 40 times 110, stream 30 times 1000: the streamer comes first ...
    world.step(10)
    assert world.state.trial is not None
    assert world.state.trial.name == "stream"
    other = Jobs(
        truth=lambda name, confined: (
            20.0 * streams(name, confined) if name == "thrash" else streams(name, confined)
        )
    )
    other.step(60)  # ... and here it does not
    assert [(o.workload, o.kept) for o in other.outcomes] == [("thrash", False), ("stream", True)]
    assert other.confined == {"stream"}


def test_what_did_not_help_is_not_tried_again_soon_and_later_still():
    world = Jobs(truth=lambda name, _: 1000.0, policy=PolicySettings(streaming_recheck_s=100.0))
    world.step(1500)
    tried = [o.decided_at_s for o in world.outcomes if o.workload == "stream"]
    assert not any(o.kept for o in world.outcomes)
    waits = [b - a for a, b in itertools.pairwise(tried)]
    assert len(waits) >= 3
    assert all(later > 1.7 * sooner for sooner, later in itertools.pairwise(waits))


def test_a_job_that_loses_too_much_is_let_go_although_all_together_gain():
    def greedy(name: str, confined: frozenset[str]) -> float:
        return (800.0 if name == "stream" else 2000.0) if "stream" in confined else 1000.0

    world = Jobs(truth=greedy)
    world.step(60)
    assert world.confined == set()
    generous = Jobs(truth=greedy, policy=PolicySettings(streaming_loss_pct=30.0))
    generous.step(60)
    assert generous.confined == {"stream"}


def test_nothing_is_tried_while_an_lra_is_below_its_target_and_a_trial_ends_when_one_comes_to_be():
    world = Jobs(well=False)
    world.step(60)
    assert world.confined == set()
    assert world.outcomes == []
    world.well = True
    world.until_tried()
    world.well = False
    world.step(1)
    assert world.confined == set()
    assert [o.kept for o in world.outcomes] == [False]
    assert "below its target" in world.outcomes[0].text
    world.well = True
    world.step(18)
    assert world.confined == set(), "not at once"
    world.step(40)
    assert world.confined == {"stream"}, "and not held against it for long"


def test_what_an_lra_gets_meanwhile_voids_the_trial_and_is_not_held_against_the_job():
    world = Jobs()
    world.until_tried()
    world.given = {"stream": Settings(cpus=CpuSet.of([7])), "thrash": Settings(cpus=CpuSet.of([7]))}
    world.step(1)
    assert world.state.trial is None
    assert world.confined == set()
    assert [o.kept for o in world.outcomes] == [False]
    assert "changed meanwhile; undone" in world.outcomes[0].text
    world.step(45)
    assert world.confined == {"stream"}
    assert world.in_force["stream"].cpus == CpuSet.of([7])


def test_it_is_let_go_when_it_comes_to_need_its_cache():
    changed = False

    def truth(name: str, confined: frozenset[str]) -> float:
        if not changed:
            return streams(name, confined)
        return 300.0 if name in confined else 1000.0

    world = Jobs(truth=truth, policy=PolicySettings(streaming_recheck_s=60.0))
    world.step(40)
    assert world.confined == {"stream"}
    changed = True
    world.step(80)
    assert world.confined == set()
    last = [o for o in world.outcomes if o.workload == "stream"][-1]
    assert "back" in last.text
    assert last.kept


def test_with_nobody_left_to_gain_everything_is_given_back_after_a_while():
    world = Jobs()
    world.step(40)
    world.idle = frozenset({"thrash"})
    world.step(5)
    assert world.confined == {"stream"}
    world.idle = frozenset()
    world.step(30)
    assert world.confined == {"stream"}
    assert [o.workload for o in world.outcomes if o.kept] == ["stream"], "a pause is no reason to try anew"
    world.idle = frozenset({"thrash"})
    world.step(25)
    assert world.confined == set()
    assert "no second batch job is busy" in world.outcomes[-1].text


def test_where_it_cannot_be_set_or_seen_nothing_is_done():
    for world in (
        Jobs(names=("stream",)),
        Jobs(knobs=frozenset({"cpu_weight"})),
        Jobs(counted=False),
        Jobs(policy=PolicySettings(confine_streaming=False)),
        Jobs(given={n: Settings(llc_masks=((0, 1 << 10),)) for n in ("stream", "thrash")}),
    ):
        world.step(60)
        assert world.outcomes == []
        assert all(world.in_force[n] == world.given.get(n, Settings()) for n in world.in_force)


def test_the_policy_does_nothing_for_batch_where_no_lra_is_there() -> None:
    gone = WorkloadView(WorkloadSpec("db", Kind.LRA, "/db"), None, enforced=True)
    for others in ((), (gone,)):
        world, policy, memory = Jobs(), PerphPolicy(), None
        for tick in range(60):
            world.now_s += 1.0
            views = (*others, *(world.view(name) for name in world.names))
            target = policy.decide(Snapshot(tick, world.now_s, 1.0, world.host, views, memory))
            memory = target.memory
            assert all(settings == Settings() for settings in target.settings.values())
            assert target.outcomes == ()


def test_when_the_last_lra_goes_everybody_is_let_go_after_a_while() -> None:
    world = Jobs()
    world.step(40)
    assert world.confined == {"stream"}
    world.lra = False
    world.step(15)
    assert world.confined == {"stream"}
    world.step(10)
    assert world.confined == set()
    assert "no LRA is present" in world.outcomes[-1].text


def test_a_third_job_that_comes_and_goes_does_not_keep_a_trial_in_force() -> None:
    world = Jobs(names=("plain", "stream", "thrash"))
    world.until_tried()
    under_trial = 0
    for second in range(300):
        world.idle = frozenset({"plain"} if second % 2 else ())
        world.step(1)
        under_trial += world.state.trial is not None
    assert under_trial < 20
    assert any("started or ended" in o.text for o in world.outcomes)


def test_jobs_that_pause_are_not_tried_at_every_turn() -> None:
    world = Jobs(truth=lambda name, confined: 990.0 if name in confined else 1000.0)
    changes, last = 0, set[str]()
    for second in range(1800):
        world.idle = frozenset({"stream"} if second % 14 >= 7 else ())
        world.step(1)
        changes += world.confined != last
        last = world.confined
    assert changes <= 32, "twice for each trial, and waits that double"


def test_what_was_kept_just_before_an_lra_gets_into_trouble_is_let_go() -> None:
    world = Jobs()
    while not any(o.kept for o in world.outcomes):
        world.step(1)
    world.step(5)
    world.well = False
    world.step(1)
    assert world.confined == set()
    world.well = True
    world.step(200)
    assert world.confined == set(), "it is under suspicion"
    later = Jobs()
    later.step(60)
    later.well = False
    later.step(60)
    assert later.confined == {"stream"}, "what has stood for long is not to blame"
    later.step(1300)
    assert later.confined == set(), "but that cannot be tried anew"


def test_a_pause_in_which_it_cannot_be_set_changes_nothing() -> None:
    world = Jobs()
    world.step(40)
    before = world.outcomes[:]
    squeezed = Settings(llc_masks=((0, 1 << 10),))
    for during in ({"given": {"stream": squeezed, "thrash": squeezed}}, {"absent": frozenset({"stream"})}):
        kept = {name: getattr(world, name) for name in during}
        for name, value in during.items():
            setattr(world, name, value)
        world.step(3)
        assert world.in_force["stream"].llc_masks in (KEEP, ((0, 1 << 10),))
        for name, value in kept.items():
            setattr(world, name, value)
        world.step(5)
        assert world.in_force["stream"].llc_masks == ((0, 1),)
    assert world.outcomes == before


def test_every_cache_and_the_least_that_the_kernel_takes() -> None:
    halves = (L3Domain(0, CpuSet.of(range(4)), 11 << 20), L3Domain(3, CpuSet.of(range(4, 8)), 11 << 20))
    host = HostView(replace(topology(8), l3_domains=halves), llc_ways=WAYS, min_cbm_bits=2)
    world = Jobs(host=host)
    world.step(40)
    assert world.in_force["stream"].llc_masks == ((0, 0b11), (3, 0b11))


def test_where_closids_are_few_none_is_spent_on_it() -> None:
    few = Jobs()
    few.host = replace(few.host, llc_classes=3)
    few.step(60)
    assert few.outcomes == []
    enough = Jobs()
    enough.host = replace(enough.host, llc_classes=4)
    enough.step(60)
    assert enough.confined == {"stream"}


def test_it_stays_within_what_batch_may_use():
    theirs = Settings(llc_masks=((0, 0b11111100000),))
    world = Jobs(given={"stream": theirs, "thrash": theirs})
    world.step(40)
    assert world.in_force["stream"].llc_masks == ((0, 0b00000100000),)
    assert world.in_force["thrash"] == theirs


def test_jobs_that_go_are_forgotten():
    world = Jobs(truth=lambda name, _: 1000.0)
    for n in range(40):
        world.names = (f"job-{n}", "thrash")
        world.step(30)
    assert len(world.state.settled) <= 2


@given(
    seed=st.integers(0, 99),
    noise=st.floats(0.0, 0.3),
    plan=st.lists(
        st.tuples(st.integers(1, 15), st.booleans(), st.sets(st.sampled_from(("stream", "thrash", "plain")))),
        max_size=8,
    ),
)
def test_only_masks_of_batch_are_ever_changed_and_somebody_keeps_the_cache(seed, noise, plan):
    world = Jobs(names=("plain", "stream", "thrash"), noise=noise)
    world.random = random.Random(seed)
    for seconds, well, idle in plan:
        world.well, world.idle = well, frozenset(idle)
        for _ in range(seconds):
            world.step(1)
            assert world.in_force["db"] == Settings()
            assert len(world.confined) < 3
            for name in world.names:
                found = world.in_force[name]
                assert replace(found, llc_masks=KEEP) == Settings()
                assert found.llc_masks in (KEEP, ((0, 1),))


def test_rates_are_compared_only_of_the_same_jobs():
    one, both = (("a", 1.0),), (("a", 1.0), ("b", 2.0))
    assert batch_rates.changes([one], [both]) == {}
    assert batch_rates.changes([], [one]) == {}
    assert batch_rates.changes([()], [()]) == {}
    found = batch_rates.changes([both, both], [(("a", 1.5), ("b", 1.0))])
    assert found == {"a": 0.5, "b": -1.0}


def test_a_job_whose_counters_began_anew_has_no_rate():
    view = Jobs().view("stream")
    assert batch_rates.is_busy(view)
    assert view.sample is not None
    for quality in (Quality.FIRST, Quality.RESTARTED, Quality.GONE):
        assert not batch_rates.is_busy(replace(view, sample=replace(view.sample, quality=(quality,))))
    assert not batch_rates.is_busy(replace(view, sample=replace(view.sample, mips=Unavailable("no PMU"))))
