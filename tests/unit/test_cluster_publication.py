"""What a node publishes, look after look, and slots for copper pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.cluster.asking import AskingPod, asking_pod
from perphd.cluster.document import HeldAmount, NodeAmounts, NodeDocument
from perphd.cluster.publication import KeptPublication, Level, Publication, decided, offered_level
from perphd.cluster.slots import NoRoom, room, slots_of, taken, without
from perphd.domain.decision import Health
from perphd.domain.reading import NOT_MEASURED, Unavailable
from perphd.qos.ledger import Amounts
from tests.unit.test_cluster_extender import GIB, document


def offering(cpus: float, gib: float = 8.0, degraded: bool = False, used_gib: float = 8.0) -> NodeDocument:
    made = document()
    lras = tuple(replace(each, health=Health.DEGRADED if degraded else Health.HEALTHY) for each in made.lras)
    copper = replace(made.copper, offered=NodeAmounts(cpus, gib * GIB))
    return replace(made, copper=copper, lras=lras, used=NodeAmounts(4.0, used_gib * GIB))


def after(*looks: NodeDocument | Unavailable) -> list[Publication]:
    kept, found = KeptPublication(), []
    for look in looks:
        publication, kept = decided(look, kept)
        found.append(publication)
    return found


def test_less_counts_at_once_and_more_at_the_second_look() -> None:
    levels = [each.level.cpu_milli for each in after(*map(offering, (4, 2, 6, 3, 6, 5, 5.1)))]
    assert levels == [4000, 2000, 2000, 3000, 3000, 5000, 5000]  # 5.1: less than 2 % of the node more


@given(st.lists(st.floats(0, 16), min_size=2, max_size=20))
def test_no_offer_exceeds_the_last_look_by_a_step(offers: list[float]) -> None:
    for offer, publication in zip(offers, after(*map(offering, offers)), strict=True):
        assert publication.level.cpu_milli <= offer * 1000 + 0.02 * 16000


@given(st.floats(0, 200), st.floats(0, 64))
def test_memory_stays_within_80_percent(offer: float, used: float) -> None:
    level = offered_level(offering(4.0, offer, used_gib=used))
    assert level.memory_bytes + used * GIB <= max(0.8 * 64 * GIB, used * GIB) + 1
    assert level.memory_bytes % 2**20 == 0


@given(st.lists(st.tuples(st.floats(0, 64), st.floats(0, 64)), min_size=2, max_size=20))
def test_what_is_published_stays_within_80_percent_at_every_look(looks: list[tuple[float, float]]) -> None:
    published = after(*(offering(4.0, gib, used_gib=used) for gib, used in looks))
    for (_, used), publication in zip(looks, published, strict=True):
        assert publication.level.memory_bytes <= max(0.0, 0.8 * 64 - used) * GIB + 1


def test_memory_that_others_take_beyond_the_limit_counts_however_little() -> None:
    looks = [offering(4.0, 40.0, used_gib=used) for used in (12.0, 12.5, 12.0, 12.0)]  # 2 % are 1.28 GiB
    levels = [each.level.memory_bytes / GIB for each in after(*looks)]
    assert levels == pytest.approx([39.2, 38.7, 38.7, 38.7], abs=0.001)


def test_what_is_unknown_is_not_offered() -> None:
    blind = replace(offering(4.0), used=NodeAmounts(NOT_MEASURED, NOT_MEASURED))
    assert offered_level(blind).memory_bytes == 0
    assert offered_level(replace(offering(4.0), capacity=NodeAmounts(16.0, NOT_MEASURED))).memory_bytes == 0


def test_the_taint_comes_at_the_second_bad_look_and_goes_at_the_third_good_one() -> None:
    poor, rich, between = offering(0.0), offering(4.0), offering(0.5)
    looks = [rich, poor, rich, poor, poor, between, rich, rich, between, rich, rich, rich]
    tainted = [each.is_tainted for each in after(*looks)]
    assert tainted == [False] * 4 + [True] * 7 + [False]


def test_without_a_daemon_the_taint_is_there_at_once() -> None:
    first, gone, back = after(offering(4.0), Unavailable("it is away"), offering(4.0))
    assert (first.is_tainted, gone.is_tainted, back.is_tainted) == (False, True, True)
    assert gone.level == Level()
    assert [each.status for each in gone.conditions] == ["False", "Unknown"]


def test_an_lra_is_announced_when_it_stays_degraded_and_when_it_stays_well() -> None:
    pattern = [False, True, False, True, True, True, False, True, False, False]
    notices = [
        [one.reason for one in each.notices] for each in after(*(offering(4.0, 8.0, bad) for bad in pattern))
    ]
    assert notices == [[], [], [], [], ["LraDegraded"], [], [], [], [], ["LraRecovered"]]


def profile(generation: int = 3, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"generation": generation}, "spec": spec}


def asked(name: str = "p", milli: int = 2000, uid: str = "u1") -> AskingPod:
    requests = {"perphd.io/copper-cpu": str(milli), "perphd.io/copper-memory": "1Gi"}
    return asking_pod(
        {
            "metadata": {"name": name, "uid": uid},
            "spec": {"containers": [{"resources": {"requests": requests}}]},
        }
    )


def entry(uid: str, milli: int = 3000) -> dict[str, Any]:
    return {"pod": f"default/{uid}", "uid": uid, "cpuMilli": milli, "memoryBytes": 1 << 30, "sinceUnix": 1.0}


def test_a_slot_is_taken_with_a_test_of_the_generation() -> None:
    patch = taken(profile(reservations=[entry("a")]), document(free=8.0), asked(), 5.0)
    assert isinstance(patch, list)
    assert patch[0] == {"op": "test", "path": "/metadata/generation", "value": 3}
    assert patch[1]["path"] == "/spec/reservations/-"
    assert patch[1]["value"]["cpuMilli"] == 2000
    first = taken(profile(), document(free=8.0), asked(), 5.0)
    assert isinstance(first, list)
    assert first[1]["path"] == "/spec"


def test_slots_count_until_the_node_counts_them_itself() -> None:
    full = profile(reservations=[entry("a"), entry("b", 4000)])
    assert isinstance(taken(full, document(free=8.0), asked(), 5.0), NoRoom)
    counted = replace(
        document(free=8.0), held=(HeldAmount("default.b", "copper", NodeAmounts(4.0, GIB), None),)
    )
    assert isinstance(taken(full, counted, asked(), 5.0), list)
    assert room(counted, slots_of(full)) == Amounts(5.0, 31 << 30)


def test_the_same_pod_takes_no_second_slot() -> None:
    assert taken(profile(reservations=[entry("u1")]), document(free=0.0), asked(), 5.0) == []


def test_slots_are_taken_away_and_others_stay() -> None:
    before = profile(reservations=[entry("a"), entry("b")])
    patch = without(before, lambda slot: slot.uid == "a")
    assert patch[1]["value"] == [entry("b")]
    assert without(before, lambda slot: slot.uid == "c") == []
    assert without(profile(), lambda slot: True) == []


@pytest.mark.parametrize("spec", [{}, {"reservations": None}, {"reservations": [{}, 1, {"uid": "x"}, None]}])
def test_entries_that_are_none_count_for_nothing(spec: dict[str, Any]) -> None:
    assert slots_of(profile(**spec)) == ()
    assert slots_of({"metadata": {}}) == ()
