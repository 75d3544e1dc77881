"""Paths and names of perphd's objects in Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from perphd.cluster.document import NodeDocument
from perphd.domain.errors import PerphError
from perphd.domain.wire import decode

GROUP: Final = "perphd.io"
VERSION: Final = "v1alpha1"
PROFILES: Final = f"/apis/{GROUP}/{VERSION}/nodeprofiles"
NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"


def events_path(namespace: str) -> str:
    """API path of the events of a namespace."""
    return f"/api/v1/namespaces/{namespace}/events"


def config_maps_path(namespace: str) -> str:
    """API path of the ConfigMaps of a namespace."""
    return f"/api/v1/namespaces/{namespace}/configmaps"


def pod_path(namespace: str, name: str) -> str:
    """API path of one pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def published_document(profile: Mapping[str, Any]) -> NodeDocument:
    """The node's document in a NodeProfile, with the time to live stated by its publisher.

    Raises:
        PerphError: there is none, or it is unreadable.
    """
    status = profile.get("status")
    if not isinstance(status, Mapping) or "document" not in status:
        raise PerphError("the NodeProfile has no status.document; perphd-publish writes it")
    document = decode(NodeDocument, status["document"], "status.document")
    ttl = status.get("ttlSeconds")
    return replace(document, ttl_s=float(ttl)) if isinstance(ttl, int | float) else document


def event_of(
    node: str, involved: Mapping[str, str], reason: str, message: str, *, warns: bool, at: str
) -> dict[str, Any]:
    """An Event by perphd on ``node``.

    ``involved``: kind, name and uid of the object that the event is about; ``at``: RFC 3339.
    """
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{involved['name']}.perphd-"},
        "involvedObject": {"apiVersion": "v1", **involved},
        "reason": reason,
        "message": message,
        "type": "Warning" if warns else "Normal",
        "source": {"component": "perphd", "host": node},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
