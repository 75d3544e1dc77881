"""Rewrites a copper pod's requests for CPU and memory as requests for copper's extended resources. Pure.

    requests.cpu 500m        ->  requests and limits  perphd.io/copper-cpu: 500      requests.cpu: 0
    requests.memory 1Gi      ->  requests and limits  perphd.io/copper-memory: 1Gi   requests.memory: 0

Kubernetes requires an extended resource's request and limit to be equal integers, so amounts are rounded up. A limit of
CPU or memory stays: the kubelet continues to enforce it. The request becomes an explicit 0, because Kubernetes would
fill an absent request from the limit or from the namespace's LimitRange. A rewritten pod is not rewritten again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perphd.cluster.asking import (
    BAND_LABEL,
    COPPER_CPU,
    COPPER_MEMORY,
    exact_quantity,
    items,
    member,
    optional,
)
from perphd.qos.bands import QosBand

EXEMPT_NAMESPACES: Final = frozenset({"kube-system", "kube-public", "kube-node-lease"})
"""Namespaces whose pods are never rewritten, even if the webhook's configuration selects them."""
_REWRITTEN: Final = (("cpu", COPPER_CPU, 1000), ("memory", COPPER_MEMORY, 1))
"""Resource, its extended resource, and the number of units of the latter per unit of the former."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A JSON patch (RFC 6902), empty if nothing changes, and warnings for the pod's owner."""

    patch: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()


def rewriting(pod: Any, namespace: str) -> Rewriting:
    """The patch that rewrites a new pod. ``namespace``: the pod's namespace.

    Raises:
        ExtenderError: it is not a valid pod.
    """
    metadata, spec = member(pod, "Pod.metadata"), member(pod, "Pod.spec")
    if namespace in EXEMPT_NAMESPACES or optional(metadata, "labels").get(BAND_LABEL) != QosBand.COPPER:
        return Rewriting()
    if optional(optional(spec, "resources"), "requests"):
        text = "perphd: spec.resources applies to the whole pod, so its requests are not rewritten for copper"
        return Rewriting(warnings=(text,))
    patch = []
    for kind in ("containers", "initContainers"):
        for place, container in enumerate(items(spec, kind)):
            resources = _rewritten(container)
            if resources is not None:
                patch.append({"op": "add", "path": f"/spec/{kind}/{place}/resources", "value": resources})
    return Rewriting(tuple(patch))


def _rewritten(container: Any) -> dict[str, Any] | None:
    """The container's new resources; None if they stay unchanged."""
    before = optional(container, "resources") if isinstance(container, Mapping) else {}
    requests, limits = dict(optional(before, "requests")), dict(optional(before, "limits"))
    is_changed = False
    for name, extended, units in _REWRITTEN:
        # A limit without a request counts as the request, as in Kubernetes.
        amount = exact_quantity(requests.get(name, limits.get(name, 0)))
        if not amount or extended in requests or extended in limits:
            continue
        count = str(math.ceil(amount * units))
        requests |= {name: "0", extended: count}
        limits[extended] = count
        is_changed = True
    return {**before, "requests": requests, "limits": limits} if is_changed else None
