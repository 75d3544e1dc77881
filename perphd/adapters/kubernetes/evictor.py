"""Evicts copper pods of one node through the eviction API, one at a time (``perphd-publish run --evict``).

The API server checks PodDisruptionBudgets: a refusal (429) is respected, and the pod is left alone for at least a
minute. An event of the pod states the eviction and its reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from perphd.adapters.kubernetes.client import ApiClient, ApiMissing, ApiUnreachable, KubernetesError
from perphd.adapters.kubernetes.objects import event_of, events_path, pod_path
from perphd.adapters.kubernetes.own_pods import OwnPods
from perphd.cluster.document import NodeDocument
from perphd.cluster.eviction import AFTER_S, CopperPod, Eviction, Shortage, considered, evicted, left_alone
from perphd.domain.reading import Unavailable

_BUDGET: Final = 429
_TWO_BUDGETS: Final = 500
_log: Final = logging.getLogger("perphd.publish")


class Evictor:
    """Checks after each round of a publisher whether to evict a pod.

    Args:
        client: client of the API server; its account needs the rights of packaging/kubernetes/rbac-evict.yaml.
        node: name of the node.
        pods: the pods of this node, kept current by the caller.
        after_s: seconds for which copper must be short of room before a pod is evicted.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        pods: OwnPods,
        after_s: float = AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._node, self._pods = client, node, pods
        self._after_s, self._clock = after_s, clock
        self._shortage = Shortage()

    async def look(self, look: NodeDocument | Unavailable, at: str) -> None:
        """Evict a pod if the node's document requires it. ``at``: the time for the event, in RFC 3339.

        Raises:
            KubernetesError: the API server could not be asked; the next check decides again.
        """
        if not self._pods.is_synced:
            return
        now_s = self._clock()
        eviction, self._shortage = considered(
            look, self._pods.pods.values(), self._pods.pods, self._shortage, now_s, self._after_s
        )
        if eviction is not None:
            await self._evict(eviction, now_s, at)

    async def _evict(self, eviction: Eviction, now_s: float, at: str) -> None:
        pod = eviction.pod
        request = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._client.post(f"{pod_path(pod.namespace, pod.name)}/eviction", request)
        except ApiMissing:
            return
        except KubernetesError as exc:
            if isinstance(exc, ApiUnreachable) and not _is_by_budget(exc):
                raise
            # Neither a budget, a missing right nor another pod with this name may stop publishing.
            self._shortage = left_alone(self._shortage, pod.uid, now_s, getattr(exc, "pause_s", 0.0))
            _log.warning("pod %s/%s is not evicted: %s", pod.namespace, pod.name, exc)
            return
        self._shortage = evicted(self._shortage, pod.uid, now_s)
        _log.warning("pod %s/%s is evicted: %s", pod.namespace, pod.name, eviction.reason)
        await self._tell(pod, eviction.reason, at)

    async def _tell(self, pod: CopperPod, reason: str, at: str) -> None:
        involved = {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        event = event_of(self._node, involved, "CopperEvicted", reason, warns=True, at=at)
        try:
            await self._client.post(events_path(pod.namespace), event)
        except KubernetesError as exc:
            _log.warning("the Kubernetes event about an eviction was not delivered: %s", exc)


def _is_by_budget(error: ApiUnreachable) -> bool:
    """True if a PodDisruptionBudget forbids the eviction: now, or for good as two budgets for one pod do."""
    return error.status == _BUDGET or (error.status == _TWO_BUDGETS and "PodDisruptionBudget" in str(error))
