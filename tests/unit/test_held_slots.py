"""Slots of the cluster in the daemon's own ledger, over the daemon's real API."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perphd.adapters.kubernetes.held_slots import HeldSlots
from perphd.adapters.node_socket import NodeSocket
from perphd.cluster.document import NodeDocument
from perphd.cluster.slots import Slot, room
from perphd.domain.reading import value_or
from perphd.qos.ledger import Amounts
from tests.unit.control_fake import READER, Served, put_on_target, serving

GIB = 1 << 30


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    put_on_target(monkeypatch)
    with serving(tmp_path) as server:
        yield server


def slot(name: str, cpus: float = 0.5, memory: int = GIB) -> Slot:
    return Slot(f"default/{name}", f"uid-{name}", Amounts(cpus, memory), 1.0)


class Node:
    """One publisher's view: rounds of a HeldSlots over the daemon's socket."""

    def __init__(self, served: Served) -> None:
        self.socket = NodeSocket(served.socket)
        self.holds = HeldSlots(self.socket)

    async def document(self) -> NodeDocument:
        found = await self.socket.document()
        assert isinstance(found, NodeDocument)
        return found

    async def round(self, *slots: Slot) -> NodeDocument:
        await self.holds.follow(slots, await self.document())
        return await self.document()

    async def whatif(self, cpus: float) -> Any:
        return await self.socket._asked("POST", "/v1/whatif", {"cpu": cpus, "memory": 0})


def names(document: NodeDocument) -> list[str]:
    return sorted(each.holder for each in document.held)


def free(document: NodeDocument) -> float:
    return value_or(document.copper.allocatable.cpus, 0.0)


async def test_slots_count_in_the_document_and_are_released_with_the_slot(served: Served) -> None:
    node = Node(served)
    before = await node.document()
    assert free(before) >= 1.0
    held = await node.round(slot("a"), slot("b"))
    assert names(held) == ["slot:default.a", "slot:default.b"]
    assert free(held) == pytest.approx(free(before) - 1.0)
    assert room(held, (slot("a"), slot("b"))).cpus == pytest.approx(free(held))  # not counted twice
    assert room(held, (slot("a"), slot("c"))).cpus == pytest.approx(free(held) - 0.5)
    same = await node.round(slot("a"), slot("b"))
    assert same.generation == held.generation  # nothing is written where nothing differs
    assert names(await node.round(slot("b"))) == ["slot:default.b"]
    after = await node.round()
    assert names(after) == []
    assert free(after) == pytest.approx(free(before))


async def test_what_is_held_counts_in_what_if_and_reserve(served: Served) -> None:
    node = Node(served)
    all_of_it = free(await node.document())
    assert not _lacks_room(await node.whatif(all_of_it))
    held = await node.round(slot("a"))
    assert _lacks_room(await node.whatif(all_of_it))
    with pytest.raises(Exception, match="full"):
        await node.socket.reserve("other.pod", Amounts(all_of_it, 0), held.generation)


def _lacks_room(answer: Any) -> bool:
    return any("copper" in reason for reason in answer["reasons"])


async def test_a_restarted_publisher_releases_what_the_one_before_held(served: Served) -> None:
    await Node(served).round(slot("a"), slot("b"))
    node = Node(served)
    assert names(await node.round(slot("b"))) == ["slot:default.b"]


async def test_a_pod_made_again_with_another_size_is_held_at_the_new_size(served: Served) -> None:
    node = Node(served)
    await node.round(slot("a", 0.5))
    held = await node.round(slot("a", 0.25))
    assert [value_or(each.amounts.cpus, 0.0) for each in held.held] == [0.25]


async def test_reservations_of_others_are_left_alone(served: Served) -> None:
    node = Node(served)
    await node.socket.reserve("default.other", Amounts(0.25, 0), (await node.document()).generation)
    assert names(await node.round()) == ["default.other"]


async def test_a_slot_without_room_or_right_is_reported_once_and_tried_again(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perphd.publish")
    node = Node(served)
    large = slot("large", 1000.0)
    for _ in range(3):
        assert names(await node.round(large)) == []
    served.peer = READER
    for _ in range(3):
        assert names(await node.round(slot("a"))) == []
    assert len(caplog.messages) == 2
    assert "slot:default.large" in caplog.messages[0]
    assert "403" in caplog.messages[1]
