"""Reads the nodes' documents for the extender, and caches them.

Sources:
    NodeProfile objects    listed and watched; written by ``perphd-publish``
    a folder               NODE.json, each as printed by ``perphctl node --json``
    an address             GET returns {"NODE": document, ...}

Ages are by the extender's own clock: a document's age counts from its arrival, since the nodes' clocks differ. On the
first read no arrival is known yet, and the node's own time is used if it lies in the past.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp

from perphd.adapters.backoff import Backoff
from perphd.adapters.bodies import whole_body
from perphd.adapters.kubernetes.client import ApiClient, KubernetesError, follow
from perphd.adapters.kubernetes.objects import PROFILES, published_document
from perphd.cluster.document import NodeDocument
from perphd.cluster.extender import KnownNodes
from perphd.cluster.publisher_state import PublisherState, publisher_of
from perphd.cluster.slots import Slot, slots_of
from perphd.domain.errors import PerphError
from perphd.domain.wire import decode

_log: Final = logging.getLogger("perphd.extender")
MOST_BYTES: Final = 256 << 20


class DocumentListener(Protocol):
    """Notified of every change of the cache."""

    def put(self, node: str, document: NodeDocument) -> None:
        """A node's document was accepted."""

    def hold(self, node: str, slots: tuple[Slot, ...]) -> None:
        """The slots held on a node changed."""

    def forget(self, node: str) -> None:
        """A node was removed."""


