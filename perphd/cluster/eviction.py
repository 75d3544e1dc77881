"""Selects the copper pod to evict from a node, if any. Pure; called once per check.

Copper is short of room if one of these holds without a break for ``after_s`` seconds:
    starved   a copper workload has waited for a CPU for ``after_s`` without getting any
    memory    copper uses more memory than the node offers to it, by more than 2 % of the node's memory

CPU time that copper uses beyond its offer is not a reason: perphd throttles copper, and only a starved workload makes
no progress.

Pods are evicted one at a time: the next one at least ``SETTLE_S`` later, and only after the last one is gone. While the
shortage lasts, the pause doubles up to ``MOST_PAUSE_S``. The choice falls on the copper pod of the lowest priority and,
among pods of equal priority, on the pod that has run for the shortest time, because the least work is lost. Gold and
silver pods, pods of a DaemonSet (which would return at once), static pods, and pods that are ending are never chosen.
Without a document, no pod is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from perphd.cluster.asking import BAND_LABEL, ExtenderError, asking_pod, optional
from perphd.cluster.document import NodeDocument
from perphd.cluster.publication import STEP_RATIO
from perphd.domain.backoff import BackoffRule
from perphd.domain.reading import Unavailable, available
from perphd.domain.units import format_bytes
from perphd.qos.bands import QosBand

AFTER_S: Final = 300.0
SETTLE_S: Final = 60.0
"""Minimum pause in seconds after an eviction: memory returns, and the forecasts follow, within a minute."""
MOST_PAUSE_S: Final = 900.0
_PAUSES: Final = BackoffRule(SETTLE_S, MOST_PAUSE_S)
REFUSED_S: Final = 60.0
"""Minimum pause in seconds for one pod after its eviction was refused."""
_MIRROR: Final = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class CopperPod:
    """A running copper pod. ``started``: its start time as the API server states it, which sorts by time."""

    uid: str
    namespace: str
    name: str
    priority: int
    started: str


@dataclass(frozen=True, slots=True)
class Shortage:
    """State kept between checks. Times are in seconds of one monotonic clock.

    ``since_s``: beginning of the present shortage of memory; None: memory is not short. ``last_s``, ``last_uid``: time
    and pod of the last eviction; None and empty: there was none yet. ``pause_s``: pause before the next eviction.
    ``refused``: UID of a pod whose eviction was refused -> time until which it is left alone.
    """

    since_s: float | None = None
    last_s: float | None = None
    last_uid: str = ""
    pause_s: float = SETTLE_S
    refused: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Eviction:
    """A pod to evict, with the reason for the event and the log."""

    pod: CopperPod
    reason: str


def copper_pods(pods: Iterable[Any]) -> list[CopperPod]:
    """The pods that may be evicted: running copper pods that a DaemonSet or the node does not own.

    ``pods``: API objects.
    """
    found = []
    for pod in pods:
        metadata, status = optional(pod, "metadata"), optional(pod, "status")
        if status.get("phase") != "Running" or metadata.get("deletionTimestamp"):
            continue
        owners = metadata.get("ownerReferences") or []
        if any(each.get("kind") in ("DaemonSet", "Node") for each in owners):
            continue
        annotations, labels = optional(metadata, "annotations"), optional(metadata, "labels")
        if _MIRROR in annotations or not _is_copper(pod, {**annotations, **labels}):
            continue
        priority = optional(pod, "spec").get("priority")
        found.append(
            CopperPod(
                str(metadata.get("uid", "")),
                str(metadata.get("namespace", "default")),
                str(metadata.get("name", "")),
                priority if isinstance(priority, int) else 0,
                str(status.get("startTime", "")),
            )
        )
    return found


def _is_copper(pod: Any, labels: Mapping[str, Any]) -> bool:
    """True if the pod is copper and none of its labels, annotations or requests contradicts that."""
    try:
        return (
            asking_pod(pod).band is QosBand.COPPER
            and labels.get(BAND_LABEL, QosBand.COPPER) == QosBand.COPPER
        )
    except ExtenderError:
        return False


def considered(
    look: NodeDocument | Unavailable,
    pods: Iterable[Any],
    present: Iterable[str],
    before: Shortage,
    now_s: float,
    after_s: float = AFTER_S,
) -> tuple[Eviction | None, Shortage]:
    """Decide whether to evict a pod now, and which; also returns the state to keep.

    Args:
        look: the node's present document, or why there is none.
        pods: API objects of this node's pods.
        present: UIDs of all pods that are still on the node.
        before: the state after the last check.
        now_s: monotonic time.
        after_s: seconds for which copper must be short of room.
    """
    if isinstance(look, Unavailable):
        return None, replace(before, since_s=None)
    over = memory_excess(look)
    since_s = (before.since_s if before.since_s is not None else now_s) if over > 0 else None
    refused = {uid: until_s for uid, until_s in before.refused.items() if until_s > now_s}
    kept = replace(before, since_s=since_s, refused=refused)
    starved_s = look.copper.starved_s
    is_starved = starved_s >= after_s
    is_over = since_s is not None and now_s - since_s >= after_s
    if not is_starved and not is_over:
        rested = before.last_s is None or now_s - before.last_s >= MOST_PAUSE_S
        return None, replace(kept, last_s=None, last_uid="", pause_s=SETTLE_S) if rested else kept
    if before.last_uid in set(present) and before.last_uid:
        return None, kept
    if before.last_s is not None and now_s - before.last_s < before.pause_s:
        return None, kept
    candidates = [each for each in copper_pods(pods) if each.uid not in refused]
    if not candidates:
        return None, kept
    lowest = min(each.priority for each in candidates)
    pod = max(
        (each for each in candidates if each.priority == lowest), key=lambda each: (each.started, each.uid)
    )
    reason = (
        f"copper on this node uses {format_bytes(int(over))} more memory than the node offers to it, "
        f"and has exceeded the offer for {now_s - since_s:.0f} s"
        if is_over and since_s is not None
        else f"copper on this node has waited for a CPU for {starved_s:.0f} s"
    )
    return Eviction(pod, reason), kept


def evicted(shortage: Shortage, uid: str, now_s: float) -> Shortage:
    """The state after this pod was evicted; the pause doubles with each further eviction."""
    pause_s = _PAUSES.after(0.0 if shortage.last_s is None else shortage.pause_s)
    return replace(shortage, last_s=now_s, last_uid=uid, pause_s=pause_s)


def left_alone(shortage: Shortage, uid: str, now_s: float, pause_s: float = 0.0) -> Shortage:
    """The state after the API server refused to evict this pod, for example because of a PodDisruptionBudget."""
    until_s = now_s + max(REFUSED_S, pause_s)
    return replace(shortage, refused={**shortage.refused, uid: until_s})


def memory_excess(document: NodeDocument) -> float:
    """Bytes that copper uses beyond its offer; 0 if that is at most 2 % of the node's memory, or unknown."""
    offered, used = document.copper.offered.memory_bytes, document.copper.used.memory_bytes
    whole = document.capacity.memory_bytes
    if not available(offered) or not available(used) or not available(whole):
        return 0.0
    over = used - max(0.0, offered)
    return over if over > STEP_RATIO * whole else 0.0
