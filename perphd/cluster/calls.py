"""Reads kube-scheduler's calls to an extender from JSON without decoding their nodes. Pure.

With 5,000 nodes, a call with whole nodes (``nodeCacheCapable: false``) takes 20 MB. Only the nodes' names are decoded.
The answer contains the original bytes of each node, so nodes are never encoded either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from perphd.cluster.asking import ExtenderError

T = TypeVar("T")


class _Metadata(msgspec.Struct):
    name: str


class _Named(msgspec.Struct):
    metadata: _Metadata


class _NamedNodes(msgspec.Struct):
    items: list[_Named] | None = None


class _CallForNames(msgspec.Struct):
    Pod: Any = None
    NodeNames: list[str] | None = None
    Nodes: _NamedNodes | None = None


class RawNodes(msgspec.Struct, omit_defaults=True, rename={"api_version": "apiVersion"}):
    """A NodeList whose nodes are undecoded JSON."""

    items: list[msgspec.Raw] | None = None
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    kind: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    api_version: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def only(self, places: Sequence[int]) -> RawNodes:
        """The list with the nodes at these indices."""
        items = self.items or []
        kept = [items[place] for place in places]
        return RawNodes(kept, self.metadata, self.kind, self.api_version)


class _CallForNodes(msgspec.Struct):
    Pod: Any = None
    NodeNames: list[str] | None = None
    Nodes: RawNodes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SchedulerCall:
    """A filter or prioritize call.

    ``nodes``: the candidates as sent; None if the call only names them or its answer does not contain them.
    """

    pod: Any
    names: Sequence[str]
    nodes: RawNodes | None = None


_FOR_NAMES: Final = msgspec.json.Decoder(_CallForNames)
_FOR_NODES: Final = msgspec.json.Decoder(_CallForNodes)
_NODE: Final = msgspec.json.Decoder(_Named)
_ANYTHING: Final = msgspec.json.Decoder(Any)


def prioritize_call(data: bytes) -> SchedulerCall:
    """Read a prioritize call.

    Raises:
        ExtenderError: it is not such a call.
    """
    read = _read(_FOR_NAMES, data)
    if read.NodeNames is not None:
        return SchedulerCall(read.Pod, read.NodeNames)
    if read.Nodes is None:
        raise ExtenderError("the call has neither NodeNames nor Nodes")
    return SchedulerCall(read.Pod, [each.metadata.name for each in read.Nodes.items or ()])


def filter_call(data: bytes) -> SchedulerCall:
    """Read a filter call, and keep its nodes for the answer. Raises ExtenderError if it is not such a call."""
    read = _read(_FOR_NODES, data)
    if read.NodeNames is not None:
        return SchedulerCall(read.Pod, read.NodeNames)
    if read.Nodes is None:
        raise ExtenderError("the call has neither NodeNames nor Nodes")
    # The decoder reads each node's bytes separately, so its errors need the node's position.
    names = [
        _read(_NODE, raw, f"Nodes.items[{place}]: ").metadata.name
        for place, raw in enumerate(read.Nodes.items or ())
    ]
    return SchedulerCall(read.Pod, names, read.Nodes)


def json_value(data: bytes) -> Any:
    """The JSON value of a call of another kind. Raises ExtenderError if it is not JSON."""
    return _read(_ANYTHING, data)


def _read(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw, where: str = "") -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise ExtenderError(f"{where}{exc}") from exc