class DocumentCache:
    """The latest readable document of every node.

    ``refused``: nodes whose last document is unreadable, with the reason. ``publishers``: the nodes' publishers,
    with the time of their last state by this host's clock; None: the publisher publishes no state. ``is_synced``: all
    nodes have been read once.
    """

    def __init__(
        self, listener: DocumentListener | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.known = KnownNodes()
        self.refused: dict[str, str] = {}
        self.publishers: dict[str, PublisherState | None] = {}
        self.is_synced = False
        self._listener, self._clock = listener, clock
        self._made: dict[str, float] = {}
        self._said: dict[str, float] = {}

    def put(self, node: str, read: Callable[[], NodeDocument]) -> None:
        """Accept a node's document. An unreadable document is refused; the previous one stays and becomes stale."""
        try:
            document = read()
            arrived = self._arrived(node, document)
            if arrived is None:
                return
            self.known.put(node, arrived)
        except PerphError as exc:
            if self.refused.get(node) != str(exc):
                _log.warning("the document of %s is not used: %s", node, exc)
            self.refused[node] = str(exc)
            return
        self._made[node] = document.made_unix_s
        self.refused.pop(node, None)
        if self._listener is not None:
            self._listener.put(node, arrived)

    def hold(self, node: str, slots: tuple[Slot, ...]) -> None:
        """Replace the known slots of a node."""
        if self.known.slots.get(node, ()) == slots:
            return
        self.known.hold(node, slots)
        if self._listener is not None:
            self._listener.hold(node, slots)

    def hear(self, node: str, state: PublisherState | None) -> None:
        """Record the state that a node's publisher reports about itself."""
        before = self.publishers.get(node)
        if state is not None:
            said_s, now_s = state.heard_unix_s, self._clock()
            heard_s = now_s if before is not None or self.is_synced else min(said_s, now_s)
            if before is not None and self._said.get(node) == said_s:  # another part of the object changed
                heard_s = before.heard_unix_s
            self._said[node] = said_s
            state = replace(state, heard_unix_s=heard_s)
        self.publishers[node] = state

    def _arrived(self, node: str, document: NodeDocument) -> NodeDocument | None:
        """The document with its time of arrival; None if it is already known."""
        before, now_s = self._made.get(node), self._clock()
        if before is None and not self.is_synced:
            return replace(document, made_unix_s=min(document.made_unix_s, now_s))
        if before == document.made_unix_s:
            return None
        return replace(document, made_unix_s=now_s)

    def is_fresh(self, node: str) -> bool:
        """True if the node's document is within its time to live."""
        rows = self.known.rows([node])
        return bool(rows[0] >= 0 and self.known.fresh(rows, self._clock())[0])

    def forget(self, node: str) -> None:
        """Remove a node."""
        self._made.pop(node, None)
        self._said.pop(node, None)
        self.refused.pop(node, None)
        self.publishers.pop(node, None)
        self.known.forget(node)
        if self._listener is not None:
            self._listener.forget(node)

    def keep_only(self, nodes: Mapping[str, Any] | set[str]) -> None:
        """Remove all nodes except these; from now on ages count from arrival."""
        for node in [each for each in {**self.known.documents, **self.publishers} if each not in nodes]:
            self.forget(node)
        self.is_synced = True


async def follow_profiles(client: ApiClient, cache: DocumentCache) -> None:
    """Mirror the NodeProfile objects in the cache, forever."""

    def accept(profile: Any) -> None:
        node = profile["metadata"]["name"]
        cache.put(node, lambda: published_document(profile))
        cache.hold(node, slots_of(profile))
        cache.hear(node, publisher_of(profile))

    def replaced(profiles: list[Any]) -> None:
        for profile in profiles:
            accept(profile)
        cache.keep_only({profile["metadata"]["name"] for profile in profiles})
        _log.info("%d NodeProfiles are known", len(profiles))

    def changed(kind: str, profile: Any) -> None:
        if kind == "DELETED":
            cache.forget(profile["metadata"]["name"])
        else:
            accept(profile)

    await follow(client, PROFILES, replaced, changed, troubled("NodeProfiles"))


def troubled(what: str) -> Callable[[KubernetesError, float], None]:
    """Return a function that logs failures of a watch, each new failure once as a warning."""
    last = ""

    def log(error: KubernetesError, pause_s: float) -> None:
        nonlocal last
        text = f"{type(error).__name__}: {error}"
        level = logging.DEBUG if text == last else logging.WARNING
        last = text
        _log.log(level, "%s: %s; next try in %.1f s", what, error, pause_s)

    return log


async def follow_folder(folder: Path, cache: DocumentCache, period_s: float) -> None:
    """Mirror the files of a folder in the cache, forever."""
    seen: dict[str, tuple[int, int]] = {}
    while True:
        present = {}
        for path in folder.glob("*.json"):
            try:
                state = path.stat()
                present[path.stem] = (state.st_mtime_ns, state.st_size)
                if seen.get(path.stem) != present[path.stem]:
                    cache.put(path.stem, lambda path=path: _read(path.read_bytes()))  # type: ignore[misc]
            except OSError:
                continue
        seen = present
        cache.keep_only(present)
        await asyncio.sleep(period_s)


async def follow_address(url: str, cache: DocumentCache, period_s: float) -> None:
    """Mirror the documents at an address in the cache, forever. Without an answer they grow stale."""
    backoff, report = Backoff(), troubled(url)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=max(10.0, period_s))) as http:
        while True:
            pause_s = period_s
            try:
                async with http.get(url) as answer:
                    answer.raise_for_status()
                    documents = json.loads(await whole_body(answer, MOST_BYTES))
                    if not isinstance(documents, dict):
                        raise ValueError("the answer must be a JSON object that maps node names to documents")
                for node, data in documents.items():
                    cache.put(node, lambda data=data: decode(NodeDocument, data))  # type: ignore[misc]
                cache.keep_only(documents)
                backoff.succeeded()
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
                pause_s = backoff.failed()
                report(KubernetesError(f"GET {url}", 0, str(exc)), pause_s)
            await asyncio.sleep(pause_s)


def _read(data: bytes) -> NodeDocument:
    try:
        return decode(NodeDocument, json.loads(data))
    except ValueError as exc:
        raise PerphError(f"the document is not JSON: {exc}") from exc
