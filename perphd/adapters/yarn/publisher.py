"""The publisher of one NodeManager: sets its capacity at the ResourceManager to what LRAs need and copper is offered.

Level-triggered: each round reads the actual state, because a NodeManager that restarts registers with its configured
capacity, and a ResourceManager may restart or fail over. An outdated increase never follows a newer decrease:

* Rounds never overlap, and each ends with a read of the ResourceManager's state.
* Capacity grows only after a second read of the daemon's document, immediately before the write. If the generation has
  changed, the capacity grows no further than the newer document offers.
* A document past its time to live counts as none: copper is offered nothing.
* A write without an answer has an unknown outcome and is not repeated: the next round reads first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perphd.adapters.rounds import repeat
from perphd.adapters.yarn.capacity import YarnCapacity, YarnNode, as_level, node_of, resource_option, wanted
from perphd.adapters.yarn.client import (
    YarnClient,
    YarnError,
    YarnMissing,
    YarnRefused,
    YarnUnreachable,
    checked_url,
    part,
)
from perphd.adapters.yarn.containers import Applications, containers_of, described, held_by
from perphd.cluster.document import NodeDocument
from perphd.cluster.publication import KeptPublication, Level, decided, offered_level
from perphd.config.match import Match
from perphd.control.kept_file import replace_file
from perphd.domain.reading import NOT_MEASURED, Unavailable
from perphd.host.yarn import HIERARCHY

_SHOWN: Final = 5
_TAKES_EFFECT_S: Final = 5.0
"""Seconds for which the ResourceManager may still report the old capacity after it accepted a new one."""
_READ_EVERY_S: Final = 0.2
_log: Final = logging.getLogger("perphd.yarn")


@dataclass(frozen=True, slots=True)
class YarnSettings:
    """Settings for publishing one node.

    Attributes:
        node: its id in YARN, HOST:PORT, or its host if that has one NodeManager.
        configured: its configured capacity; None: as reported by the NodeManager.
        node_manager: address of the NodeManager's web interface; empty: as reported by the ResourceManager.
        lras: labels of applications that are LRAs.
        lra_part: capacity kept for LRAs even if they hold less.
        vcores_per_cpu: virtual cores that YARN counts for a logical CPU.
        overcommit_s: seconds after which containers beyond a lowered capacity are killed; negative: never.
        containers_file: where the daemon reads the containers' labels; None: they are not written.
        hierarchy: control group of the containers.
    """

    node: str
    configured: YarnCapacity | None = None
    node_manager: str = ""
    lras: tuple[Match, ...] = ()
    lra_part: YarnCapacity = YarnCapacity()
    vcores_per_cpu: float = 1.0
    overcommit_s: float = -1.0
    containers_file: Path | None = None
    hierarchy: str = HIERARCHY


class YarnPublisher:
    """Publishes one node in rounds.

    Args:
        client: client of the ResourceManagers.
        settings: how the node is published.
        look: returns the daemon's document, or why there is none.
        period_s: seconds between rounds.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        client: YarnClient,
        settings: YarnSettings,
        look: Callable[[], Awaitable[NodeDocument | Unavailable]],
        period_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._settings, self._look = client, settings, look
        self._period_s, self._clock = period_s, clock
        self._apps = Applications(client)
        self._kept: KeptPublication | None = None
        self._lra_part, self._are_containers_known = settings.lra_part, False
        self._id = settings.node if ":" in settings.node else ""
        self._written, self._problems = "", dict[str, str]()

    async def run(self) -> None:
        """Publish every ``period_s`` seconds until cancelled; retry failures with exponential backoff."""
        await repeat(self.round, self._period_s, YarnError, _log)

    async def round(self) -> None:
        """Read the daemon's document and publish the differences.

        Raises:
            YarnError: a part could not be published.
        """
        look = await self._document()
        node = await self.seen()
        if node.state != "RUNNING":
            raise YarnUnreachable(
                f"the ResourceManager reports {node.id} as {node.state}, so its capacity stays unchanged"
            )
        await self._look_at_containers(node)
        lras, per_cpu = self._lra_part, self._settings.vcores_per_cpu
        if self._kept is None:
            level = as_level(node.total, lras, per_cpu)
            self._kept = KeptPublication(level, level)
        publication, self._kept = decided(look, self._kept)
        for notice in publication.notices:
            _log.log(logging.WARNING if notice.is_warning else logging.INFO, "%s", notice.message)
        whole = NOT_MEASURED if isinstance(look, Unavailable) else look.capacity.memory_bytes
        capacity = wanted(publication.level, lras, whole, per_cpu)
        if capacity.exceeds(node.total):
            newest = await self._document()
            if _generation(newest) != _generation(look):
                level = publication.level.lesser(_offer(newest))
                capacity = wanted(level, lras, whole, per_cpu)
        if capacity != node.total:
            why = "" if publication.level != Level() else f" ({publication.conditions[0].message})"
            await self._set(node, capacity, why)

    async def seen(self) -> YarnNode:
        """The node's present state at the ResourceManager.

        Raises:
            YarnError: it does not answer, or does not know the node.
        """
        if self._id:
            try:
                return node_of(part(await self._client.get(f"nodes/{self._id}"), "node"))
            except YarnMissing as exc:
                if ":" in self._settings.node:
                    raise YarnUnreachable(
                        f"the ResourceManager does not know {self._id}; it knows {_names(await self._nodes())}"
                    ) from exc
        found = [node for node in await self._nodes() if node.id.rpartition(":")[0] == self._settings.node]
        if len(found) > 1:
            found = [node for node in found if node.state == "RUNNING"] or found
        if len(found) != 1:
            known = _names(found or await self._nodes())
            raise YarnUnreachable(
                f"{len(found)} NodeManagers of host {self._settings.node} are known: name one as HOST:PORT ({known})"
            )
        self._id = found[0].id
        return found[0]

    async def withdraw(self) -> YarnCapacity:
        """Restore the node's configured capacity; returns it.

        Raises:
            YarnError: it is unknown, or could not be restored.
        """
        node = await self.seen()
        capacity = self._settings.configured or await self._configured(node)
        if node.total != capacity:
            await self._set(node, capacity, " (configured)")
        return capacity

    async def _document(self) -> NodeDocument | Unavailable:
        """The daemon's document, unless it is past its time to live."""
        look = await self._look()
        if isinstance(look, NodeDocument):
            age_s = self._clock() - look.made_unix_s
            if age_s > look.ttl_s:
                look = Unavailable(
                    f"perphd's document is {age_s:.0f} s old; it is valid for {look.ttl_s:g} s"
                )
        self._tell("document", look.reason if isinstance(look, Unavailable) else "", "no capacity for copper")
        return look

    async def _nodes(self) -> list[YarnNode]:
        listed = part(await self._client.get("nodes"), "nodes") or {}  # null without nodes
        return [node_of(each) for each in part(listed, "node", optional=True) or []]

    async def _look_at_containers(self, node: YarnNode) -> None:
        """Read the containers: the LRA part, and labels for the daemon.

        If they cannot be read, both stay unchanged.
        """
        try:
            containers = containers_of(
                await self._client.request("GET", f"{self._web(node)}/ws/v1/node/containers")
            )
            labels = await self._apps.look(each.app for each in containers)
        except YarnError as exc:
            self._tell("containers", str(exc), "containers are unknown")
            self._are_containers_known = False
            return
        self._are_containers_known = True
        self._tell("containers", "", "")
        self._lra_part = held_by(containers, labels, self._settings.lras).greater(self._settings.lra_part)
        if self._settings.containers_file is not None:
            text = json.dumps(described(containers, labels, self._settings.hierarchy))
            if text != self._written:
                self._write(self._settings.containers_file, text)

    def _write(self, file: Path, text: str) -> None:
        try:
            replace_file(file, text.encode(), 0o644)
            self._written = text
        except OSError as exc:
            self._tell("file", f"{file}: {exc.strerror}", "labels are not written")
        else:
            self._tell("file", "", "")

    def _web(self, node: YarnNode) -> str:
        return self._settings.node_manager or checked_url(f"http://{node.http}")

    async def _configured(self, node: YarnNode) -> YarnCapacity:
        """The capacity in the NodeManager's configuration."""
        values = []
        for name in ("memory-mb", "cpu-vcores"):
            key = f"yarn.nodemanager.resource.{name}"
            try:
                answer = await self._client.request("GET", f"{self._web(node)}/conf?name={key}")
                values.append(int(answer["property"]["value"]))
            except (YarnMissing, KeyError, TypeError, ValueError):
                values.append(-1)
        if min(values) < 0:
            raise YarnRefused(
                f"{node.id} does not report a configured capacity: give it with --memory-mb and --vcores"
            )
        return YarnCapacity(*values)

    async def _set(self, node: YarnNode, capacity: YarnCapacity, why: str) -> None:
        """Write the capacity and verify it. Nothing is killed while the LRAs' containers are unknown."""
        if node.others:
            raise YarnRefused(
                f"{node.id} has {', '.join(node.others)}: the ResourceManager's REST interface would set them to 0, so "
                "this node's capacity stays unchanged"
            )
        kills = self._settings.overcommit_s >= 0 and self._are_containers_known
        overcommit_ms = round(self._settings.overcommit_s * 1000) if kills else -1
        await self._client.post(f"nodes/{node.id}/resource", resource_option(capacity, overcommit_ms))
        ends = time.monotonic() + _TAKES_EFFECT_S
        while (total := (await self.seen()).total) != capacity:
            if time.monotonic() > ends:
                raise YarnUnreachable(
                    f"the ResourceManager accepted {capacity} for {node.id} without an error, but reports {total}"
                )
            await asyncio.sleep(_READ_EVERY_S)
        _log.info("%s: %s, was %s%s", node.id, capacity, node.total, why)

    def _tell(self, what: str, problem: str, meaning: str) -> None:
        """Log a problem when it begins or changes, and when it ends."""
        before = self._problems.get(what, "")
        self._problems[what] = problem
        if problem and not before:
            _log.warning("%s: %s", meaning, problem)
        elif before and not problem:
            _log.info("%s: the problem is over", what)


def _names(nodes: Sequence[YarnNode]) -> str:
    shown = ", ".join(node.id for node in nodes[:_SHOWN])
    return shown + (", ..." if len(nodes) > _SHOWN else "") if nodes else "no node"


def _generation(look: NodeDocument | Unavailable) -> int | None:
    return None if isinstance(look, Unavailable) else look.generation


def _offer(look: NodeDocument | Unavailable) -> Level:
    return Level() if isinstance(look, Unavailable) else offered_level(look)
