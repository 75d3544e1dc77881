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
        raise PerphError("the NodeProfile has no document yet")
    document = decode(NodeDocument, status["document"], "status.document")
    ttl = status.get("ttlSeconds")
    return replace(document, ttl_s=float(ttl)) if isinstance(ttl, int | float) else document
