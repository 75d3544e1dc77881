"""Represents hosts' contributions as ConfigMaps, and selects those that a node reads. Pure.

Each node has one ConfigMap, named after it and owned by the Node object, in a namespace that holds only contributions.
It holds the host's document as the daemon wrote it, under the contributor ``NODE@kubernetes``. A ConfigMap counts only
for the node of its name, so the rights on ConfigMaps decide who may contribute for a node.

Reading all of N documents on all of N nodes would cost N^2. A node therefore reads at most ``HOSTS_PER_APPLICATION``
documents about each application: the first ones in the order of a hash of both names. No host can choose its place in
that order, so if one host in ten lies, about one in ten of the documents read is wrong.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from perphd.federated.contribution import Contribution, ContributionRefused, from_text, to_text

NAMESPACE: Final = "perphd-models"
LABEL: Final = "perphd.io/contribution"
WITHDRAWN: Final = "perphd.io/withdrawn"
"""Label by which an administrator withdraws a node's contribution from the whole fleet."""
SELECTOR: Final = f"{LABEL}=true,!{WITHDRAWN}"
APPLICATIONS: Final = "perphd.io/applications"
KEY: Final = "contribution.json"
SUFFIX: Final = "@kubernetes"
"""Suffix of the names under which the daemon's folder holds the documents of other nodes."""
EXPIRE_S: Final = 30 * 86400.0
"""Age in seconds from which a document is neither published nor read."""
HOSTS_PER_APPLICATION: Final = 64
MOST_HOSTS: Final = 256
MOST_APPLICATIONS: Final = 512
"""Maximum number of applications that an object may name; further ones are ignored."""
_MOST_NAME: Final = 63
_NODE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}\Z")


@dataclass(frozen=True, slots=True)
class ListedContributions:
    """A node's contribution in the cluster. ``version``: changes with its content."""

    node: str
    version: str
    applications: tuple[str, ...]


class _Owner(msgspec.Struct):
    kind: str
    name: str


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: list[_Owner] = msgspec.field(default_factory=list)


class _Object(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)
    binary_data: dict[str, str] = msgspec.field(default_factory=dict)


def carried_name(node: str) -> str:
    """The contributor's name for the document of a node in other nodes' folders.

    Raises:
        ContributionRefused: no node can have this name.
    """
    if not _NODE.match(node):
        raise ContributionRefused(f"{node[:80]!r} is not a valid name of a node")
    room = _MOST_NAME - len(SUFFIX)
    if len(node) > room:
        node = f"{node[: room - 9]}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"
    return node + SUFFIX


def config_map(node: str, node_uid: str, said: Contribution) -> dict[str, Any]:
    """The ConfigMap with this host's document.

    Raises:
        ContributionRefused: readers would refuse the document, or ``node`` is not a valid name.
    """
    text = to_text(msgspec.structs.replace(said, contributor=carried_name(node)))
    applications = sorted({each.topic.application for each in said.statistics})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": node,
            "labels": {LABEL: "true"},
            "annotations": {APPLICATIONS: ",".join(applications)},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}],
        },
        "data": {KEY: text.decode()},
    }


def listed(item: Any) -> ListedContributions:
    """The content of a ConfigMap's metadata.

    Raises:
        ContributionRefused: the metadata are not those of a contribution.
    """
    found = _object(item).metadata
    if not any(each.kind == "Node" and each.name == found.name for each in found.owner_references):
        raise ContributionRefused(f"its owner must be the Node {found.name!r}")
    carried_name(found.name)
    named = found.annotations.get(APPLICATIONS, "").split(",", MOST_APPLICATIONS)
    # Each name counts once: a repeated name would take the places of other hosts.
    applications = tuple(dict.fromkeys(filter(None, named[:MOST_APPLICATIONS])))
    return ListedContributions(found.name, found.resource_version, applications)


def document_in(item: Any) -> Contribution:
    """The document in a ConfigMap.

    Raises:
        ContributionRefused: the ConfigMap is not a contribution, or its document is too large, damaged, or of another
            host.
    """
    found = _object(item)
    name = listed(item).node
    if found.binary_data or found.data.keys() != {KEY}:
        keys = sorted({*found.data, *found.binary_data})
        raise ContributionRefused(
            f"it has the keys {', '.join(keys)[:200] or '(none)'} instead of {KEY} alone"
        )
    said = from_text(found.data[KEY].encode(errors="surrogatepass"))
    if said.contributor != carried_name(name):
        raise ContributionRefused(
            f"its contributor is {said.contributor}; the ConfigMap {name} must hold that of {carried_name(name)}"
        )
    return said


def chosen(found: Iterable[ListedContributions], node: str) -> list[ListedContributions]:
    """The contributions that this node reads, selected as the module describes."""

    def place(each: ListedContributions) -> str:
        return hashlib.sha256(f"{node}/{each.node}".encode()).hexdigest()

    kept: list[ListedContributions] = []
    heard: Counter[str] = Counter()
    for each in sorted((each for each in found if each.node != node), key=place):
        if len(kept) == MOST_HOSTS:
            break
        if any(heard[name] < HOSTS_PER_APPLICATION for name in each.applications):
            kept.append(each)
            heard.update(each.applications)
    return kept


def _object(item: Any) -> _Object:
    try:
        return msgspec.convert(item, _Object)
    except msgspec.ValidationError as exc:
        raise ContributionRefused(f"it is not a ConfigMap with a contribution: {exc}") from exc
