"""Binds pods through the API server, after taking a slot on the node for a copper pod.

If the pod is certainly not bound, its slot is released. For schedulers configured with ``bindVerb`` and
``ignorable: false``, so that a refusal ends the attempt. With ``ignorable: true`` the scheduler would bind anyway, and
overcommit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from perphd.adapters.kubernetes.client import (
    JSON_PATCH,
    ApiClient,
    ApiConflict,
    ApiMissing,
    ApiUnreachable,
    KubernetesError,
)
from perphd.adapters.kubernetes.objects import PROFILES, pod_path, published_document
from perphd.cluster.asking import ExtenderError, asking_pod
from perphd.cluster.slots import NoRoom, taken, without
from perphd.domain.errors import PerphError
from perphd.qos.bands import QosBand

MOST_TRIES: Final = 8
"""Maximum number of attempts to take or release a slot while others change the slots of the same node."""
TOO_MANY: Final = 429
"""HTTP status of a request that the API server did not begin to process."""
_log: Final = logging.getLogger("perphd.extender")


class Binder:
    """Binds pods. ``is_fresh``: True if the node's document is within its time to live."""

    def __init__(
        self, client: ApiClient, is_fresh: Callable[[str], bool], clock: Callable[[], float] = time.time
    ) -> None:
        self._client, self._is_fresh, self._clock = client, is_fresh, clock

    async def bind(self, call: Any) -> str:
        """Bind as the call requests; returns why that failed, or an empty text.

        Raises:
            ExtenderError: it is not a bind call.
        """
        try:
            name, namespace, uid, node = (
                str(call[key]) for key in ("PodName", "PodNamespace", "PodUID", "Node")
            )
        except (KeyError, TypeError) as exc:
            raise ExtenderError(
                f"a bind call must be an object with PodName, PodNamespace, PodUID and Node: {exc}"
            ) from exc
        try:
            pod = await self._client.get(pod_path(namespace, name))
            if pod["metadata"]["uid"] != uid:
                return f"perphd: {namespace}/{name} now names another pod"
            refusal = await self._take(node, pod)
            if refusal:
                return f"perphd: {node}: {refusal}"
            try:
                await self._bound(namespace, name, uid, node)
            except KubernetesError as exc:
                if not isinstance(exc, ApiUnreachable) or exc.status == TOO_MANY:
                    await self.release(node, uid)
                # Otherwise the pod may be bound by now. Its slot stays until the node's publisher has seen it, at most
                # 60 s.
                raise
        except KubernetesError as exc:
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
        except ApiConflict:
            # An earlier try of the same binding may have succeeded although its answer was lost.
            pod = await self._client.get(pod_path(namespace, name))
            if pod["metadata"]["uid"] != uid or pod["spec"].get("nodeName") != node:
                raise

    async def _take(self, node: str, pod: Any) -> str:
        """Take a slot for a copper pod on a publishing node; returns why there is none, or an empty text."""
        asked = asking_pod(pod)
        if asked.band is not QosBand.COPPER:
            return ""
        reason = ""
        for _ in range(MOST_TRIES):
            try:
                profile = await self._client.get(f"{PROFILES}/{node}")
                document = published_document(profile)
            except ApiMissing:
                return ""  # no perphd on this node: bind without a slot
            except PerphError as exc:
                if isinstance(exc, KubernetesError):
                    raise
                return ""
            if not self._is_fresh(node):
                return "its profile is stale, so no copper pod is bound there"
            patch = taken(profile, document, asked, self._clock())
            if isinstance(patch, NoRoom):
                return patch.reason
            if not patch:
                return ""
            try:
                await self._client.patch(f"{PROFILES}/{node}", patch, JSON_PATCH)
            except ApiConflict as exc:
                reason = str(exc)
                continue
            return ""
        return f"no slot within {MOST_TRIES} tries, because other schedulers took slots meanwhile: {reason}"

    async def release(self, node: str, uid: str) -> None:
        """Release a pod's slot. If that fails, the node's publisher removes the slot later."""
        for _ in range(MOST_TRIES):
            try:
                profile = await self._client.get(f"{PROFILES}/{node}")
                patch = without(profile, lambda slot: slot.uid == uid)
                if patch:
                    await self._client.patch(f"{PROFILES}/{node}", patch, JSON_PATCH)
                return
            except ApiConflict:
                continue
            except KubernetesError as exc:
                _log.warning(
                    "the slot of pod %s on node %s was not released and will expire by itself: %s",
                    uid,
                    node,
                    exc,
                )
                return
