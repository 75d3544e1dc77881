"""Answers kube-scheduler's extender calls from cached node documents (k8s.io/kube-scheduler/extender/v1). Pure.

    filter       a node stays if the policy finds it feasible and, for a copper pod, copper has room
    prioritize   1 to 10: position of a node's score between the worst and the best candidate; 0: unknown.
                 For a service of unknown interference (``unprofiled``): the score's position between 0 and 1
    preempt      a node stays only if every victim there is copper: gold and silver are never preempted

The scheduler sends node names (``nodeCacheCapable: true``) or whole nodes (``calls`` reads both); the answer has the
same form. A node without a document, or with a stale one, is judged by its requests alone, which the scheduler has
checked itself: it passes the filter, and ranks below every known node. If all are stale, the balanced policy ranks
them. If no node is known, scheduling proceeds as without perphd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perphd.cluster.asking import (
    BAND_LABEL,
    AskingPod,
    ExtenderError,
    asking_pod,
    items,
    member,
    optional,
)
from perphd.cluster.calls import SchedulerCall
from perphd.cluster.document import NodeDocument
from perphd.cluster.node_profile import profile_of
from perphd.cluster.scheduling.fleet import Fleet, Mask, NodeScore, Rows, Scores
from perphd.cluster.scheduling.packing import balanced
from perphd.cluster.scheduling.placement import POLICIES
from perphd.cluster.scheduling.unprofiled import is_unprofiled, unprofiled
from perphd.cluster.slots import Slot, room
from perphd.qos.bands import QosBand
from perphd.qos.ledger import Amounts

MOST_PRIORITY: Final = 10
NEUTRAL_PRIORITY: Final = 0
MOST_EXPLAINED: Final = 10
"""Maximum number of candidates listed in an explanation, best first."""
_ROUNDING: Final = 1e-9
_MADE, _TTL, _CPUS, _MEMORY = range(4)

Table: TypeAlias = NDArray[np.float64]


class KnownNodes:
    """The newest document of every node, as profiles in columns, and the slots held there.

    All replicas know the same.
    """

    def __init__(self) -> None:
        self.documents: dict[str, NodeDocument] = {}
        self.slots: dict[str, tuple[Slot, ...]] = {}
        self.fleet = Fleet([])
        self._table: Table = np.zeros((64, 4))

    def put(self, node: str, document: NodeDocument) -> None:
        """Accept a node's document. The last document counts regardless of its time, because this host's clock may be
        set back.

        Raises:
            ExtenderError: the document lacks the node's size.
        """
        self.fleet.put(profile_of(node, document))
        self.documents[node] = document
        row = self.fleet.row(node)
        assert row is not None
        if row >= len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        self._table[row, : _TTL + 1] = document.made_unix_s, document.ttl_s
        self._count_room(node, row)

    def hold(self, node: str, slots: tuple[Slot, ...]) -> None:
        """Count these slots, and no others, as taken on a node: pods bound there since its document was made.

        Without slots, every pod would be sent to the best node, and refused there, until that node's next document.
        """
        self.slots[node] = slots
        row = self.fleet.row(node)
        if node in self.documents and row is not None:
            self._count_room(node, row)

    def _count_room(self, node: str, row: int) -> None:
        left = room(self.documents[node], self.slots.get(node, ()))
        self._table[row, _CPUS:] = left.cpus, left.memory_bytes

    def forget(self, node: str) -> None:
        """Remove a node. The next new node takes its row, so memory does not grow as nodes come and go."""
        self.slots.pop(node, None)
        if self.documents.pop(node, None) is not None:
            self.fleet.remove(node)

    def rows(self, nodes: Sequence[str]) -> Rows:
        """The row of each node; -1 for nodes without a document."""
        row = self.fleet.row
        documents = self.documents
        found = ((row(node) if node in documents else None) for node in nodes)
        return np.fromiter((-1 if each is None else each for each in found), np.intp, len(nodes))

    def fresh(self, rows: Rows, now_s: float) -> Mask:
        """True for each of these rows (not -1) whose document is within its time to live (``is_current``)."""
        result: Mask = np.abs(now_s - self._table[rows, _MADE]) <= self._table[rows, _TTL]
        return result

    def room(self, rows: Rows) -> Table:
        """CPUs and memory that copper may still take, for each of these rows."""
        return self._table[rows, _CPUS:]


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The policy's verdict on one call.

    ``names``: the candidates. ``places``: indices in ``names`` of those with a fresh document. ``scores``: their
    scores. ``roomy``: mask of those with room for a copper pod (all, for other pods). ``room``: CPUs and bytes that
    copper may still take on each. ``stale``: indices of candidates with a stale document. ``fallback``: their balanced
    scores. ``bounded``: scores are positions between 0 and 1.
    """

    asked: AskingPod
    names: Sequence[str]
    places: Rows
    scores: Scores
    roomy: Mask
    room: Table
    stale: Rows
    fallback: Scores
    bounded: bool = False

    @property
    def kept(self) -> Mask:
        """Mask of the fresh candidates that stay."""
        return self.scores.feasible & self.roomy

    def failures(self) -> dict[str, str]:
        """Reason for each candidate that does not stay, by name."""
        failed: dict[str, str] = {}
        for place in np.nonzero(~self.kept)[0].tolist():
            name = self.names[self.places[place]]
            if self.roomy[place]:
                failed[name] = "perphd: " + "; ".join(self.scores.against(place))
            else:
                cpus, memory = self.room[place]
                left = Amounts(float(cpus), int(memory)).at_least_nothing()
                failed[name] = f"perphd: it requests {self.asked.amounts}, and copper may still take {left}"
        return failed

    def priorities(self) -> list[int]:
        """The score of each candidate, from 0 to 10."""
        given = np.full(len(self.names), NEUTRAL_PRIORITY)
        for places, scores in ((self.places, self.scores), (self.stale, self.fallback)):
            feasible = scores.feasible
            if feasible.any():
                values = scores.score[feasible]
                least, most = float(values.min()), float(values.max())
                # Small differences in requests are left to the scheduler, which knows newer requests than the
                # documents.
                if self.bounded and scores is self.scores:
                    share = np.clip(values, 0.0, 1.0)
                else:
                    share = np.ones(len(values)) if most <= least else (values - least) / (most - least)
                given[places[feasible]] = 1 + np.rint((MOST_PRIORITY - 1) * share).astype(int)
                break
        result: list[int] = given.tolist()
        return result


