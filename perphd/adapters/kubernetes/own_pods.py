"""Tracks the pods of one node according to the API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from perphd.adapters.kubernetes.objects import GROUP
from perphd.cluster.slots import SLOT_S, Slot

SETTLED_S: Final = 15.0
"""Seconds of running after which a pod is included in copper's measured use, so that its slot is no longer needed."""


class OwnPods:
    """The pods bound to this node, and since when each has been seen running (by this process's clock)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.pods: dict[str, Any] = {}
        self.running_s: dict[str, float] = {}
        self._slots_s: dict[str, float] = {}
        self.is_synced = False
        self.changes = 0
        """Number of changes so far."""

    def replaced(self, pods: list[Any]) -> None:
        """Replace all pods."""
        self.pods = {}
        for pod in pods:
            self.changed("ADDED", pod)
        self.running_s = {uid: since for uid, since in self.running_s.items() if uid in self.pods}
        self.changes += 1
        self.is_synced = True

    def changed(self, kind: str, pod: Any) -> None:
        """Process a change of one pod."""
        uid = pod["metadata"]["uid"]
        self.changes += 1
        if kind == "DELETED":
            self.pods.pop(uid, None)
            self.running_s.pop(uid, None)
            return
        self.pods[uid] = pod
        if (pod.get("status") or {}).get("phase") == "Running":
            self.running_s.setdefault(uid, self._clock())

    def described(self) -> dict[str, Any]:
        """Names, labels and perphd's annotations by UID, for the daemon on this node."""
        pods = {}
        for uid, pod in sorted(self.pods.items()):
            metadata = pod["metadata"]
            annotations = metadata.get("annotations") or {}
            pods[uid] = {
                "namespace": metadata.get("namespace", ""),
                "name": metadata.get("name", ""),
                "labels": metadata.get("labels") or {},
                "annotations": {
                    key: value for key, value in annotations.items() if key.startswith(f"{GROUP}/")
                },
            }
        return {"pods": pods}

    def over(self, slots: Sequence[Slot]) -> frozenset[str]:
        """UIDs of slots whose pod is measured by now, has ended, or never started, by this process's clock."""
        if not self.is_synced:
            return frozenset()
        now_s = self._clock()
        self._slots_s = {slot.uid: self._slots_s.get(slot.uid, now_s) for slot in slots}
        return frozenset(uid for uid, since_s in self._slots_s.items() if self._is_over(uid, since_s, now_s))

    def _is_over(self, uid: str, since_s: float, now_s: float) -> bool:
        pod = self.pods.get(uid)
        if pod is None:
            return now_s - since_s > SLOT_S
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return True
        running_s = self.running_s.get(uid)
        return running_s is not None and now_s - running_s >= SETTLED_S
