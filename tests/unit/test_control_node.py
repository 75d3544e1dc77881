"""The routes for schedulers over a real socket, and perphctl node."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perphd.cluster.document import NodeDocument
from perphd.commands.cli import cli
from perphd.domain.wire import decode
from perphd.qos.ledger import BID_WINDOW_S, RESERVATION_TTL_S
from tests.unit.control_fake import READER, Served, serving
from tests.unit.test_control_api import ask


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as server:
        yield server


def bid(served: Served, holder: str, generation: int, **more: Any) -> tuple[int, Any]:
    body = {"holder": holder, "cpu": 1.0, "memory": "1Gi", "band": "silver", "generation": generation} | more
    return ask(served, "POST", "/v1/reserve", body)


def generation(served: Served) -> int:
    status, body = ask(served, "GET", "/v1/node")
    assert status == 200
    found = body["generation"]
    assert isinstance(found, int)
    return found


def test_the_document_and_what_perphctl_makes_of_it(served: Served) -> None:
    status, body = ask(served, "GET", "/v1/node")
    assert status == 200
    doc = decode(NodeDocument, body)
    assert doc.capacity.cpus == 8.0
    assert {each.name for each in doc.lras} == {"cache", "db"}
    assert doc.antagonists[0].culprit == "pi"
    shown = CliRunner().invoke(cli, ["--socket", served.socket, "node"])
    assert shown.exit_code == 0, shown.output
    assert f"generation {doc.generation}" in shown.output
    assert "pi disturbs db: cpu" in shown.output


def test_of_many_bids_the_highest_score_wins_and_everybody_hears(served: Served) -> None:
    now = generation(served)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: bid(served, f"pod{n}", now, score=float(n)), range(8)))
    won = [n for n, (status, _) in enumerate(answers) if status == 201]
    assert len(won) == 1
    assert {status for n, (status, _) in enumerate(answers) if n not in won} == {409}
    causes = {body["error"]["key"] for status, body in answers if status == 409}
    assert causes <= {"outbid", "stale"}
    assert bid(served, "late", now)[1]["error"]["key"] == "stale"
    _, body = ask(served, "GET", "/v1/node")
    assert [each["holder"] for each in body["held"]] == [f"pod{won[0]}"]


def test_a_reservation_is_committed_by_its_token_and_released(served: Served) -> None:
    status, made = bid(served, "ns.pod", generation(served))
    assert status == 201
    assert 0 < made["expires_in_s"] <= RESERVATION_TTL_S + BID_WINDOW_S
    path = "/v1/reserve/ns.pod"
    assert ask(served, "POST", f"{path}/commit", {"token": made["token"] + 1})[0] == 409
    status, kept = ask(served, "POST", f"{path}/commit", {"token": made["token"]})
    assert (status, kept["expires_in_s"]) == (200, None)
    assert bid(served, "ns.pod", generation(served))[1]["error"]["key"] == "held"
    assert ask(served, "DELETE", path)[0] == 200
    assert ask(served, "DELETE", path)[0] == 404


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"holder": ""}, "holder"),
        ({"holder": None}, "holder"),
        ({"holder": "x" * 254}, "holder"),
        ({"generation": "1"}, "generation"),
        ({"generation": True}, "generation"),
        ({"cpu": -1}, "cpu"),
        ({"memory": "much"}, "memory"),
        ({"memory": 1 << 61}, "memory"),
        ({"band": "gold"}, "band"),
        ({"score": "high"}, "score"),
        ({"cpu": 0, "memory": 0}, "invalid"),
    ],
)
def test_nonsense_is_refused(served: Served, change: dict[str, Any], key: str) -> None:
    now = generation(served)
    body = {"holder": "pod", "cpu": 1.0, "memory": 0, "band": "silver", "generation": now} | change
    status, body = ask(served, "POST", "/v1/reserve", body)
    assert (status, body["error"]["key"]) == (400, key)
    assert "None" not in body["error"]["message"]


def test_what_a_pod_would_cost_and_who_may_reserve(served: Served) -> None:
    now = generation(served)
    served.peer = READER
    status, answer = ask(served, "POST", "/v1/whatif", {"cpu": 2, "memory": "1Gi"})
    assert status == 200
    assert answer["generation"] == now
    assert {each["lra"] for each in answer["losses"]} == {"cache", "db"}
    assert answer["confidence"] == 0.0
    assert bid(served, "pod", now)[0] == 403


def test_more_than_there_is_is_refused(served: Served) -> None:
    status, body = bid(served, "pod", generation(served), cpu=9.0)
    assert (status, body["error"]["key"]) == (409, "full")
