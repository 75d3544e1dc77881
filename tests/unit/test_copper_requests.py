"""Requests of copper pods as the webhook rewrites them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.cluster.asking import (
    BAND_LABEL,
    COPPER_CPU,
    COPPER_MEMORY,
    ExtenderError,
    asking_pod,
    exact_quantity,
)
from perphd.cluster.copper_requests import EXEMPT_NAMESPACES, rewriting
from perphd.qos.bands import QosBand


def pod(
    *resources: Any, band: str | None = "copper", init: tuple[Any, ...] = (), **spec: Any
) -> dict[str, Any]:
    labels = {} if band is None else {BAND_LABEL: band}
    containers = [{"name": f"c{i}", "image": "none", "resources": each} for i, each in enumerate(resources)]
    starting = [{"name": f"i{i}", "image": "none", **each} for i, each in enumerate(init)]
    more = {"initContainers": starting} if starting else {}
    return {"metadata": {"name": "p", "labels": labels}, "spec": {"containers": containers, **more, **spec}}


def patched(data: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
    """The pod with the patch applied: each operation adds or replaces the member at its path."""
    after = copy.deepcopy(data)
    for step in rewriting(data, namespace).patch:
        assert step["op"] == "add"
        *path, last = step["path"].split("/")[1:]
        here: Any = after
        for part in path:
            here = here[int(part) if isinstance(here, list) else part]
        here[last] = step["value"]
    return after


def resources(data: dict[str, Any], kind: str = "containers", place: int = 0) -> Any:
    return data["spec"][kind][place]["resources"]


def test_requests_become_equal_requests_and_limits_of_the_extended_resources() -> None:
    after = patched(pod({"requests": {"cpu": "500m", "memory": "1Gi"}}))
    asked = {COPPER_CPU: "500", COPPER_MEMORY: str(1 << 30)}
    assert resources(after) == {"requests": {"cpu": "0", "memory": "0", **asked}, "limits": asked}


def test_limits_stay_and_count_where_there_is_no_request() -> None:
    given_resources = {
        "requests": {"cpu": "1"},
        "limits": {"cpu": "2", "memory": "64Mi"},
        "claims": [{"name": "x"}],
    }
    after = resources(patched(pod(given_resources)))
    asked = {COPPER_CPU: "1000", COPPER_MEMORY: str(64 << 20)}
    assert after["requests"] == {"cpu": "0", "memory": "0", **asked}
    assert after["limits"] == {"cpu": "2", "memory": "64Mi", **asked}
    assert after["claims"] == [{"name": "x"}]


def test_a_container_that_requests_copper_itself_is_left_alone_for_that_resource() -> None:
    own = {"requests": {COPPER_CPU: "7", "cpu": "1", "memory": "1"}, "limits": {COPPER_CPU: "7"}}
    after = resources(patched(pod(own)))
    assert after["requests"] == {COPPER_CPU: "7", "cpu": "1", "memory": "0", COPPER_MEMORY: "1"}


def test_init_containers_and_other_resources() -> None:
    init: tuple[Any, ...] = ({"resources": {"requests": {"cpu": "2", "nvidia.com/gpu": "1"}}}, {})
    after = patched(pod({}, init=init))
    assert resources(after, "initContainers")["requests"] == {
        "cpu": "0",
        COPPER_CPU: "2000",
        "nvidia.com/gpu": "1",
    }
    assert after["spec"]["containers"] == pod({})["spec"]["containers"]
    assert "resources" not in after["spec"]["initContainers"][1]


@pytest.mark.parametrize("band", [None, "gold", "silver", "Copper", ""])
def test_other_bands_are_never_touched(band: str | None) -> None:
    assert rewriting(pod({"requests": {"cpu": "1"}}, band=band), "default").patch == ()


@pytest.mark.parametrize("namespace", sorted(EXEMPT_NAMESPACES))
def test_the_systems_namespaces_are_never_touched(namespace: str) -> None:
    assert rewriting(pod({"requests": {"cpu": "1"}}), namespace).patch == ()


def test_requests_of_the_whole_pod_are_left_with_a_warning() -> None:
    found = rewriting(pod({"requests": {"cpu": "1"}}, resources={"requests": {"cpu": "2"}}), "default")
    assert found.patch == ()
    assert "whole pod" in found.warnings[0]


def test_an_unreadable_quantity_is_named() -> None:
    with pytest.raises(ExtenderError, match="'lots' is not a quantity"):
        rewriting(pod({"requests": {"cpu": "lots"}}), "default")


@pytest.mark.parametrize(
    ("cpu", "milli"),
    [("1100m", "1100"), ("1.001", "1001"), ("1n", "1"), ("0.0015", "2"), (3, "3000"), (0.29, "290")],
)
def test_amounts_are_exact_and_rounded_up(cpu: object, milli: str) -> None:
    assert resources(patched(pod({"requests": {"cpu": cpu}})))["requests"][COPPER_CPU] == milli


_CPU = st.sampled_from(["0", "1m", "250m", "1", "1.5", "2000m", "7n", "3e1"])
_MEMORY = st.sampled_from(["0", "1", "64Mi", "1.5Gi", "100M", "1500m"])
_AMOUNTS = st.fixed_dictionaries({}, optional={"cpu": _CPU, "memory": _MEMORY, "x.y/z": st.just("1")})
_RESOURCES = st.fixed_dictionaries({}, optional={"requests": _AMOUNTS, "limits": _AMOUNTS})


@given(st.lists(_RESOURCES, max_size=3), st.lists(_RESOURCES, max_size=2), st.booleans())
def test_a_second_look_changes_nothing_and_nothing_asked_for_is_lost(
    given_resources: list[Any], starting: list[Any], is_sidecar: bool
) -> None:
    restart = {"restartPolicy": "Always"} if is_sidecar else {}
    before = pod(*given_resources, init=tuple({"resources": each, **restart} for each in starting))
    after = patched(before)
    assert rewriting(after, "default").patch == ()
    for kind in ("containers", "initContainers"):
        for old, new in zip(before["spec"].get(kind, []), after["spec"].get(kind, []), strict=True):
            _compare(old["resources"], new["resources"])
    assert before == pod(*given_resources, init=tuple({"resources": each, **restart} for each in starting))
    assert asking_pod(after).band is QosBand.COPPER


def _compare(old: dict[str, Any], new: dict[str, Any]) -> None:
    requests, limits = new.get("requests", {}), new.get("limits", {})
    for name, extended, units in (("cpu", COPPER_CPU, 1000), ("memory", COPPER_MEMORY, 1)):
        asked = old.get("requests", {}).get(name, old.get("limits", {}).get(name, "0"))
        count = int(requests.get(extended, "0"))
        assert 0 <= count - exact_quantity(asked) * units < 1
        assert requests.get(extended) == limits.get(extended)
        assert exact_quantity(requests.get(name, "0")) == 0
        assert limits.get(name) == old.get("limits", {}).get(name)
    assert requests.get("x.y/z") == old.get("requests", {}).get("x.y/z")


def test_the_scheduler_counts_sidecars_beside_what_starts_after_them() -> None:
    def of(cpu: str, **more: Any) -> Any:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    sidecar = of("1", restartPolicy="Always")
    assert asking_pod(pod({"requests": {"cpu": "2"}}, init=(sidecar, of("1500m")))).pod.cores == 3.0
    assert asking_pod(pod({"requests": {"cpu": "2"}}, init=(sidecar, of("4")))).pod.cores == 5.0
    assert asking_pod(pod({"requests": {"cpu": "2"}}, init=(of("4"), sidecar))).pod.cores == 4.0
    assert asking_pod(pod({}, init=(sidecar,))).pod.cores == 1.0
