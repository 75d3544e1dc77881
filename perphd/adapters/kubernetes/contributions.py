"""Carries contributions between the daemon's folder and the cluster, for one node.

    this host's document in the folder  ->  ConfigMap NODE         when it changed, at most every ``EVERY_S``
    ConfigMaps of other nodes           ->  NODE@kubernetes.json   those that changed, every ``EVERY_S``

The daemon reads and writes the folder as it does for any other transport. Files without ``@kubernetes`` in their
names are never changed here. Both directions are level-triggered: a deleted or changed ConfigMap is written again, and
a file whose ConfigMap is gone, withdrawn, expired or refused is removed.

Documents are fetched one at a time into a hidden folder and then moved into place together, because the daemon may read
the folder at any moment and uses all documents in it.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from perphd.adapters.kubernetes.client import METADATA, ApiClient, ApiMissing
from perphd.adapters.kubernetes.objects import NODES, config_maps_path
from perphd.adapters.rounds import repeat
from perphd.agent.contribution_folder import ContributionFolder, contributor_name
from perphd.cluster.contribution_objects import (
    EXPIRE_S,
    NAMESPACE,
    SELECTOR,
    SUFFIX,
    WITHDRAWN,
    ListedContributions,
    carried_name,
    chosen,
    config_map,
    document_in,
    listed,
)
from perphd.domain.errors import PerphError
from perphd.federated.contribution import ContributionRefused

PERIOD_S: Final = 60.0
EVERY_S: Final = 1800.0
"""Pause between two exchanges, varied by up to a fifth. Models change slowly, and thousands of nodes share an API
server.
"""
MOST_BYTES: Final = 64 << 20
"""Total size in bytes of other hosts' documents, as JSON in their objects, beyond which no further ones are fetched."""
_STAGED: Final = ".fetched"
_log: Final = logging.getLogger("perphd.publish")


@dataclass(frozen=True, slots=True)
class _Kept:
    """A document that was fetched. ``size``: its bytes; 0: it was refused. ``made_unix_s``: infinite if unknown."""

    version: str
    size: int = 0
    made_unix_s: float = math.inf


