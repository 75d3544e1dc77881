"""Bind: take a slot on the node, then let the API server bind the pod. Give the slot back if it does not.

Only for a scheduler whose configuration says ``bindVerb`` with ``ignorable: false``, so that a refusal ends the
attempt. With ``ignorable: true`` the scheduler would bind all the same, and overcommit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from perphd.adapters.kubernetes.client import JSON_PATCH, ApiClient, ApiError, Conflict, Missing
from perphd.adapters.kubernetes.objects import PROFILES, pod_path, published_document
from perphd.cluster.asking import ExtenderError, asking_pod
from perphd.cluster.slots import NoRoom, taken, without
from perphd.domain.errors import PerphError
from perphd.qos.bands import QosBand

MOST_TRIES: Final = 8
"""Attempts at a slot while others take slots on the same node."""
_log: Final = logging.getLogger("perphd.extender")


class Binder:
    """Binds pods. ``is_fresh``: whether the node's document is within its time to live."""

    def __init__(
        self, client: ApiClient, is_fresh: Callable[[str], bool], clock: Callable[[], float] = time.time
    ) -> None:
        self._client, self._is_fresh, self._clock = client, is_fresh, clock

    async def bind(self, call: Any) -> str:
        """Bind as the call says. Returns why it was not done; empty: it was.

        Raises:
            ExtenderError: it is no bind call.
        """
        try:
            name, namespace, uid, node = (
                str(call[key]) for key in ("PodName", "PodNamespace", "PodUID", "Node")
            )
        except (KeyError, TypeError) as exc:
            raise ExtenderError(f"the call has no {exc}") from exc
        try:
            pod = await self._client.get(pod_path(namespace, name))
            if pod["metadata"]["uid"] != uid:
                return f"perphd: {namespace}/{name} is another pod by now"
            refusal = await self._take(node, pod)
            if refusal:
                return f"perphd: {node}: {refusal}"
            try:
                await self._bound(namespace, name, uid, node)
            except ApiError:
                await self.release(node, uid)
                raise
        except ApiError as exc:
            return f"perphd: {exc}"
        return ""

    async def _bound(self, namespace: str, name: str, uid: str, node: str) -> None:
        binding = {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }  # fmt: skip
        path = f"{pod_path(namespace, name)}/binding"
        try:
            await self._client.post(path, binding)
        except Conflict:
            # The answer to an earlier try of the same binding may have been lost.
            pod = await self._client.get(pod_path(namespace, name))
            if pod["metadata"]["uid"] != uid or pod["spec"].get("nodeName") != node:
                raise

    async def _take(self, node: str, pod: Any) -> str:
        """Take a slot for a copper pod where the node publishes. Returns why there is none; empty: go on."""
        asked = asking_pod(pod)
        if asked.band is not QosBand.COPPER:
            return ""
        reason = ""
        for _ in range(MOST_TRIES):
            try:
                profile = await self._client.get(f"{PROFILES}/{node}")
                document = published_document(profile)
            except Missing:
                return ""  # no perphd there: as without perphd
            except PerphError as exc:
                if isinstance(exc, ApiError):
                    raise
                return ""
            if not self._is_fresh(node):
                return "its profile is stale, and copper is not bound on what it said"
            patch = taken(profile, document, asked, self._clock())
            if isinstance(patch, NoRoom):
                return patch.reason
            if not patch:
                return ""
            try:
                await self._client.patch(f"{PROFILES}/{node}", patch, JSON_PATCH)
            except Conflict as exc:
                reason = str(exc)
                continue
            return ""
        return f"no slot within {MOST_TRIES} tries, others were faster each time: {reason}"

    async def release(self, node: str, uid: str) -> None:
        """Give a pod's slot back. What fails here lapses by itself: the node's publisher takes it away."""
        for _ in range(MOST_TRIES):
            try:
                profile = await self._client.get(f"{PROFILES}/{node}")
                patch = without(profile, lambda slot: slot.uid == uid)
                if patch:
                    await self._client.patch(f"{PROFILES}/{node}", patch, JSON_PATCH)
                return
            except Conflict:
                continue
            except ApiError as exc:
                _log.warning("the slot of %s on %s is left to lapse: %s", uid, node, exc)
                return
