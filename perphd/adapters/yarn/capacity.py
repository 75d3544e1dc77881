"""Computes the wanted capacity of a NodeManager, and parses the one that the ResourceManager reports. Pure.

    memory = min(LRA part + copper's offer, 80 % of the node)        in MiB
    vcores = LRA part + floor(copper's offer x vcores per CPU)

The LRA part is the amount that LRAs' containers hold on the node according to YARN, and at least the operator's
reservation for them. Copper's offer is perphd's, with hysteresis (``perphd.cluster.publication``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from perphd.adapters.yarn.client import YarnUnreachable
from perphd.cluster.publication import Level
from perphd.domain.reading import Reading, available
from perphd.qos.bands import MEMORY_LIMIT_RATIO

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class YarnCapacity:
    """Memory in MiB and virtual cores, in YARN's units."""

    memory_mb: int = 0
    vcores: int = 0

    def __str__(self) -> str:
        return f"{self.memory_mb} MiB, {self.vcores} vcores"

    def __add__(self, other: YarnCapacity) -> YarnCapacity:
        return YarnCapacity(self.memory_mb + other.memory_mb, self.vcores + other.vcores)

    def lesser(self, other: YarnCapacity) -> YarnCapacity:
        """The smaller of both, for each resource."""
        return YarnCapacity(min(self.memory_mb, other.memory_mb), min(self.vcores, other.vcores))

    def greater(self, other: YarnCapacity) -> YarnCapacity:
        """The larger of both, for each resource."""
        return YarnCapacity(max(self.memory_mb, other.memory_mb), max(self.vcores, other.vcores))

    def exceeds(self, other: YarnCapacity) -> bool:
        """True if there is more of any resource than in ``other``."""
        return self.memory_mb > other.memory_mb or self.vcores > other.vcores


@dataclass(frozen=True, slots=True)
class YarnNode:
    """A node as the ResourceManager reports it.

    ``http``: address of the NodeManager's web interface. ``others``: names of further resource types that it has.
    """

    id: str
    state: str
    http: str
    total: YarnCapacity
    others: tuple[str, ...] = ()


def node_of(data: Any) -> YarnNode:
    """Parse a node.

    Raises:
        YarnUnreachable: the ResourceManager's answer has another form.
    """
    try:
        total = data["totalResource"]
        informations = (total.get("resourceInformations") or {}).get("resourceInformation") or []
        others = tuple(
            str(each["name"])
            for each in informations
            if each["name"] not in ("memory-mb", "vcores") and int(each["value"]) > 0
        )
        return YarnNode(
            str(data["id"]), str(data["state"]), str(data["nodeHTTPAddress"]),
            YarnCapacity(int(total["memory"]), int(total["vCores"])), others,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise YarnUnreachable(f"the ResourceManager describes a node in an unknown form: {exc!r}") from exc


def resource_option(capacity: YarnCapacity, overcommit_ms: int) -> dict[str, Any]:
    """The body of ``POST /ws/v1/cluster/nodes/ID/resource``. ``overcommit_ms``: -1 kills no container."""
    resource = {"memory": capacity.memory_mb, "vCores": capacity.vcores}
    return {"resource": resource, "overCommitTimeout": overcommit_ms}


def wanted(level: Level, lras: YarnCapacity, memory_bytes: Reading, vcores_per_cpu: float) -> YarnCapacity:
    """The capacity that the node should have.

    Args:
        level: copper's offer.
        lras: the LRA part.
        memory_bytes: memory of the node.
        vcores_per_cpu: virtual cores that YARN counts for a logical CPU.
    """
    memory_mb = lras.memory_mb + level.memory_bytes // _MIB
    if available(memory_bytes):
        memory_mb = min(memory_mb, math.floor(MEMORY_LIMIT_RATIO * memory_bytes / _MIB))
    return YarnCapacity(memory_mb, lras.vcores + math.floor(level.cpu_milli / 1000.0 * vcores_per_cpu + 1e-9))


def as_level(total: YarnCapacity, lras: YarnCapacity, vcores_per_cpu: float) -> Level:
    """Copper's offer in a capacity that an earlier process published."""
    return Level(
        max(0, int((total.vcores - lras.vcores) / vcores_per_cpu * 1000)),
        max(0, total.memory_mb - lras.memory_mb) * _MIB,
    )