@dataclass(frozen=True, slots=True)
class Explanation:
    """A call and its result, as logged and shown. ``verb``: the call. ``fresh``, ``stale``, ``unknown``: numbers of
    candidates with a fresh document, a stale one, and none. ``refused``: number of refused candidates by reason.
    ``best``: the candidates with the highest scores.
    """

    pod: str
    band: str
    verb: str
    policy: str
    at_unix_s: float
    candidates: int
    fresh: int
    stale: int
    unknown: int
    refused: Mapping[str, int]
    best: tuple[NodeScore, ...]


def judged(known: KnownNodes, call: SchedulerCall, policy: str, now_s: float) -> Judged:
    """The policy's verdict on a filter or prioritize call.

    Raises:
        ExtenderError: its pod is invalid.
    """
    asked, names = asking_pod(call.pod), call.names
    rows = known.rows(names)
    documented = np.nonzero(rows >= 0)[0]
    is_fresh = known.fresh(rows[documented], now_s)
    places, stale = documented[is_fresh], documented[~is_fresh]
    room = known.room(rows[places])
    roomy = np.ones(len(places), dtype=bool)
    if asked.band is QosBand.COPPER:
        wanted = asked.amounts
        roomy = (wanted.cpus <= room[:, 0] + _ROUNDING) & (wanted.memory_bytes <= room[:, 1])
    scores = POLICIES[policy](known.fleet, asked.pod, rows[places])
    if bounded := is_unprofiled(asked.pod, scores):
        scores = unprofiled(known.fleet, asked.pod, rows[places], scores)
    fallback = balanced(known.fleet, asked.pod, rows[stale])
    return Judged(asked, names, places, scores, roomy, room, stale, fallback, bounded)


def filtered(known: KnownNodes, call: SchedulerCall, policy: str, now_s: float) -> dict[str, Any]:
    """The API's answer to a filter call. Raises ExtenderError if the call's pod is invalid."""
    return filter_answer(judged(known, call, policy, now_s), call)


