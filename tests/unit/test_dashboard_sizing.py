"""The sizing page says what perphctl size and headroom say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perphd.commands.base import Out
from perphd.commands.dashboard.sizing_page import LAST_S, page
from perphd.commands.render_sizing import amount
from perphd.commands.sizing import headroom_of, read_store, sizes_of
from perphd.domain.reading import Unavailable
from perphd.sizing.shaper import Resource
from tests.unit.sizing_store import GIB, constant, daily, made, usual


def paged(store: Path) -> tuple[dict[str, Any], Any]:
    place, found = read_store(Out(None, True), None, LAST_S, str(store))
    sizes = sizes_of(place, found)
    hosts = [headroom_of(place, found, resource, 8.0) for resource in Resource]
    data = page(sizes, hosts, ("old",), "late")
    json.dumps(data, allow_nan=False)
    return data, sizes


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    workloads = {
        "db": usual(daily(1.0, 3.0), constant(4.0 * GIB)),
        "web": usual(constant(0.5), constant(1.0 * GIB)),
    }
    return paged(made(tmp_path_factory.mktemp("store") / "store.db", 300, workloads))


def test_every_workload_has_a_row_and_a_bar_for_each_resource(shown: tuple[dict[str, Any], Any]):
    data, _ = shown
    assert [resource["title"] for resource in data["resources"]] == ["CPU", "Memory"]
    for resource in data["resources"]:
        assert [row[0]["text"] for row in resource["table"]["rows"]] == ["db", "web"]
        assert [bar["workload"] for bar in resource["bars"]] == ["db", "web"]
        assert {len(row) for row in resource["table"]["rows"]} == {len(resource["table"]["columns"])}


def test_rows_have_the_numbers_that_perphctl_size_has(shown: tuple[dict[str, Any], Any]):
    data, sizes = shown
    for resource, number in (("CPU", 0), ("Memory", 1)):
        table = data["resources"][number]["table"]
        for row, size in zip(table["rows"], sizes, strict=True):
            item = size.resources[number]
            cells = dict(zip(table["columns"], (cell["text"] for cell in row), strict=True))
            assert cells["P99"] == amount(item.used.p99, item.resource.value), resource
            assert cells["RECOMMENDED"] == amount(item.recommended, item.resource.value)
            assert cells["RESERVED"] == "unknown"
            assert cells["RECLAIMABLE"] == "–"


def test_the_forecast_is_a_span_from_its_mean_to_its_bound(shown: tuple[dict[str, Any], Any]):
    data, sizes = shown
    bar = data["resources"][0]["bars"][0]
    ahead = sizes[0].resources[0].outlook.next_window
    assert bar["next"] == {"low": ahead.mean, "high": ahead.p99}
    assert bar["reserved"] is None
    assert "reserved" not in bar["texts"]


def test_too_short_a_history_is_said_and_not_guessed(tmp_path: Path):
    data, sizes = paged(made(tmp_path / "store.db", 3, {"db": usual(constant(1.0), constant(GIB))}))
    bar = data["resources"][0]["bars"][0]
    assert isinstance(sizes[0].resources[0].recommended, Unavailable)
    assert bar["recommended"] is None
    assert bar["missing"] == sizes[0].resources[0].recommended.reason
    assert data["notes"] == ["Not sampled in the last hour: old.", "late."]
