"""The stock kube-scheduler's calls, with payloads written after the published API types."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.cluster.asking import ExtenderError, asking_pod, quantity
from perphd.cluster.calls import SchedulerCall, filter_call, prioritize_call
from perphd.cluster.document import (
    CacheHeadroom,
    CopperRoom,
    HeldAmount,
    NodeAmounts,
    NodeDocument,
    NodeLra,
    ResourceForecast,
    UnitCost,
)
from perphd.cluster.extender import KnownNodes, explanation, filtered, judged, prioritized
from perphd.cluster.slots import Slot
from perphd.domain.decision import Cause, Health
from perphd.domain.reading import NOT_MEASURED, Unavailable
from perphd.domain.workload import Mode
from perphd.qos.bands import QosBand
from perphd.qos.ledger import Amounts

GIB = float(1 << 30)
POD = json.loads("""
{"metadata": {"name": "pi-7x9", "namespace": "batch", "uid": "0b5e6c1a", "labels": {"perphd.io/band": "copper"},
              "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "pi", "uid": "1"}]},
 "spec": {"containers": [
   {"name": "a", "image": "pi", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": "2"}}},
   {"name": "b", "image": "log", "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}}},
   {"name": "c", "image": "none", "resources": {}}],
  "initContainers": [{"name": "i", "image": "init", "resources": {"requests": {"cpu": "1", "memory": "4Gi"}}}]},
 "status": {"phase": "Pending"}}
""")


def document(
    used: float = 4.0, free: float = 8.0, loss: float = 0.0, made: float = 0.0, **more: Any
) -> NodeDocument:
    amounts, left = NodeAmounts(used, 8 * GIB), NodeAmounts(free, 32 * GIB)
    lra = NodeLra("db", Health.HEALTHY, Cause.NONE, 1.1, None, (UnitCost("cpu", "one core", loss),), 9.0)
    forecast = (
        ResourceForecast("cpu", used, 0.5, used + 1.2, used + 2),
        ResourceForecast("memory", 8 * GIB, GIB, 10 * GIB, 11 * GIB),
    )
    made_document = NodeDocument(
        1, made, 30.0, Mode.OBSERVE, 0.8, NodeAmounts(16.0, 64 * GIB), amounts, amounts, forecast,
        CopperRoom(left, NodeAmounts(0.0, 0.0), left, NodeAmounts(1.0, GIB), "forecast"),
        (lra,), (), (), CacheHeadroom(NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED),
    )  # fmt: skip
    return replace(made_document, **more)


def known(**documents: NodeDocument) -> KnownNodes:
    nodes = KnownNodes()
    for name, each in documents.items():
        nodes.put(name, each)
    return nodes


def call(*names: str, pod: Any = POD) -> dict[str, Any]:
    return {"Pod": pod, "Nodes": None, "NodeNames": list(names)}


def read(data: Any) -> SchedulerCall:
    return filter_call(json.dumps(data).encode())


def test_a_pod_as_the_scheduler_describes_it() -> None:
    asked = asking_pod(POD)
    assert asked.band is QosBand.COPPER
    assert (asked.pod.name, asked.pod.application) == ("batch/pi-7x9", "pi")
    assert asked.pod.cores == pytest.approx(2.0)
    assert asked.pod.memory_bytes == 4 * GIB  # the init container wants more than all containers together


def test_requests_of_the_whole_pod_and_its_overhead_count_as_the_scheduler_counts_them() -> None:
    pod = json.loads(json.dumps(POD))
    pod["spec"]["overhead"] = {"cpu": "250m", "memory": "128Mi"}
    assert asking_pod(pod).amounts == Amounts(2.25, int(4.125 * GIB))
    pod["spec"]["resources"] = {"requests": {"cpu": "3"}}
    assert asking_pod(pod).amounts == Amounts(3.25, int(4.125 * GIB))


def test_extended_resources_make_a_pod_copper() -> None:
    requests = {"perphd.io/copper-cpu": "2500", "perphd.io/copper-memory": "3Gi"}
    asked = asking_pod(
        {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"requests": requests}}]}}
    )
    assert (asked.band, asked.pod.cores, asked.pod.memory_bytes) == (QosBand.COPPER, 2.5, 3 * GIB)
    plain = asking_pod({"metadata": {"name": "p"}, "spec": {"containers": []}})
    assert plain.band is QosBand.SILVER


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", 0.5),
        ("2", 2),
        ("1.5", 1.5),
        ("1Gi", GIB),
        ("100M", 1e8),
        ("1e3", 1000),
        ("2E", 2e18),
        (".5", 0.5),
        (3, 3),
    ],
)
def test_quantities(text: object, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "1ki", "-1", "1e999", "NaN", None, True, {}])
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(ExtenderError):
        quantity(text)


def test_filter_keeps_what_has_room_and_says_why_not() -> None:
    nodes = known(roomy=document(), tight=document(free=1.0), full=document(used=15.5))
    answer = filtered(nodes, read(call("roomy", "tight", "full", "unknown")), "optum", 10.0)
    assert answer["NodeNames"] == ["roomy", "unknown"]
    assert "copper may still take 1 CPUs" in answer["FailedNodes"]["tight"]
    assert "predicted CPU use" in answer["FailedNodes"]["full"]
    assert (answer["Error"], answer["Nodes"]) == ("", None)
    assert json.loads(json.dumps(answer)) == answer


def test_slots_taken_since_the_document_was_made_count() -> None:
    nodes = known(one=document(free=3.0), other=document(free=3.0))
    asked = read(call("one", "other"))
    slot = Slot("batch/before", "u-before", Amounts(1.5, 1 << 30), 5.0)
    nodes.hold("one", (slot,))
    answer = filtered(nodes, asked, "optum", 10.0)
    assert answer["NodeNames"] == ["other"]
    assert "copper may still take 1.5 CPUs" in answer["FailedNodes"]["one"]

    # A newer document in which the node itself holds the slot has counted it already.
    nodes.put(
        "one",
        document(free=3.0, made=6.0, held=(HeldAmount(slot.holder, "copper", NodeAmounts(1.5, GIB), None),)),
    )
    assert filtered(nodes, asked, "optum", 10.0)["NodeNames"] == ["one", "other"]
    nodes.put("one", document(free=3.0, made=7.0))
    assert filtered(nodes, asked, "optum", 10.0)["NodeNames"] == ["other"]
    nodes.hold("one", ())
    assert filtered(nodes, asked, "optum", 10.0)["NodeNames"] == ["one", "other"]


def test_whole_nodes_come_back_whole() -> None:
    nodes = known(a=document(), b=document(free=0.0))
    items = [{"metadata": {"name": name, "labels": {"zone": name}}, "spec": {}} for name in "ab"]
    given = {"Pod": POD, "Nodes": {"metadata": {"resourceVersion": "7"}, "items": items}, "NodeNames": None}
    answer = json.loads(msgspec.json.encode(filtered(nodes, read(given), "optum", 0.0)))
    assert answer["Nodes"] == {"metadata": {"resourceVersion": "7"}, "items": items[:1]}
    assert answer["NodeNames"] is None


def test_priorities_follow_the_score_and_unknown_nodes_come_last() -> None:
    nodes = known(hurts=document(loss=0.2), calm=document(), stale=document(made=-100.0))
    given = {
        each["Host"]: each["Score"]
        for each in prioritized(nodes, read(call("hurts", "calm", "stale", "new")), "optum", 0.0)
    }
    assert given == {"hurts": 1, "calm": 10, "stale": 0, "new": 0}


SERVICE = {**POD, "metadata": {**POD["metadata"], "labels": {}}}


def _given(nodes: KnownNodes, pod: Any, policy: str) -> dict[str, int]:
    answer = prioritized(nodes, read(call(*nodes.documents, pod=pod)), policy, 0.0)
    return {each["Host"]: each["Score"] for each in answer}


@pytest.mark.parametrize("policy", ["optum", "optum-eq11", "optum-matched"])
def test_a_service_of_unknown_interference_goes_where_least_is_requested(policy: str) -> None:
    nodes = known(full=document(used=9.0), free=document(used=1.0), hurts=document(used=1.0, loss=0.3))
    given = _given(nodes, SERVICE, policy)
    assert given["free"] > given["full"], "a gain of utilisation does not count without knowing what it costs"
    assert given["free"] > given["hurts"], "what the pod is known to cause counts"
    copper = _given(nodes, POD, "optum")
    assert copper["full"] > copper["hurts"], "copper still goes where it fills a node"


def test_nearly_equal_nodes_stay_equal_for_a_service_of_unknown_interference() -> None:
    nodes = known(a=document(used=4.0), b=document(used=4.3))
    assert len(set(_given(nodes, SERVICE, "optum").values())) == 1
    assert _given(nodes, POD, "optum") == {"a": 1, "b": 10}


def test_other_policies_rank_services_as_they_say() -> None:
    nodes = known(full=document(used=9.0), free=document(used=1.0))
    assert _given(nodes, SERVICE, "borg") == {"full": 10, "free": 1}


def test_an_explanation_names_the_terms_of_a_service_of_unknown_interference() -> None:
    verdict = judged(known(a=document(loss=0.1)), read(call("a", pod=SERVICE)), "optum", 0.0)
    best = explanation(verdict, "prioritize", "optum", 0.0).best[0]
    assert set(best.terms) == {"least requested", "balance", "services here", "batch here"}
    assert best.score == pytest.approx(sum(best.terms.values()))


def test_when_the_clock_is_set_back_the_last_document_counts_and_an_earlier_one_grows_stale() -> None:
    nodes = known(a=document(free=0.0, made=5000.0), b=document(free=0.0, made=5000.0))
    nodes.put("a", document(free=4.0, made=100.0))
    verdict = judged(nodes, read(call("a", "b")), "optum", 110.0)
    assert [verdict.names[place] for place in verdict.places] == ["a"]
    assert [verdict.names[place] for place in verdict.stale] == ["b"]
    assert verdict.kept.all()


@pytest.mark.parametrize("policy", ["optum", "distribution", "balanced"])
def test_nodes_that_come_and_go_leave_nothing_behind(policy: str) -> None:
    nodes = known(stays=document(used=2.0))
    for number in range(50):
        nodes.put(f"n{number}", document(used=float(number % 15), free=float(number % 8)))
        prioritized(nodes, read(call(f"n{number}", "stays")), policy, 1.0)
        nodes.forget(f"n{number}")
    assert len(nodes.fleet) == 2
    nodes.put("last", document(used=9.0, free=0.5))
    fresh = known(stays=document(used=2.0), last=document(used=9.0, free=0.5))
    asked = read(call("last", "stays", "n49"))
    assert filtered(nodes, asked, policy, 1.0) == filtered(fresh, asked, policy, 1.0)
    assert prioritized(nodes, asked, policy, 1.0) == prioritized(fresh, asked, policy, 1.0)


def test_without_forecasts_what_is_reserved_counts_for_certain() -> None:
    missing = Unavailable("no forecast")
    blind = tuple(ResourceForecast(name, missing, missing, missing, missing) for name in ("cpu", "memory"))
    nodes = known(a=document(used=15.0, forecast=blind), b=document(used=13.0, forecast=blind))
    assert filtered(nodes, read(call("a", "b")), "distribution", 0.0)["NodeNames"] == ["b"]


@pytest.mark.parametrize("policy", ["optum", "optum-eq11", "distribution", "balanced", "borg", "n-sigma"])
def test_every_policy_that_documents_serve_answers(policy: str) -> None:
    nodes = known(a=document(), b=document(used=6.0))
    assert filtered(nodes, read(call("a", "b")), policy, 0.0)["NodeNames"] == ["a", "b"]
    assert sorted(each["Score"] for each in prioritized(nodes, read(call("a", "b")), policy, 0.0))[-1] == 10


_KEYS = "Pod Nodes NodeNames metadata spec containers resources requests cpu items name labels".split()
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_nonsense_is_an_extender_error_or_an_answer(data: Any) -> None:
    text = json.dumps(data).encode()
    for reading in (filter_call, prioritize_call):
        try:
            asked = reading(text)
            msgspec.json.encode(filtered(known(a=document()), asked, "optum", 0.0))
            msgspec.json.encode(prioritized(known(a=document()), asked, "optum", 0.0))
        except ExtenderError:
            continue


_NAME = st.text("abc-0", min_size=1, max_size=4)
_NODE: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({"name": _NAME, "labels": _JSON}), "spec": _JSON, "status": _JSON}
)


@given(st.lists(_NODE, max_size=6, unique_by=lambda node: node["metadata"]["name"]), st.booleans())
def test_both_forms_of_a_call_have_the_same_candidates_and_answers(nodes: list[Any], spaces: bool) -> None:
    """The bytes of a node may hold anything; they come back as they were."""
    names = [each["metadata"]["name"] for each in nodes]
    whole = {"Pod": POD, "Nodes": {"kind": "NodeList", "metadata": {"x": 1.50}, "items": nodes}}
    text = json.dumps(whole, indent=2 if spaces else None).encode()
    fleet = known(**{name: document(free=float(len(name))) for name in names})
    assert list(filter_call(text).names) == list(prioritize_call(text).names) == names
    by_name = filtered(fleet, read(call(*names)), "optum", 0.0)
    by_node = json.loads(msgspec.json.encode(filtered(fleet, filter_call(text), "optum", 0.0)))
    assert by_node["FailedNodes"] == by_name["FailedNodes"]
    kept = [each for each in nodes if each["metadata"]["name"] in by_name["NodeNames"]]
    assert by_node["Nodes"] == {**whole["Nodes"], "items": kept}


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        ('{"items": [{"metadata": {"name": "a"}}, {"metadata": {}}]}', r"Nodes.items\[1\]: .*name"),
        ('{"items": [7]}', r"Nodes.items\[0\]"),
        ('{"items": {}}', "Nodes"),
        ('"all"', "Nodes"),
        ("null", "neither NodeNames nor Nodes"),
    ],
)
def test_a_wrong_list_of_nodes_is_named_by_its_place(nodes: str, complaint: str) -> None:
    for reading in (filter_call, prioritize_call):
        with pytest.raises(ExtenderError) as told:
            reading(f'{{"Pod": {{}}, "Nodes": {nodes}}}'.encode())
        if reading is filter_call:
            assert told.match(complaint)
