"""The node's ledger as seen by schedulers: its present offer, and reservations by compare and swap. Pure.

``qos.ledger`` keeps generations, bids and times to live. This module adjusts the ledger's room to measurements:
    reservations of configured workloads    one holding of the band "system"
    remaining offer to copper              the offer less what running copper already uses

A change of room invalidates all answers that schedulers hold, so it waits until it is large enough. A decrease by more
than 2 % of the node takes effect at once, an increase by more than 2 % no sooner than ten seconds after the last
adjustment. Reservations are bookkeeping and change nothing on the host. They are kept in memory: a restart forgets them
and starts with a higher generation, so that no earlier answer is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from perphd.cluster.node import WORKLOADS, NodeUse, copper_offer
from perphd.domain.queue import QueueSummary
from perphd.domain.topology import Topology
from perphd.qos.bands import QosBand
from perphd.qos.ledger import (
    Amounts,
    Bid,
    CapacityRequest,
    Holding,
    HostLedger,
    LedgerRefusal,
    RefusalCause,
    Settlement,
    bid,
    capacity_of,
    settled,
)

REFRESH_S: Final = 10.0
STEP_RATIO: Final = 0.02
"""Minimum change of room, as a share of the node, that takes effect."""
BANDS: Final = (QosBand.COPPER, QosBand.SILVER)
"""Bands that can be reserved from outside. Gold owns cores assigned by the node's configuration."""


@dataclass(frozen=True, slots=True)
class NodeLedger:
    """The ledger, and the time of its last adjustment (monotonic seconds)."""

    ledger: HostLedger
    adjusted_s: float


def opened(
    topology: Topology, generation: int, use: NodeUse, now_s: float, queue: QueueSummary | None = None
) -> NodeLedger:
    """A new ledger with this room and no reservations. ``generation``: above that of every earlier ledger."""
    empty = HostLedger(capacity_of(topology), generation)
    return NodeLedger(_with_room(empty, *_room(use, queue)), now_s)


def adjusted(
    node: NodeLedger, topology: Topology, use: NodeUse, now_s: float, queue: QueueSummary | None = None
) -> NodeLedger:
    """The ledger at ``now_s``, with its room adjusted to measurements if the difference is large enough."""
    ledger = node.ledger
    capacity = capacity_of(topology)
    reserved, offer = _room(use, queue)
    if capacity != ledger.capacity:
        return NodeLedger(_with_room(replace(ledger, capacity=capacity), reserved, offer), now_s)
    held = ledger.held_by(WORKLOADS)
    before = held.amounts if held is not None else Amounts()
    whole = capacity.amounts
    less = max(_share(reserved - before, whole), _share(ledger.copper_offered - offer, whole))
    more = max(_share(before - reserved, whole), _share(offer - ledger.copper_offered, whole))
    if less > STEP_RATIO or (max(less, more) > STEP_RATIO and now_s - node.adjusted_s >= REFRESH_S):
        return NodeLedger(_with_room(ledger, reserved, offer), now_s)
    return node


def offered_bid(
    node: NodeLedger, request: CapacityRequest, score: float, generation: int, now_s: float
) -> NodeLedger | LedgerRefusal:
    """The ledger with one more bid, or why it is refused at once."""
    if request.band not in BANDS:
        text = f"{request.band} owns cores, which only the node's configuration can assign"
        return LedgerRefusal(request.holder, RefusalCause.INVALID, text)
    if request.holder == WORKLOADS:
        return LedgerRefusal(request.holder, RefusalCause.HELD, "this name is reserved for the node itself")
    found = bid(node.ledger, Bid(request, score), generation, now_s)
    return found if isinstance(found, LedgerRefusal) else replace(node, ledger=found)


def closed(node: NodeLedger, now_s: float) -> tuple[NodeLedger, Settlement]:
    """The ledger without lapsed reservations and, if its bidding window is over, with the winner's."""
    result = settled(node.ledger, now_s)
    return replace(node, ledger=result.ledger), result


def _room(use: NodeUse, queue: QueueSummary | None) -> tuple[Amounts, Amounts]:
    left = (copper_offer(use, queue).offered - use.copper_used).at_least_nothing()
    return Amounts(
        min(use.reserved.cpus, use.capacity.cpus), min(use.reserved.memory_bytes, use.capacity.memory_bytes)
    ), left


def _with_room(ledger: HostLedger, reserved: Amounts, offer: Amounts) -> HostLedger:
    others = tuple(each for each in ledger.grants if each.holder != WORKLOADS)
    own = (Holding(WORKLOADS, QosBand.SYSTEM, reserved),)
    return replace(ledger, grants=(*own, *others), copper_offered=offer, generation=ledger.generation + 1)


def _share(amounts: Amounts, whole: Amounts) -> float:
    return max(amounts.cpus / max(whole.cpus, 1.0), amounts.memory_bytes / max(whole.memory_bytes, 1))