class Contributions:
    """Exchanges contributions for one node.

    Args:
        client: client of the API server.
        node: this node's name in the cluster.
        folder: the daemon's folder (``folder`` in ``[federated]``).
        host: name of this host's own file, where it differs from the node's.
        namespace: namespace of the ConfigMaps.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        folder: ContributionFolder,
        host: str = "",
        namespace: str = NAMESPACE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._node, self._folder, self._clock = client, node, folder, clock
        self._staged = ContributionFolder(folder.folder / _STAGED)
        self._own, self._namespace = contributor_name(host or node), namespace
        self._path = config_maps_path(namespace)
        self._pause_s = 0.0
        self._read_unix_s = self._shared_unix_s = -math.inf
        self._shared: tuple[int, str] | None = None
        """Generation of the shared document, and version of this node's ConfigMap ("": there is none).

        None: unknown, or others changed the ConfigMap.
        """
        self._fetched: dict[str, _Kept] = {}
        self._refused: dict[str, str] = {}
        self._told = ""

    @property
    def counts(self) -> dict[str, int]:
        """Number of documents by state: shared (this host's), carried (other nodes', in the folder), refused."""
        is_shared = self._shared is not None and self._shared[1] != ""
        carried = sum(1 for each in self._fetched.values() if each.size)
        return {"shared": int(is_shared), "carried": carried, "refused": len(self._refused)}

    async def run(self) -> None:
        """Exchange documents until cancelled; retry failures with exponential backoff."""
        await repeat(self.round, PERIOD_S, PerphError, _log)

    async def round(self) -> None:
        """Write this host's document and read those of other nodes, each if it is due.

        Raises:
            PerphError: a document could not be exchanged.
        """
        try:
            await self._share()
        finally:
            if not 0.0 <= self._clock() - self._read_unix_s < self._pause_s:
                await self._collect()
                self._read_unix_s, self._pause_s = self._clock(), EVERY_S * random.uniform(0.8, 1.2)

    async def _share(self) -> None:
        own = self._folder.own(self._own)
        if own is None and self._folder.has(self._own):
            self._tell(
                f"{self._own}.json in {self._folder.folder} cannot be read: the shared document stays as it is"
            )
            return
        if own is None or not own.statistics or self._is_expired(own.made_unix_s):
            if self._shared is None or self._shared[1]:
                await self._unshare()
                self._shared = (-1, "")
            self._tell(
                f"nothing to share with the cluster: {self._own}.json in {self._folder.folder} has no statistics"
            )
            return
        if self._shared is not None and self._shared[1]:
            is_due = not 0.0 <= self._clock() - self._shared_unix_s < EVERY_S
            if self._shared[0] == own.generation or not is_due:
                return
        owner = await self._client.get(f"{NODES}/{self._node}")
        made = config_map(self._node, str(owner["metadata"]["uid"]), own)
        answer = await self._client.apply(f"{self._path}/{self._node}", made)
        self._shared = own.generation, str(answer["metadata"]["resourceVersion"])
        self._shared_unix_s = self._clock()
        self._tell(f"this host's models are shared with the cluster, as {carried_name(self._node)}")

    async def _unshare(self) -> None:
        """Delete this node's ConfigMap, unless an administrator has withdrawn it: then it must stay as it is."""
        try:
            present = await self._client.get(f"{self._path}/{self._node}")
        except ApiMissing:
            return
        if WITHDRAWN not in (present["metadata"].get("labels") or {}):
            await withdraw(self._client, self._node, self._namespace)

    def _tell(self, text: str) -> None:
        """Log the state of this host's document whenever it changes."""
        if text != self._told:
            _log.info("%s", text)
        self._told = text

    async def _collect(self) -> None:
        items, _ = await self._client.list_all(
            self._path, METADATA, labelSelector=SELECTOR, resourceVersion="0"
        )
        found, refused = [], {}
        for item in items:
            try:
                found.append(listed(item))
            except ContributionRefused as exc:
                refused[_name(item)] = str(exc)
        own = next((each.version for each in found if each.node == self._node), "")
        if self._shared is not None and self._shared[1] != own:
            self._shared = None
        # Before anything is fetched: withdrawn documents must go even if fetching fails.
        self._remove_but({carried_name(each.node) for each in found})
        kept, staged = await self._fetched_of(chosen(found, self._node), refused)
        for name, reason in refused.items():
            if self._refused.get(name) != reason:
                _log.warning("ConfigMap %s/%s: not used: %s", self._namespace, name, reason)
        self._refused = refused
        for contributor in staged:
            self._folder.take(self._staged, contributor)
        self._remove_but({carried_name(node) for node, each in kept.items() if each.size})
        self._fetched = kept

    def _remove_but(self, carried: Collection[str]) -> None:
        """Remove other nodes' documents from the folder, except those of the contributors in ``carried``."""
        for contributor in self._folder.contributors():
            if contributor.endswith(SUFFIX) and contributor not in carried:
                self._folder.remove(contributor)

    async def _fetched_of(
        self, wanted: list[ListedContributions], refused: dict[str, str]
    ) -> tuple[dict[str, _Kept], list[str]]:
        """Fetch the ``wanted`` documents that have changed into the hidden folder; adds refusals to ``refused``.

        Returns all documents that are kept, and the contributors in the hidden folder.
        """
        kept, staged = {}, []
        for contributor in self._staged.contributors():  # left by a fetch that failed
            self._staged.remove(contributor)
        for each in wanted:
            before = self._fetched.get(each.node)
            if before is not None and before.version == each.version and self._is_here(each.node, before):
                kept[each.node] = before
                if each.node in self._refused:
                    refused[each.node] = self._refused[each.node]
        size = sum(each.size for each in kept.values())
        for each in wanted:
            if each.node in kept:
                continue
            if size > MOST_BYTES:
                _log.warning(
                    "the contributions of %d hosts take %d bytes (limit %d): further ones are not read",
                    len(kept),
                    size,
                    MOST_BYTES,
                )
                break
            try:
                item = await self._client.get(f"{self._path}/{each.node}")
                said = document_in(item)
            except ApiMissing:
                continue
            except ContributionRefused as exc:
                refused[each.node], kept[each.node] = str(exc), _Kept(each.version)
                continue
            if WITHDRAWN in (item["metadata"].get("labels") or {}):
                continue  # withdrawn after it was listed
            if self._is_expired(said.made_unix_s):
                refused[each.node] = "it has expired"
                kept[each.node] = _Kept(each.version, made_unix_s=said.made_unix_s)
                continue
            self._staged.write(said)
            staged.append(said.contributor)
            bytes_ = sum(map(len, item["data"].values()))
            kept[each.node], size = _Kept(each.version, bytes_, said.made_unix_s), size + bytes_
        return kept, staged

    def _is_here(self, node: str, kept: _Kept) -> bool:
        """True if the document need not be fetched again while it is unchanged."""
        expired = self._is_expired(kept.made_unix_s)
        if not kept.size:  # this host's clock may have been wrong when the document seemed to be expired
            return expired or kept.made_unix_s == math.inf
        return not expired and self._folder.has(carried_name(node))

    def _is_expired(self, made_unix_s: float) -> bool:
        return self._clock() - made_unix_s > EXPIRE_S


async def withdraw(client: ApiClient, node: str, namespace: str = NAMESPACE) -> None:
    """Delete this node's ConfigMap, if there is one.

    Raises:
        KubernetesError: it could not be deleted.
    """
    try:
        await client.request("DELETE", f"{config_maps_path(namespace)}/{node}")
    except ApiMissing:
        return


def _name(item: Any) -> str:
    """The name in an object of any form, for messages; ``?`` if it has none."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return str(metadata.get("name"))[:253] if isinstance(metadata, dict) else "?"
