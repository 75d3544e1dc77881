"""Which copper pod is evicted, when, and how often: the decision alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.cluster.document import NodeAmounts, NodeDocument
from perphd.cluster.eviction import (
    MOST_PAUSE_S,
    REFUSED_S,
    SETTLE_S,
    Shortage,
    considered,
    copper_pods,
    evicted,
    left_alone,
)
from perphd.domain.reading import Unavailable
from tests.unit.test_cluster_extender import GIB, document

AFTER_S = 300.0


def node(offered_gib: float = 8.0, used_gib: float = 0.0, starved_s: float = 0.0) -> NodeDocument:
    made = document()
    copper = replace(
        made.copper,
        offered=NodeAmounts(4.0, offered_gib * GIB),
        used=NodeAmounts(9.0, used_gib * GIB),
        starved_s=starved_s,
    )
    return replace(made, copper=copper)


SHORT = node(offered_gib=2.0, used_gib=6.0)


def pod(uid: str, band: str | None = "copper", **more: Any) -> dict[str, Any]:
    metadata = {"uid": uid, "namespace": "batch", "name": f"pod-{uid}", **more.pop("metadata", {})}
    if band is not None:
        metadata.setdefault("labels", {"perphd.io/band": band})
    status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", **more.pop("status", {})}
    return {"metadata": metadata, "spec": {"containers": [], **more}, "status": status}


def run(
    looks: dict[float, NodeDocument | Unavailable], pods: list[Any], goes: bool = True
) -> list[tuple[float, str]]:
    """The evictions of a run; ``goes``: evicted pods leave the node."""
    there, kept, found = list(pods), Shortage(), []
    for now_s, look in sorted(looks.items()):
        uids = [each["metadata"]["uid"] for each in there]
        eviction, kept = considered(look, there, uids, kept, now_s, AFTER_S)
        if eviction is not None:
            found.append((now_s, eviction.pod.uid))
            kept = evicted(kept, eviction.pod.uid, now_s)
            if goes:
                there = [each for each in there if each["metadata"]["uid"] != eviction.pod.uid]
    return found


def every(
    seconds: float, until_s: float, look: NodeDocument | Unavailable
) -> dict[float, NodeDocument | Unavailable]:
    return {n * seconds: look for n in range(int(until_s / seconds) + 1)}


def test_memory_must_be_short_for_the_whole_time() -> None:
    looks = every(10.0, 290.0, SHORT)
    assert run(looks, [pod("a")]) == []
    assert run({**looks, 300.0: SHORT}, [pod("a")]) == [(300.0, "a")]
    assert run({**every(10.0, 300.0, SHORT), 150.0: node()}, [pod("a")]) == [], "a break begins it anew"
    away = Unavailable("no answer")
    assert run({**every(10.0, 300.0, SHORT), 150.0: away}, [pod("a")]) == [], (
        "without a document nothing is known"
    )


def test_starvation_counts_by_the_daemons_own_clock_and_cpu_beyond_the_offer_does_not_count() -> None:
    assert run({0.0: node(starved_s=299.0)}, [pod("a")]) == []
    assert run({0.0: node(starved_s=300.0)}, [pod("a")]) == [(0.0, "a")]
    assert run(every(10.0, 5000.0, node()), [pod("a")]) == [], "9 CPUs are used, and 4 offered"
    assert run(every(10.0, 5000.0, node(offered_gib=2.0, used_gib=3.0)), [pod("a")]) == [], "2 % of 64 GiB"


def test_one_at_a_time_with_a_pause_that_doubles() -> None:
    pods = [pod(f"{n}", status={"startTime": f"2026-01-01T00:00:{n:02}Z"}) for n in range(10, 60)]
    found = run(every(10.0, 8000.0, SHORT), pods)
    pauses = [after - before for (before, _), (after, _) in pairwise(found)]
    assert pauses[:5] == [60.0, 120.0, 240.0, 480.0, 900.0]
    assert set(pauses[4:]) == {MOST_PAUSE_S}
    assert [uid for _, uid in found[:3]] == ["59", "58", "57"], "the youngest first"
    stays = run(every(10.0, 8000.0, SHORT), pods, goes=False)
    assert len(stays) == 1, "not the next one before the last one is gone"


def test_a_quiet_time_ends_the_backoff() -> None:
    pods = [pod(f"{n}") for n in range(9)]
    looks = {
        **every(10.0, 500.0, SHORT),
        **{510.0 + 10.0 * n: node() for n in range(100)},
        **{1510.0 + 10.0 * n: SHORT for n in range(60)},
    }
    times = [now_s for now_s, _ in run(looks, pods)]
    assert times == [300.0, 360.0, 480.0, 1810.0, 1870.0, 1990.0]


def test_a_budget_that_refuses_is_left_alone_for_a_while() -> None:
    pods = [pod("a", status={"startTime": "2026-01-02T00:00:00Z"}), pod("b")]
    look = node(starved_s=1e6)
    first, kept = considered(look, pods, ["a", "b"], Shortage(), 0.0, AFTER_S)
    assert first is not None
    assert first.pod.uid == "a"
    kept = left_alone(kept, "a", 0.0)
    second, kept = considered(look, pods, ["a", "b"], kept, 1.0, AFTER_S)
    assert second is not None
    assert second.pod.uid == "b", "another pod may go, at once"
    kept = left_alone(kept, "b", 1.0, pause_s=100.0)
    assert considered(look, pods, ["a", "b"], kept, 2.0, AFTER_S)[0] is None
    again, kept = considered(look, pods, ["a", "b"], kept, REFUSED_S + 1.0, AFTER_S)
    assert again is not None
    assert again.pod.uid == "a"
    assert kept.refused == {"b": 101.0}


@pytest.mark.parametrize(
    "kept",
    [
        pod("x", band="gold"),
        pod("x", band="silver"),
        pod("x", band=None),
        pod("x", metadata={"labels": {"perphd.io/band": "gold"}}, containers=[
            {"resources": {"requests": {"perphd.io/copper-cpu": "1000"}}}]),
        pod("x", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        pod("x", metadata={"ownerReferences": [{"kind": "DaemonSet", "name": "logs"}]}),
        pod("x", metadata={"annotations": {"kubernetes.io/config.mirror": "y"}}),
        pod("x", status={"phase": "Succeeded"}),
        pod("x", status={"phase": "Pending"}),
        {},
        {"metadata": None, "spec": [], "status": {"phase": "Running"}},
    ],
)  # fmt: skip
def test_whoever_must_not_go_is_never_chosen(kept: dict[str, Any]) -> None:
    assert copper_pods([kept]) == []
    assert (
        run(
            every(10.0, 5000.0, SHORT),
            [each for each in [kept] if each.get("metadata")] if kept.get("metadata") else [],
        )
        == []
    )


def test_what_requests_coppers_resources_is_copper_and_the_lowest_priority_goes_first() -> None:
    asks = [{"resources": {"requests": {"perphd.io/copper-cpu": "1000"}}}]
    pods = [
        pod("young", priority=10, status={"startTime": "2026-02-01T00:00:00Z"}),
        pod("old", None, containers=asks),
    ]
    assert run({0.0: node(starved_s=1e6)}, pods) == [(0.0, "old")]


def test_the_reason_says_what_is_short() -> None:
    starved, _ = considered(node(starved_s=420.0), [pod("a")], ["a"], Shortage(), 0.0, AFTER_S)
    assert starved is not None
    assert starved.reason == "copper on this node has waited for a CPU for 420 s"
    short, _ = considered(SHORT, [pod("a")], ["a"], Shortage(since_s=0.0), 310.0, AFTER_S)
    assert short is not None
    assert short.reason == (
        "copper on this node uses 4.0 GiB more memory than the node offers to it, and has exceeded the offer for 310 s"
    )


@given(
    st.lists(
        st.tuples(st.floats(0.1, 100.0), st.sampled_from(["short", "enough", "away", "starved"])),
        max_size=200,
    ),
    st.lists(st.sampled_from(["copper", "gold", "silver"]), max_size=6),
)
def test_whatever_comes_only_copper_goes_and_never_two_within_a_minute(
    steps: list[tuple[float, str]], bands: list[str]
) -> None:
    kinds: dict[str, NodeDocument | Unavailable] = {
        "short": SHORT,
        "enough": node(),
        "away": Unavailable("x"),
        "starved": node(starved_s=1e6),
    }
    now_s, looks = 0.0, dict[float, NodeDocument | Unavailable]()
    for pause_s, what in steps:
        now_s += pause_s
        looks[now_s] = kinds[what]
    found = run(looks, [pod(f"{n}", band) for n, band in enumerate(bands)])
    assert all(bands[int(uid)] == "copper" for _, uid in found)
    assert all(b - a >= SETTLE_S for (a, _), (b, _) in pairwise(found))