def filter_answer(verdict: Judged, call: SchedulerCall) -> dict[str, Any]:
    """The API's answer to a filter call, from its verdict; ``msgspec.json.encode`` writes it."""
    failed = verdict.failures()
    answer: dict[str, Any] = {"FailedNodes": failed, "FailedAndUnresolvableNodes": {}, "Error": ""}
    if call.nodes is None:
        kept = [name for name in verdict.names if name not in failed]
        return {**answer, "Nodes": None, "NodeNames": kept}
    places = [place for place, name in enumerate(verdict.names) if name not in failed]
    return {**answer, "Nodes": call.nodes.only(places), "NodeNames": None}


def prioritized(known: KnownNodes, call: SchedulerCall, policy: str, now_s: float) -> list[dict[str, Any]]:
    """The API's answer to a prioritize call: every candidate with 0 to 10.

    Raises ExtenderError if the call's pod is invalid.
    """
    return priority_answer(judged(known, call, policy, now_s))


def priority_answer(verdict: Judged) -> list[dict[str, Any]]:
    """The API's answer to a prioritize call, from its verdict."""
    pairs = zip(verdict.names, verdict.priorities(), strict=True)
    return [{"Host": name, "Score": score} for name, score in pairs]


def explanation(verdict: Judged, verb: str, policy: str, at_unix_s: float) -> Explanation:
    """Summarise a verdict: number of refused candidates by reason, and the best ones with their score terms."""
    refused: Counter[str] = Counter()
    for reason, mask in verdict.scores.refusals.items():
        refused[reason] += int((mask & verdict.roomy).sum())
    refused["copper has too little room"] = int((~verdict.roomy).sum())
    counted = {reason: count for reason, count in refused.items() if count}
    scores, fallback = verdict.scores, verdict.fallback
    kept = np.nonzero(verdict.kept)[0]
    order = kept[np.argsort(-scores.score[kept], kind="stable")[:MOST_EXPLAINED]]
    best = [scores.explained(int(place)) for place in order]
    if not len(verdict.places):
        best, policy = list(fallback.ranked(MOST_EXPLAINED)), f"{fallback.policy}: every profile is stale"
    fresh, stale = len(verdict.places), len(verdict.stale)
    unknown = len(verdict.names) - fresh - stale
    asked = verdict.asked
    return Explanation(
        asked.pod.name, asked.band.value, verb, policy, at_unix_s, len(verdict.names), fresh, stale, unknown, counted,
        tuple(best),
    )  # fmt: skip


def preempted(call: Any, is_copper: Callable[[str], bool]) -> dict[str, Any]:
    """The API's answer to a preempt call: nodes on which every victim is copper.

    ``is_copper``: True if the pod with this UID is known to be copper.

    Raises:
        ExtenderError: it is not such a call.
    """
    if not isinstance(call, Mapping):
        raise ExtenderError("the preemption call is not a JSON object")
    asking_pod(call.get("Pod"))
    whole, meta = call.get("NodeNameToVictims"), call.get("NodeNameToMetaVictims")
    by_node = whole if isinstance(whole, Mapping) and whole else meta
    if not isinstance(by_node, Mapping):
        raise ExtenderError("the call has neither NodeNameToVictims nor NodeNameToMetaVictims")
    kept: dict[str, Any] = {}
    for node, victims in by_node.items():
        if not isinstance(victims, Mapping):
            raise ExtenderError(f"the victims on {node} are not an object")
        uids = []
        for victim in items(victims, "Pods"):
            uid = _copper_uid(victim, is_copper)
            if uid is None:
                break
            uids.append(uid)
        else:
            violations = victims.get("NumPDBViolations", 0)
            kept[str(node)] = {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
    return {"NodeNameToMetaVictims": kept}


def _copper_uid(victim: Any, is_copper: Callable[[str], bool]) -> str | None:
    """The victim's UID if it is copper, by its own label or by ``is_copper``; else None."""
    if not isinstance(victim, Mapping):
        raise ExtenderError("a victim in Pods is not an object")
    if "metadata" in victim:
        metadata = member(victim, "Pod.metadata")
        is_labelled = optional(metadata, "labels").get(BAND_LABEL) == QosBand.COPPER
        return str(metadata.get("uid", "")) if is_labelled else None
    uid = victim.get("UID")
    return uid if isinstance(uid, str) and is_copper(uid) else None
