"""DistSched's order, Prophet's areas, packing rules, sampling, staleness and conflicts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.cluster.scheduling.distribution import (
    FLEET_CELLS,
    DistributionColumns,
    GangJob,
    RiskSettings,
    by_risk,
    gang_placement,
    most_valuable,
    placeable,
    with_pod,
)
from perphd.cluster.scheduling.fleet import Fleet, NodeScore, Scores
from perphd.cluster.scheduling.packing import alignment, balanced, borg_like, n_sigma, resource_central
from perphd.cluster.scheduling.placement import (
    POLICIES,
    PlacementDecision,
    PlacementProposal,
    PlacementSettings,
    decided,
    resolved,
    sampled,
)
from perphd.cluster.scheduling.profile import PodKind
from perphd.cluster.scheduling.prophet import prophet
from perphd.forecast import peaks
from perphd.forecast.grid import of_outcomes, sum_of
from perphd.forecast.usage_profile import UsageProfile
from perphd.qos.availability import DemandStage, availability, distance, fit, over_ratio
from tests.unit.cluster_world import GIB, node, pod

# The published example has a capacity of 10. In 512 cells, amounts of 50 cells have the same sums beyond the capacity.
UNIT = 50.0
TASK = {1 * UNIT: 0.5, 2 * UNIT: 0.3, 4 * UNIT: 0.2}
RUNNING = ({3 * UNIT: 0.5, 5 * UNIT: 0.5}, {2 * UNIT: 0.9, 6 * UNIT: 0.1})
ANY = RiskSettings(memory=1.0, cores=1.0)


def best(scores: Scores) -> NodeScore:
    found = scores.best()
    assert found is not None
    return found


def chosen(decision: PlacementDecision) -> NodeScore:
    assert decision.chosen is not None
    return decision.chosen


def _law(outcomes, capacity):
    return of_outcomes(outcomes, capacity, FLEET_CELLS)


def _memory_law():
    return sum_of([_law(each, 512.0) for each in RUNNING], 512.0, FLEET_CELLS)


@pytest.mark.parametrize(("tasks", "over"), [(1, 0.165), (2, 0.415), (3, 0.55)])
def test_probability_over_is_the_published_one(tasks, over):
    fleet = Fleet([node(cores=1e4, gib=512 / GIB, running_memory=_memory_law())])
    found = by_risk(fleet, pod("t", memory_law=TASK), fleet.rows, ANY, tasks)
    assert found.terms["P(memory over)"][0] == pytest.approx(over)


def test_machines_come_in_the_order_of_risk_then_of_fit():
    def machine(name, memory, cores):
        return node(
            name,
            cores=512.0,
            gib=512 / GIB,
            running_memory=_law(memory, 512.0),
            running_cores=_law(cores, 512.0),
        )

    fleet = Fleet(
        [
            machine("memory risk", {100: 0.9, 500: 0.1}, {0: 1.0}),
            machine("roomy", {100: 1.0}, {100: 1.0}),
            machine("cpu risk", {100: 1.0}, {100: 0.8, 500: 0.2}),
            machine("tight memory", {300: 1.0}, {100: 1.0}),
            machine("tight memory and cpu", {300: 1.0}, {300: 1.0}),
        ]
    )
    found = by_risk(fleet, pod("t", cores_law={50: 1.0}, memory_law={50: 1.0}), fleet.rows, ANY)
    order = [each.node for each in found.ranked(5)]
    assert order == ["tight memory and cpu", "tight memory", "roomy", "cpu risk", "memory risk"]
    strict = by_risk(fleet, pod("t", cores_law={50: 1.0}, memory_law={50: 1.0}), fleet.rows)
    assert [each.node for each in strict.ranked(5)] == order[:3]
    assert strict.explained(0).refusals == ("P(memory over) exceeds 0.01",)


@given(
    st.lists(st.tuples(st.floats(1, 512), st.floats(0.01, 1)), min_size=1, max_size=5),
    st.lists(st.tuples(st.floats(1, 512), st.floats(0.01, 1)), min_size=1, max_size=40),
    st.integers(1, 3),
)
def test_one_product_gives_what_convolution_gives(running, task, tasks):
    law, each = dict(running), dict(task)
    profile = node(
        cores=512.0, gib=512 / GIB, running_memory=_law(law, 512.0), running_cores=_law(law, 512.0)
    )
    new = pod("t", cores_law=each, memory_law=each)
    fleet = Fleet([profile])
    found = by_risk(fleet, new, fleet.rows, ANY, tasks)
    for term, joined in zip(("P(CPU over)", "P(memory over)"), with_pod(profile, new, tasks), strict=True):
        assert found.terms[term][0] == pytest.approx(joined.over, abs=1e-9)


@given(
    st.lists(st.tuples(st.floats(1, 512), st.floats(0.01, 1)), min_size=1, max_size=80),
    st.lists(st.tuples(st.floats(1, 200), st.floats(0.01, 1)), min_size=1, max_size=80),
    st.integers(1, 3),
)
def test_one_machine_gets_the_same_risk_as_among_all(running, task, tasks):
    gib = 512 / GIB
    memory, cores = _law(dict(running), 512.0), _law({3.0: 1.0}, 512.0)
    used = node("used", cores=512.0, gib=gib, running_memory=memory, running_cores=cores)
    fleet = Fleet([node("free", cores=512.0, gib=gib), used])
    new = pod("t", cores_law=dict(task), memory_law=dict(task))
    for row in (0, 1):
        among = by_risk(fleet, new, fleet.rows[row : row + 1], ANY, tasks)
        expected = [float(among.terms[term][0]) for term in ("P(CPU over)", "P(memory over)")]
        assert fleet.columns(DistributionColumns).over_at(new, tasks, row) == tuple(expected)


def test_expected_utility_is_the_published_one():
    """8 CPUs, requests 4 and 4, work 40 CPU s, deadline 12 s: E[U(T)] = .5, with P(no eviction) = .91 -> .455."""
    profile = node(
        cores=8.0,
        gib=512 / GIB,
        pods=(pod("r", cores=4, gib=0),),
        running_cores=_law({2: 0.6, 7: 0.4}, 8.0),
        running_memory=_law({462: 0.09, 1: 0.91}, 512.0),
    )
    new = pod("t", cores=4, cores_law={2: 0.5, 6: 0.5}, memory_law={51: 1.0}, work_cpu_s=40.0)
    found = gang_placement(Fleet([profile]), new, 1, lambda t: float(t <= 12.0), ANY)
    assert found is not None
    assert found.no_eviction == pytest.approx(0.91)
    assert found.utility == pytest.approx(0.455)


def test_a_gang_starts_together_or_not_at_all_and_shares_one_draw():
    machines = [
        node(
            f"m{i}",
            cores=512.0,
            gib=512 / GIB,
            running_cores=_law({1: 1.0}, 512.0),
            running_memory=_law({100: 1.0}, 512.0),
        )
        for i in range(2)
    ]
    new = pod("t", cores=1, cores_law={1: 1.0}, memory_law={200: 1.0}, work_cpu_s=10.0)
    found = gang_placement(Fleet(machines), new, 4, lambda t: 1.0)
    assert found is not None
    assert sorted(found.nodes) == ["m0", "m0", "m1", "m1"]
    assert gang_placement(Fleet(machines), new, 5, lambda t: 1.0) is None
    late = GangJob(new, 1, lambda t: 0.1)
    worthy, unplaceable = GangJob(new, 2, lambda t: 0.7), GangJob(new, 5, lambda t: 9.0)
    with_room = placeable(Fleet(machines), [late, unplaceable, worthy])
    assert [job for job, _ in with_room] == [late, worthy]
    assert most_valuable(with_room)[0] is worthy


def _prophet_node(name="n", capacity=300.0):
    first = [DemandStage(0, 40, 100), DemandStage(40, 100, 50)]
    second = [DemandStage(0, 60, 120), DemandStage(60, 80, 20)]
    return node(
        name, timelines={"disk": availability(capacity, [first, second])}, capacities={"disk": capacity}
    )


def test_prophet_prefers_the_published_candidate():
    fleet = Fleet([_prophet_node()])
    a = pod("a", stages={"disk": [DemandStage(0, 50, 80), DemandStage(50, 100, 240)]})
    b = pod("b", stages={"disk": [DemandStage(0, 50, 240), DemandStage(50, 100, 20)]})
    areas = [-prophet(fleet, each, fleet.rows).score[0] * 300 * 100 for each in (a, b)]
    assert areas == pytest.approx([635, 6735])


_STAGES = st.lists(st.tuples(st.floats(1, 60), st.floats(0, 400)), min_size=1, max_size=20)


def _stages(drawn):
    ends = np.cumsum([length for length, _ in drawn]).tolist()
    return [DemandStage(end - length, end, peak) for end, (length, peak) in zip(ends, drawn, strict=True)]


@given(st.lists(_STAGES, max_size=3), _STAGES, _STAGES)
def test_columns_give_the_areas_that_the_node_gives(running, disk, net):
    line = availability(300.0, [_stages(each) for each in running])
    short = availability(100.0, [])
    fleet = Fleet(
        [
            node("other", timelines={"disk": short, "net": short}, capacities={"disk": 100.0, "net": 100.0}),
            node("n", timelines={"disk": line, "net": line}, capacities={"disk": 300.0, "net": 300.0}),
        ]
    )
    demand = {"disk": _stages(disk), "net": _stages(net)}
    found = prophet(fleet, pod("c", stages=demand), fleet.rows)
    lengths = {name: stages[-1].end_s for name, stages in demand.items()}
    parts = [distance({name: fit(each, line)}, {name: 300.0}, lengths[name]) for name, each in demand.items()]
    over = sum(
        over_ratio({name: fit(each, line)}, {name: 300.0}, lengths[name]) for name, each in demand.items()
    )
    assert -found.score[1] == pytest.approx(math.hypot(*parts))
    assert sum(values[1] for values in found.terms.values()) == pytest.approx(found.score[1])
    if abs(over - 0.15) > 1e-9:
        assert found.feasible[1] == (over <= 0.15)


def test_prophet_refuses_what_it_cannot_see_and_what_would_not_fit():
    fleet = Fleet([_prophet_node(), node("blind")])
    heavy = pod("c", stages={"disk": [DemandStage(0, 100, 900)]})
    found = prophet(fleet, heavy, fleet.rows)
    assert found.explained(0).refusals == ("it would over-allocate more than 15%",)
    assert "no timeline" in found.explained(1).refusals[0]
    waited = pod("c", stages=heavy.stages, overdue=True)
    assert best(prophet(fleet, waited, fleet.rows)).node == "n"


def test_alignment_looks_at_use_for_batch_and_at_requests_for_services():
    fleet = Fleet(
        [
            node("requested", (pod("p", cores=12, gib=40),), used_cores=1, used_bytes=GIB),
            node("used", (pod("q", cores=2, gib=4),), used_cores=6, used_bytes=4 * GIB),
        ]
    )
    batch, service = pod("b", cores=4, gib=1, kind=PodKind.BATCH), pod("s", cores=4, gib=1)
    assert best(alignment(fleet, batch, fleet.rows)).node == "used"
    assert best(alignment(fleet, service, fleet.rows)).node == "requested"
    found = alignment(fleet, batch, fleet.rows)
    assert found.score[1] == pytest.approx(4 / 16 * 6 / 16 + 1 / 64 * 4 / 64)


def test_packing_rules_predict_as_the_peak_predictors_do():
    rng = np.random.default_rng(3)
    usage = rng.gamma(4, 0.3, (200, 3))
    tenants = [peaks.Tenant(name, 4.0, usage[:, i]) for i, name in enumerate("abc")]
    host = peaks.HostUsage(tenants, usage.sum(axis=1), UsageProfile())
    profile = node(
        pods=tuple(pod(name, cores=4) for name in "abc"),
        cores=100.0,
        p99_cores=peaks.resource_central(host),
        mean_cores=float(np.mean(host.total)),
        sd_cores=float(np.std(host.total)),
    )
    fleet, new = Fleet([profile]), pod("new", cores=2.0)
    for rule, expected in (
        (resource_central, peaks.resource_central(host) + 2),
        (n_sigma, peaks.n_sigma(host) + 2),
        (borg_like, 0.9 * 14),
    ):
        assert rule(fleet, new, fleet.rows).score[0] == pytest.approx(expected / 100)


def test_packing_rules_refuse_beyond_their_limits():
    new = pod("new", cores=1.0)
    central = Fleet([node(p99_cores=11.9)])
    assert resource_central(central, new, central.rows).best() is None
    crowded = Fleet([node(pods=(pod("p", cores=18.5),), p99_cores=1.0)])
    assert "1.2" in resource_central(crowded, new, crowded.rows).explained(0).refusals[0]
    assert borg_like(crowded, new, crowded.rows).best() is None
    wild = Fleet([node(mean_cores=5.0, sd_cores=2.1)])
    assert n_sigma(wild, new, wild.rows).best() is None


def test_balanced_takes_the_least_and_most_evenly_requested():
    fleet = Fleet(
        [
            node("skewed", (pod("p", cores=8, gib=0),)),
            node("even", (pod("q", cores=4, gib=16),)),
            node("full", (pod("r", cores=16, gib=8),)),
        ]
    )
    found = balanced(fleet, pod("new", cores=1, gib=4), fleet.rows)
    assert best(found).node == "even"
    assert found.explained(2).refusals == ("its CPU request does not fit",)


def test_stale_profiles_are_asked_last_and_by_requests_alone():
    new = pod("new", cores=4)
    full, empty = (pod("p", cores=16, gib=60),), ()
    fleet = Fleet([node("fresh", full), node("stale", empty, made_s=-100.0)])
    found = decided(fleet, new, 30.0)
    assert chosen(found).node == "stale"
    assert (found.scores.policy, found.fresh, found.stale) == ("balanced", 1, 1)
    fleet.put(node("fresh", empty))
    found = decided(fleet, new, 30.0)
    assert (chosen(found).node, found.scores.policy) == ("fresh", "optum")
    assert decided(fleet, new, 30.0, allowed=np.array([], dtype=np.intp)).chosen is None


def test_samples_are_reproducible_and_everything_is_asked_before_giving_up():
    fleet = Fleet([node(f"n{i}", () if i == 1234 else (pod(f"p{i}", cores=16),)) for i in range(2000)])
    settings = PlacementSettings()
    first = sampled(fleet.rows, "pod", settings)
    assert len(first) == 100
    assert (first == sampled(fleet.rows, "pod", settings)).all()
    assert (first != sampled(fleet.rows, "another", settings)).any()
    found = decided(fleet, pod("pod", cores=4), 0.0, settings)
    assert chosen(found).node == "n1234"
    assert "all 2000" in found.why


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_explains_every_candidate(policy):
    pods = (pod("p", "a", cores=4, gib=8), pod("q", "b", cores=2, gib=8))
    lines, room = {"disk": availability(100.0, [])}, {"disk": 100.0}
    fleet = Fleet(
        [
            node("n", pods, timelines=lines, capacities=room),
            node("full", (pod("r", cores=16, gib=63),), timelines=lines, capacities=room),
        ]
    )
    new = pod("new", "a", cores=2, gib=4, stages={"disk": [DemandStage(0, 10, 50)]})
    found = decided(fleet, new, 0.0, PlacementSettings(policy))
    assert chosen(found).node == "n"
    assert chosen(found).terms
    for place in range(2):
        each = found.scores.explained(place)
        assert each.feasible == (not each.refusals)
        if found.scores.additive and policy != "n-sigma":
            assert sum(each.terms.values()) == pytest.approx(each.score)
    assert str(chosen(found)).startswith("n: ")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-5, 5)), max_size=12))
def test_conflicts_leave_one_winner_on_every_node(drawn):
    proposals = [PlacementProposal(f"s{i}", f"p{i}", place, score) for i, (place, score) in enumerate(drawn)]
    found = resolved(proposals)
    assert sorted(each.pod for each in (*found.deployed, *found.redispatched)) == sorted(
        p.pod for p in proposals
    )
    assert (
        len({each.node for each in found.deployed}) == len(found.deployed) == len({p.node for p in proposals})
    )
    for winner in found.deployed:
        assert winner.score == max(each.score for each in proposals if each.node == winner.node)
