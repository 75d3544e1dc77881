"""Decides what a node publishes, with hysteresis. Pure; called once per round of the publisher.

    level      CPUs and memory for copper: a decrease takes effect at once; an increase after two rounds in a row, with
               the lesser value of the two. Changes below 2 % of the node wait. Memory for copper never takes the host's
               use beyond 80 %; for this limit, the smallest change takes effect at once.
    taint      set in the second round in a row without room or with a degraded LRA, at once without a daemon; removed
               after three rounds in a row with at least 5 % of the node for copper and no degraded LRA
    conditions CopperAvailable and LrasOnTarget
    notices    an LRA that was degraded in two rounds in a row, and later one that was not in two rounds in a row

Without a document (the daemon does not answer), nothing is offered, because no daemon would protect the LRAs from new
work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from perphd.cluster.document import NodeDocument
from perphd.domain.decision import Health
from perphd.domain.reading import Unavailable, available, value_or
from perphd.qos.bands import MEMORY_LIMIT_RATIO

STEP_RATIO: Final = 0.02
LEAST_RATIO: Final = 0.02
"""Minimum share of the node's CPUs and memory that counts as room for copper."""
ENOUGH_RATIO: Final = 0.05
LOOKS_TO_TAINT: Final = 2
LOOKS_TO_UNTAINT: Final = 3
LOOKS_TO_ANNOUNCE: Final = 2
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Level:
    """Capacity offered to copper: thousandths of a CPU, and bytes in whole MiB."""

    cpu_milli: int = 0
    memory_bytes: int = 0

    def lesser(self, other: Level) -> Level:
        """The smaller of both, for each resource."""
        return Level(min(self.cpu_milli, other.cpu_milli), min(self.memory_bytes, other.memory_bytes))


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """A condition of the node. ``status``: True, False or Unknown."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class NodeNotice:
    """An occurrence to be published as an event of the node."""

    reason: str
    message: str
    is_warning: bool


@dataclass(frozen=True, slots=True)
class KeptPublication:
    """State between rounds.

    ``published``: last published level; None before the first round. ``seen``: level offered in the last round.
    ``poor``, ``rich``: number of consecutive rounds that call for setting or removing the taint. ``announced``: LRAs
    last announced as degraded. ``changing``: number of consecutive rounds in which an LRA contradicted its last
    announcement.
    """

    published: Level | None = None
    seen: Level | None = None
    is_tainted: bool = False
    poor: int = 0
    rich: int = 0
    announced: frozenset[str] = frozenset()
    changing: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Publication:
    """The publication of one round."""

    level: Level
    is_tainted: bool
    conditions: tuple[NodeCondition, ...]
    notices: tuple[NodeNotice, ...]


def decided(look: NodeDocument | Unavailable, before: KeptPublication) -> tuple[Publication, KeptPublication]:
    """Decide what to publish in this round; also returns the state to keep.

    ``look``: the daemon's document, or why there is none.
    """
    if isinstance(look, Unavailable):
        conditions = (
            NodeCondition("perphd.io/CopperAvailable", "False", "NoDaemon", look.reason),
            NodeCondition("perphd.io/LrasOnTarget", "Unknown", "NoDaemon", look.reason),
        )
        kept = KeptPublication(Level(), Level(), True, LOOKS_TO_TAINT, 0, before.announced, before.changing)
        return Publication(Level(), True, conditions, ()), kept
    offered = offered_level(look)
    level = _followed(look, offered, before)
    degraded = {each.name: each for each in look.lras if each.health is Health.DEGRADED}
    is_poor = not _has(look, offered, LEAST_RATIO) or bool(degraded)
    is_rich = _has(look, offered, ENOUGH_RATIO) and not degraded
    poor, rich = (before.poor + 1 if is_poor else 0), (before.rich + 1 if is_rich else 0)
    is_tainted = rich < LOOKS_TO_UNTAINT if before.is_tainted else poor >= LOOKS_TO_TAINT
    announced, changing, notices = _announced(look, frozenset(degraded), before)
    why = look.copper.reason or "less than 2 % of the node is free for copper"
    copper = (
        NodeCondition(
            "perphd.io/CopperAvailable", "False", "LraDegraded", f"degraded: {', '.join(sorted(degraded))}"
        )
        if degraded and is_tainted
        else NodeCondition("perphd.io/CopperAvailable", "False", "NoHeadroom", why)
        if is_tainted
        else NodeCondition("perphd.io/CopperAvailable", "True", "Headroom", "copper has room on this node")
    )
    lras = (
        NodeCondition(
            "perphd.io/LrasOnTarget", "False", "Degraded", f"degraded: {', '.join(sorted(announced))}"
        )
        if announced
        else NodeCondition("perphd.io/LrasOnTarget", "True", "OnTarget", f"{len(look.lras)} LRAs")
    )
    kept = KeptPublication(level, offered, is_tainted, poor, rich, announced, changing)
    return Publication(level, is_tainted, (copper, lras), notices), kept


def offered_level(document: NodeDocument) -> Level:
    """Capacity offered to all of copper; memory stays within 80 % of the host, including the use of others."""
    offered = document.copper.offered
    cpus = max(0.0, value_or(offered.cpus, 0.0))
    memory = max(0.0, value_or(offered.memory_bytes, 0.0))
    return Level(int(cpus * 1000), min(int(memory) // _MIB * _MIB, _most_memory(document)))


def _most_memory(document: NodeDocument) -> int:
    """The part of 80 % of the host that others leave, in bytes; 0 if unknown."""
    whole, used, copper = document.capacity.memory_bytes, document.used, document.copper.used
    if not available(whole):
        return 0
    others = max(0.0, value_or(used.memory_bytes, whole) - value_or(copper.memory_bytes, 0.0))
    return int(max(0.0, MEMORY_LIMIT_RATIO * whole - others)) // _MIB * _MIB


def _followed(document: NodeDocument, offered: Level, before: KeptPublication) -> Level:
    """The level to publish: follows decreases at once, and increases in the second round."""
    if before.published is None:
        return offered
    held = offered.lesser(before.seen) if before.seen is not None else offered
    whole = document.capacity
    cpu_milli = _one(
        offered.cpu_milli, held.cpu_milli, before.published.cpu_milli, value_or(whole.cpus, 0.0) * 1000
    )
    memory = _one(
        offered.memory_bytes,
        held.memory_bytes,
        before.published.memory_bytes,
        value_or(whole.memory_bytes, 0.0),
    )
    return Level(cpu_milli, min(memory, _most_memory(document)))


def _one(offered: int, held: int, published: int, whole: float) -> int:
    step = STEP_RATIO * whole
    if offered < published and (published - offered >= step or offered == 0):
        return offered
    return held if held - published >= step else published


def _has(document: NodeDocument, offered: Level, share: float) -> bool:
    cpus, memory = document.capacity.cpus, document.capacity.memory_bytes
    if not available(cpus) or not available(memory):
        return False
    return offered.cpu_milli >= share * cpus * 1000 and offered.memory_bytes >= share * memory


def _announced(
    document: NodeDocument, degraded: frozenset[str], before: KeptPublication
) -> tuple[frozenset[str], Mapping[str, int], tuple[NodeNotice, ...]]:
    """LRAs announced as degraded, pending changes, and notices about new changes."""
    names = {each.name for each in document.lras}
    announced, changing, notices = set(before.announced & names), dict[str, int](), []
    for each in document.lras:
        if (each.name in degraded) == (each.name in announced):
            continue
        looks = before.changing.get(each.name, 0) + 1
        if looks < LOOKS_TO_ANNOUNCE:
            changing[each.name] = looks
        elif each.name in degraded:
            announced.add(each.name)
            by = next((one.culprit for one in document.antagonists if one.lra == each.name), None)
            blamed = f", disturbed by {by}" if by is not None else ""
            notices.append(
                NodeNotice("LraDegraded", f"{each.name} is below its target: {each.cause}{blamed}", True)
            )
        else:
            announced.discard(each.name)
            notices.append(NodeNotice("LraRecovered", f"{each.name} is on its target again", False))
    return frozenset(announced), changing, tuple(notices)
