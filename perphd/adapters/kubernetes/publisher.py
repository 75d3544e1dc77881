"""The publisher of one node: compares the daemon's document with the cluster's objects and writes the differences.

Everything but events is level-triggered: each round compares the actual with the wanted state. The next round therefore
repairs every loss (a Node deleted and recreated, an API server outage, a conflicting write). Events wait until they are
delivered.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from perphd import __version__
from perphd.adapters.backoff import MOST_PAUSE_S
from perphd.adapters.kubernetes.client import (
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    ApiClient,
    ApiConflict,
    ApiMissing,
    ApiUnreachable,
    KubernetesError,
)
from perphd.adapters.kubernetes.evictor import Evictor
from perphd.adapters.kubernetes.held_slots import HeldSlots
from perphd.adapters.kubernetes.metrics import PublisherMetrics
from perphd.adapters.kubernetes.objects import GROUP, NODES, PROFILES, VERSION, event_of, events_path
from perphd.adapters.kubernetes.own_pods import OwnPods
from perphd.adapters.rounds import repeat
from perphd.cluster.asking import COPPER_CPU, COPPER_MEMORY, ExtenderError, quantity
from perphd.cluster.document import NodeDocument
from perphd.cluster.publication import KeptPublication, Level, NodeCondition, NodeNotice, Publication, decided
from perphd.cluster.publisher_state import KEY, PublisherState
from perphd.cluster.slots import Slot, slots_of, without
from perphd.domain.reading import Unavailable
from perphd.domain.wire import encode

TAINT: Final = f"{GROUP}/no-copper"
EVENTS: Final = events_path("default")
"""API path of events about nodes. Nodes have no namespace, so these events are in ``default``."""
MOST_EVENTS: Final = 100
_TTL_PERIODS: Final = 3.0
_MOST_TRIES: Final = 8
"""Maximum number of attempts to remove the taint while others write to the node."""
_log: Final = logging.getLogger("perphd.publish")


class Publisher:
    """Publishes one node in rounds.

    Args:
        client: client of the API server.
        node: the node's name in the cluster.
        look: returns the daemon's document, or why there is none.
        pods: the pods of this node, kept current by the caller.
        period_s: seconds between rounds.
        taint_effect: NoSchedule, PreferNoSchedule, or empty: no taint.
        pods_file: where the daemon reads the pods' labels; None: nowhere.
        holds: enters slots into the daemon's ledger; None: they count only in the cluster.
        metrics: figures of the rounds.
        clock: seconds since 1970.
        evictor: evicts copper pods after each round; None: no evictions.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        look: Callable[[], Any],
        pods: OwnPods,
        period_s: float,
        taint_effect: str = "PreferNoSchedule",
        pods_file: Path | None = None,
        holds: HeldSlots | None = None,
        metrics: PublisherMetrics | None = None,
        clock: Callable[[], float] = time.time,
        evictor: Evictor | None = None,
    ) -> None:
        self._client, self._node, self._look, self._pods = client, node, look, pods
        self._evictor = evictor
        self.period_s, self._effect, self._clock = period_s, taint_effect, clock
        self._kept: KeptPublication | None = None
        self._events: deque[tuple[NodeNotice, str]] = deque(maxlen=MOST_EVENTS)
        self._is_blind = False
        self._pods_file, self._written = pods_file, -1
        self._holds, self._metrics = holds, metrics or PublisherMetrics()
        self._problem, self._problem_unix_s = "", 0.0

    async def run(self) -> None:
        """Publish every ``period_s`` seconds until cancelled; retry failures with exponential backoff."""
        await repeat(self.round, self.period_s, KubernetesError, _log)

    async def round(self) -> None:
        """Read the daemon's document and publish the differences.

        Raises:
            KubernetesError: a part could not be published.
        """
        try:
            await self._round()
        except KubernetesError as exc:
            self._metrics.rounds["failed"] += 1
            self._note(str(exc))
            with suppress(KubernetesError):  # if the API server is unreachable, the state's age shows it
                await self._publish_state()
            raise
        self._metrics.rounds["published"] += 1
        self._metrics.published_unix_s = self._clock()

    async def _round(self) -> None:
        self._write_pods()
        look = await self._look()
        self._say(look)
        node = await self._client.get(f"{NODES}/{self._node}")
        publication, kept = decided(look, self._kept if self._kept is not None else _as_published(node))
        self._kept = kept
        at = _time(self._clock())
        self._events.extend((notice, at) for notice in publication.notices)
        await self._node_status(node, publication)
        await self._taint(node, publication.is_tainted)
        slots = await self._profile(node, look, publication)
        level, figures = publication.level, self._metrics
        figures.cpu_milli, figures.memory_bytes = level.cpu_milli, level.memory_bytes
        figures.slots, figures.is_tainted = len(slots), publication.is_tainted
        if self._holds is not None and not isinstance(look, Unavailable):
            await self._holds.follow(slots, look)
        await self._deliver(node)
        if self._evictor is not None:
            await self._evictor.look(look, at)
        problem = f"perphd does not answer: {look.reason}" if isinstance(look, Unavailable) else ""
        if problem != self._problem:
            self._note(problem)
            await self._publish_state()

    def _note(self, problem: str) -> None:
        """Keep the problem of the last round, and the time at which it began."""
        if problem != self._problem:
            self._problem, self._problem_unix_s = problem, self._clock() if problem else 0.0

    def _state(self) -> dict[str, Any]:
        """This publisher's state, as a part of the NodeProfile's status."""
        pause_s = max(self.period_s, MOST_PAUSE_S) if self._problem else self.period_s
        now_s = self._clock()
        problem_s = max(0.0, now_s - self._problem_unix_s) if self._problem else 0.0
        state = PublisherState(__version__, now_s, _TTL_PERIODS * pause_s, self._problem, problem_s)
        return {KEY: state.as_status()}

    async def _publish_state(self) -> None:
        path = f"{PROFILES}/{self._node}/status"
        await self._client.patch(path, {"status": self._state()}, MERGE)

    def _write_pods(self) -> None:
        """Replace the file of pods atomically if they changed; a failed write is retried in the next round."""
        if self._pods_file is None or not self._pods.is_synced or self._written == self._pods.changes:
            return
        part = self._pods_file.with_name(f"{self._pods_file.name}.part")
        try:
            part.write_text(json.dumps(self._pods.described()))
            part.chmod(0o644)
            part.replace(self._pods_file)
            self._written = self._pods.changes
        except OSError as exc:
            _log.warning("%s cannot be written: %s", self._pods_file, exc.strerror)

    def _say(self, look: NodeDocument | Unavailable) -> None:
        if isinstance(look, Unavailable) != self._is_blind:
            self._is_blind = isinstance(look, Unavailable)
            if isinstance(look, Unavailable):
                _log.warning("no capacity is offered to copper: %s", look.reason)
            else:
                _log.info("perphd answers again")

    async def _node_status(self, node: Any, publication: Publication) -> None:
        """Publish extended resources and conditions."""
        level = publication.level
        wanted = {COPPER_CPU: level.cpu_milli, COPPER_MEMORY: level.memory_bytes}
        status = node.get("status") or {}
        patch: dict[str, Any] = {}
        for part in ("capacity", "allocatable"):
            present = status.get(part) or {}
            changed = {
                name: str(value) for name, value in wanted.items() if _number(present.get(name)) != value
            }
            if changed:
                patch[part] = changed
        conditions = {each["type"]: each for each in status.get("conditions") or []}
        at = _time(self._clock())
        new = [_condition(each, conditions.get(each.type), at) for each in publication.conditions]
        changed_conditions = [each for each in new if each is not None]
        if changed_conditions:
            patch["conditions"] = changed_conditions
        if patch:
            await self._client.patch(f"{NODES}/{self._node}/status", {"status": patch}, STRATEGIC)

    async def _taint(self, node: Any, is_tainted: bool) -> None:
        if not self._effect:
            return
        taints = (node.get("spec") or {}).get("taints") or []
        others = [each for each in taints if each.get("key") != TAINT]
        wanted = [*others, {"key": TAINT, "effect": self._effect}] if is_tainted else others
        is_there = [(each["key"], each["effect"]) for each in taints if each.get("key") == TAINT]
        if is_there == ([(TAINT, self._effect)] if is_tainted else []):
            return
        test = {"op": "test", "path": "/metadata/resourceVersion"}
        for _ in range(3):
            patch = [
                {**test, "value": node["metadata"]["resourceVersion"]},
                {"op": "add", "path": "/spec/taints", "value": wanted},
            ]
            try:
                await self._client.patch(f"{NODES}/{self._node}", patch, JSON_PATCH)
                return
            except ApiConflict:
                node = await self._client.get(f"{NODES}/{self._node}")
                taints = (node.get("spec") or {}).get("taints") or []
                others = [each for each in taints if each.get("key") != TAINT]
                wanted = [*others, {"key": TAINT, "effect": self._effect}] if is_tainted else others
        _log.info(
            "the taint is deferred to the next round, because of repeated conflicting writes to the node"
        )

    async def _profile(
        self, node: Any, look: NodeDocument | Unavailable, publication: Publication
    ) -> tuple[Slot, ...]:
        """Publish the document in the NodeProfile, and remove slots whose pods are measured by now.

        Returns the slots that are left.
        """
        path = f"{PROFILES}/{self._node}"
        try:
            profile = await self._client.get(path)
        except ApiMissing:
            profile = await self._created(node)
        if not isinstance(look, Unavailable):
            status = _status(look, publication, max(look.ttl_s, _TTL_PERIODS * self.period_s)) | self._state()
            # A merge patch would keep old keys and interpret null as "delete".
            patch = [{"op": "add", "path": "/status", "value": status}]
            profile = await self._client.patch(f"{path}/status", patch, JSON_PATCH)
        else:
            await self._publish_state()
        slots = slots_of(profile)
        over = self._pods.over(slots)
        patch = without(profile, lambda slot: slot.uid in over)
        if not patch:
            return slots
        try:
            return slots_of(await self._client.patch(path, patch, JSON_PATCH))
        except ApiConflict:
            _log.debug("a slot was taken meanwhile: expired slots are removed in the next round")
            return slots

    async def _created(self, node: Any) -> Any:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}
        profile = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "NodeProfile",
            "metadata": {"name": self._node, "ownerReferences": [owner]},
            "spec": {"reservations": []},
        }
        try:
            return await self._client.post(PROFILES, profile)
        except ApiConflict:
            return await self._client.get(f"{PROFILES}/{self._node}")

    async def _deliver(self, node: Any) -> None:
        while self._events:
            notice, at = self._events[0]
            involved = {"kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}
            event = event_of(
                self._node, involved, notice.reason, notice.message, warns=notice.is_warning, at=at
            )
            try:
                await self._client.post(EVENTS, event)
            except ApiUnreachable:
                raise
            except KubernetesError as exc:
                _log.warning("an event was not delivered and is dropped: %s", exc)
            self._events.popleft()


async def withdraw(client: ApiClient, node: str) -> None:
    """Remove everything that a publisher has published for this node.

    Raises:
        KubernetesError: a part could not be removed.
    """
    found = await client.get(f"{NODES}/{node}")
    none = {COPPER_CPU: None, COPPER_MEMORY: None}
    types = [each["type"] for each in (found.get("status") or {}).get("conditions") or []]
    deleted = [{"$patch": "delete", "type": each} for each in types if each.startswith(f"{GROUP}/")]
    status = {"capacity": none, "allocatable": none, "conditions": deleted}
    await client.patch(f"{NODES}/{node}/status", {"status": status}, STRATEGIC)
    await _untainted(client, node)
    try:
        await client.request("DELETE", f"{PROFILES}/{node}")
    except ApiMissing:
        return


async def _untainted(client: ApiClient, node: str) -> None:
    """Remove the taint, and keep taints that others write meanwhile."""
    for left in reversed(range(_MOST_TRIES)):
        found = await client.get(f"{NODES}/{node}")
        taints = (found.get("spec") or {}).get("taints") or []
        others = [each for each in taints if each.get("key") != TAINT]
        if len(others) == len(taints):
            return
        patch = [
            {
                "op": "test",
                "path": "/metadata/resourceVersion",
                "value": found["metadata"]["resourceVersion"],
            },
            {"op": "add", "path": "/spec/taints", "value": others},
        ]
        try:
            await client.patch(f"{NODES}/{node}", patch, JSON_PATCH)
            return
        except ApiConflict:
            if not left:
                raise


def _status(document: NodeDocument, publication: Publication, ttl_s: float) -> dict[str, Any]:
    level = publication.level
    return {
        "document": encode(document),
        "ttlSeconds": ttl_s,
        "mode": document.mode.value,
        "confidence": round(document.confidence, 3),
        "copper": {"cpuMilli": level.cpu_milli, "memoryBytes": level.memory_bytes},
        "lras": len(document.lras),
        "degraded": sorted(each.name for each in document.lras if each.health.value == "degraded"),
        "madeAt": _time(document.made_unix_s),
    }


def _as_published(node: Any) -> KeptPublication:
    """State published by an earlier process, so that a restart changes nothing."""
    present = (node.get("status") or {}).get("allocatable") or {}
    cpu, memory = _number(present.get(COPPER_CPU)), _number(present.get(COPPER_MEMORY))
    level = None if cpu is None or memory is None else Level(cpu, memory)
    taints = (node.get("spec") or {}).get("taints") or []
    return KeptPublication(level, level, any(each.get("key") == TAINT for each in taints))


def _number(text: object) -> int | None:
    try:
        return None if text is None else int(quantity(text))
    except ExtenderError:
        return None


def _condition(wanted: NodeCondition, present: Any, at: str) -> dict[str, Any] | None:
    """The condition in API form; None if it is already published."""
    shown = {"type": wanted.type, "status": wanted.status, "reason": wanted.reason, "message": wanted.message}
    if present is not None and all(present.get(key) == value for key, value in shown.items()):
        return None
    since = at
    if present is not None and present.get("status") == wanted.status:
        since = present.get("lastTransitionTime", at)
    return {**shown, "lastHeartbeatTime": at, "lastTransitionTime": since}


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
