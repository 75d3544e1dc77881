"""Optum's equations by hand, the greedy choice beside the exact optimum, and sums of terms."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.cluster.scheduling.fleet import Fleet
from perphd.cluster.scheduling.optum import (
    AS_PRINTED,
    MARGINAL,
    MatchedColumns,
    OptumSettings,
    host_value,
    optum,
    predicted_cores,
)
from perphd.cluster.scheduling.profile import PodKind, bucketed, surface_of
from perphd.cluster.scheduling.together import placed_together
from perphd.forecast.peaks import HostUsage, matched
from perphd.forecast.usage_profile import UsageProfile, with_memory
from tests.unit.cluster_world import GIB, flat, node, pod, pressure, slowdown, used_together

ALL_PAIRS = list(combinations_with_replacement("abcd", 2))
RATIOS = (0.53, 0.45, 0.41, 0.4, 0.56, 0.58, 0.52, 0.55, 0.51, 0.59)
PAIRS = used_together({("a", "b"): 0.5, ("c", "d"): 0.25, ("a", "a"): 0.75})


def test_eq_7_and_8_by_hand():
    a, b, c, d = (pod(name, cores=cores) for name, cores in (("a", 2), ("b", 4), ("c", 3), ("d", 5)))
    assert predicted_cores(PAIRS, (a, b)) == pytest.approx(0.5 * 6)
    assert predicted_cores(PAIRS, (a, b, c)) == pytest.approx(
        0.5 * 6 + 3
    )  # the last of an odd number: its request
    assert predicted_cores(PAIRS, (a, b, c, d)) == pytest.approx(0.5 * 6 + 0.25 * 8)
    assert predicted_cores(PAIRS, (a, c)) == pytest.approx(5)  # never seen together: ERO 1


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0.1, 8)), max_size=9), st.sampled_from("abcde"))
def test_columns_predict_as_the_equation_does(resident, newcomer):
    pods = tuple(pod(f"p{i}", name, cores=cores) for i, (name, cores) in enumerate(resident))
    new = pod("new", newcomer, cores=1.5)
    fleet = Fleet([node("x"), node("n", pods, cores=1000.0)], PAIRS)
    scores = optum(fleet, new, np.array([1]), OptumSettings(absolute=True))
    expected = predicted_cores(PAIRS, (*pods, new)) / 1000.0
    memory = sum(each.memory_bytes for each in (*pods, new)) / (64 * GIB)
    assert scores.terms["utilisation"][0] == pytest.approx(expected * memory)


def test_stable_memory_counts_at_its_greatest_use():
    usage = with_memory(UsageProfile(), "n", {"a": [0.5, 0.5, 0.501], "b": [0.1, 0.9]})
    fleet = Fleet([node(pods=(pod("p", "a", gib=8), pod("q", "b", gib=8)), cores=4, gib=32)], usage)
    scores = optum(fleet, pod("new", "a", cores=1, gib=4), fleet.rows, AS_PRINTED)
    memory = (0.501 * 8 + 8 + 0.501 * 4) / 32
    assert scores.terms["utilisation"][0] == pytest.approx((2 + 1) / 4 * memory)


def test_eq_9_to_11_by_hand():
    resident = (
        pod("s", "a", cores=4, gib=16, interference=flat(0.2)),
        pod("j", "b", cores=4, gib=16, kind=PodKind.BATCH, interference=flat(0.5)),
    )
    fleet = Fleet([node(pods=resident, cores=16, gib=64)], PAIRS)
    new = pod("new", "c", cores=4, gib=16, interference=flat(0.1))
    found = optum(fleet, new, fleet.rows, AS_PRINTED)
    # POC = .5 * 8 + 4 = 8 of 16, POM = 48 of 64; services suffer .2 and .1, batch .5
    assert found.score[0] == pytest.approx(0.5 * 0.75 - 0.7 * (0.2 + 0.1) - 0.3 * 0.5)
    difference = optum(fleet, new, fleet.rows)
    # before: 4 of 16 and 32 of 64; flat interference does not change, and none of it is beyond that of an idle host
    assert difference.score[0] == pytest.approx(0.5 * 0.75 - 0.25 * 0.5)


def test_interference_is_read_at_the_predicted_utilisation_between_points():
    rising = surface_of(lambda cpu, memory: 0.6 * cpu + 0.2 * memory, None)
    fleet = Fleet(
        [node(pods=(pod("s", "a", cores=4, gib=16, interference=rising),), cores=16, gib=64)], PAIRS
    )
    found = optum(fleet, pod("new", "b", cores=2, gib=8), fleet.rows)
    assert found.terms["services here"][0] == pytest.approx(-0.7 * (0.6 * (3 - 4) / 16 + 0.2 * 8 / 64))


def test_buckets_are_upper_bounds_and_an_exact_zero_stays():
    assert bucketed(np.array([0.2, 0.29]), 10) == pytest.approx([0.3, 0.3])
    assert bucketed(np.array([0.0, 0.01, 0.5, 1.0])) == pytest.approx([0.0, 0.04, 0.52, 1.0])


def test_as_printed_spreads_and_the_difference_packs():
    busy = tuple(
        pod(f"p{i}", "ab"[i % 2], cores=1, gib=4, kind=kind, interference=surface_of(model))
        for i, (kind, model) in enumerate([(PodKind.SERVICE, pressure(0.2)), (PodKind.BATCH, slowdown())] * 3)
    )
    fleet = Fleet([node("empty"), node("half full", busy)], PAIRS)
    new = pod("new", "a", cores=1, gib=4, interference=surface_of(pressure(0.2)))
    printed, difference = (optum(fleet, new, fleet.rows, each).best() for each in (AS_PRINTED, MARGINAL))
    assert printed is not None
    assert difference is not None
    assert (printed.node, difference.node) == ("empty", "half full")


@pytest.mark.parametrize(("settings"), [MARGINAL, AS_PRINTED, OptumSettings(tightest=True)])
def test_terms_add_up_and_the_difference_is_that_of_the_objective(settings):
    rng = np.random.default_rng(5)
    for _ in range(20):
        pods = [_random_pod(rng, f"p{i}") for i in range(int(rng.integers(0, 7)))]
        new = _random_pod(rng, "new")
        profile = node(pods=tuple(pods), cores=64, gib=256)
        fleet = Fleet([profile], PAIRS)
        found = optum(fleet, new, fleet.rows, settings)
        assert sum(values[0] for values in found.terms.values()) == pytest.approx(found.score[0])
        place = (PAIRS, profile.cores, profile.memory_bytes)
        after = host_value(*place, (*pods, new), settings)
        before = 0.0 if settings.absolute else host_value(*place, pods, settings)
        assert found.score[0] == pytest.approx(after - before)


def test_a_full_node_is_refused_with_the_reason():
    fleet = Fleet([node(pods=(pod("p", cores=15, gib=60),), used_bytes=0.85 * 64 * GIB)])
    found = optum(fleet, pod("new", cores=2, gib=8), fleet.rows)
    assert found.best() is None
    assert found.explained(0).refusals == (
        "its predicted CPU use would exceed the node",
        "its predicted memory use would exceed the node",
        "80% or more of its memory is used",
    )


def test_published_rows_replace_earlier_ones():
    fleet = Fleet([node("a"), node("b")], PAIRS)
    new = pod("new", "a")
    optum(fleet, new, fleet.rows)
    fleet.put(node("b", (pod("s", "b", cores=4, gib=8), pod("t", "a", cores=1)), generation=2))
    fresh = Fleet(fleet.profiles, PAIRS)
    assert optum(fleet, new, fleet.rows).score == pytest.approx(optum(fresh, new, fresh.rows).score)


def test_placing_together_comes_within_a_tenth_of_the_exact_optimum():
    """4 hosts, 8 pods, every assignment: by the value of each of the 256 sets of pods on one host."""
    together, one_by_one = [], []
    usage = used_together(dict(zip(ALL_PAIRS, RATIOS, strict=True)))
    for seed in range(12):
        rng = np.random.default_rng(seed)
        pods = [_random_pod(rng, f"p{i}") for i in range(8)]
        hosts = [node(f"h{i}", cores=16, gib=48) for i in range(4)]
        value = np.array(
            [_value(usage, [each for i, each in enumerate(pods) if chosen >> i & 1]) for chosen in range(256)]
        )
        best = value.copy()
        for _ in range(3):
            best = np.array(
                [max(best[rest] + value[chosen ^ rest] for rest in _subsets(chosen)) for chosen in range(256)]
            )
        found = placed_together(usage, hosts, pods)
        by_host = [
            [each for each, place in zip(pods, found, strict=True) if place == host.node] for host in hosts
        ]
        assert None not in found
        together.append(sum(_value(usage, each) for each in by_host) / best[255])
        fleet = Fleet(hosts, usage)
        for new in pods:
            chosen = optum(fleet, new, fleet.rows).best()
            assert chosen is not None
            row = fleet.row(chosen.node)
            assert row is not None
            known = fleet.profiles[row]
            fleet.put(node(known.node, (*known.pods, new), cores=16, gib=48))
        one_by_one.append(sum(_value(usage, each.pods) for each in fleet.profiles) / best[255])
        assert together[-1] <= 1 + 1e-9  # the enumeration is exact
    assert min(together) >= 0.9
    assert np.mean(together) >= 0.98
    assert np.mean(one_by_one) < np.mean(together)


def test_a_pod_that_fits_nowhere_stays_without_a_host():
    hosts = [node("a", cores=4), node("b", cores=4)]
    pods = [pod("big", cores=9), pod("small", cores=2)]
    assert placed_together(PAIRS, hosts, pods)[0] is None
    assert placed_together(PAIRS, hosts, pods)[1] in ("a", "b")


def _value(usage, pods):
    return host_value(usage, 16.0, 48 * GIB, pods)


def _subsets(mask: int):
    rest = mask
    while True:
        yield rest
        if not rest:
            return
        rest = (rest - 1) & mask


def _random_pod(rng, name):
    kind = PodKind.SERVICE if rng.random() < 0.5 else PodKind.BATCH
    model = pressure(rng.uniform(0.1, 0.6)) if kind is PodKind.SERVICE else slowdown(rng.uniform(0.3, 0.6))
    return pod(
        name,
        str(rng.choice(list("abcd"))),
        cores=float(rng.integers(1, 5)),
        gib=float(rng.integers(2, 13)),
        kind=kind,
        interference=surface_of(model),
    )


def test_remembered_pairings_are_those_of_the_equation():
    asked = []

    def counted(host: HostUsage) -> float:
        asked.append(host)
        return matched(host)

    pods = [pod(f"p{n}", "abc"[n % 3], cores=1.0 + n % 2) for n in range(7)]
    columns = MatchedColumns(Fleet([], PAIRS))
    columns.pairing = counted
    for count in range(len(pods)):
        found = [columns.cores(pods[:count]), columns.cores(list(reversed(pods[:count])))]
        assert len(asked) == count + 1
        assert found == pytest.approx([predicted_cores(PAIRS, pods[:count], tightest=True)] * 2)
