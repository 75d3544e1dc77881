"""Converts a Kubernetes pod into the terms of the placement policies. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from perphd.cluster.scheduling.profile import Pod, PodKind
from perphd.domain.errors import PerphError
from perphd.domain.workload import LABEL_PREFIX
from perphd.qos.bands import QosBand
from perphd.qos.ledger import Amounts

BAND_LABEL: Final = f"{LABEL_PREFIX}band"
COPPER_CPU: Final = f"{LABEL_PREFIX}copper-cpu"
"""Extended resource in thousandths of a CPU, because extended resources are integers."""
COPPER_MEMORY: Final = f"{LABEL_PREFIX}copper-memory"
_QUANTITY: Final = re.compile(
    r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)([eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?"
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SUFFIX: Final = {name: Fraction(10) ** power for name, power in _DECIMAL.items()} | {
    name: Fraction(2) ** power for name, power in _BINARY.items()
}
_MOST_DIGITS: Final = 100


class ExtenderError(PerphError):
    """An invalid call; the text states the mistake and its place."""


@dataclass(frozen=True, slots=True)
class AskingPod:
    """A pod as described by the scheduler."""

    pod: Pod
    band: QosBand
    uid: str = ""

    @property
    def amounts(self) -> Amounts:
        """The pod's requests."""
        return Amounts(self.pod.cores, int(self.pod.memory_bytes))


def quantity(value: object) -> float:
    """Parse a Kubernetes quantity.

    Raises:
        ExtenderError: it is invalid or negative.
    """
    return float(exact_quantity(value))


def exact_quantity(value: object) -> Fraction:
    """Parse a Kubernetes quantity without rounding. Raises ExtenderError if it is invalid or negative."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(value)
    found = None
    if isinstance(value, str) and len(value) <= _MOST_DIGITS:
        found = _QUANTITY.fullmatch(value)
    if found is None:
        raise ExtenderError(
            f"{str(value)[:40]!r} is not a quantity (allowed: numbers such as 500m, 2 or 8Gi)"
        )
    number, suffix = found[1], found[2] or ""
    result = Fraction(number) * (_SUFFIX[suffix] if suffix in _SUFFIX else Fraction(10) ** int(suffix[1:]))
    if result < 0:
        raise ExtenderError(f"{value} is negative")
    return result


def asking_pod(data: Any) -> AskingPod:
    """The pod of a call, with the requests that count for the scheduler.

    A pod is copper if its label or annotation says so, or if it requests copper's extended resources.

    Raises:
        ExtenderError: it is not a valid pod.
    """
    metadata, spec = member(data, "Pod.metadata"), member(data, "Pod.spec")
    together = _pod_requests(spec)
    labels = {**optional(metadata, "annotations"), **optional(metadata, "labels")}
    named = labels.get(BAND_LABEL)
    is_copper = named == QosBand.COPPER or COPPER_CPU in together or COPPER_MEMORY in together
    band = QosBand.COPPER if is_copper else QosBand.GOLD if named == QosBand.GOLD else QosBand.SILVER
    cores = together.get(COPPER_CPU, 0.0) / 1000.0 or together.get("cpu", 0.0)
    memory = together.get(COPPER_MEMORY, 0.0) or together.get("memory", 0.0)
    owners = items(metadata, "ownerReferences")
    owner = owners[0].get("name") if owners and isinstance(owners[0], Mapping) else None
    name = f"{metadata.get('namespace', 'default')}/{metadata.get('name', '')}"
    kind = PodKind.BATCH if is_copper else PodKind.SERVICE
    return AskingPod(Pod(name, str(owner or name), kind, cores, memory), band, str(metadata.get("uid", "")))


def member(data: Any, path: str) -> Mapping[str, Any]:
    """The object at the last part of ``path``. Raises ExtenderError if there is none."""
    found = data.get(path.rpartition(".")[2]) if isinstance(data, Mapping) else None
    if not isinstance(found, Mapping):
        raise ExtenderError(f"{path} is not an object")
    return found


def optional(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object at ``key``, or an empty one."""
    found = data.get(key)
    return found if isinstance(found, Mapping) else {}


def items(data: Any, key: str) -> list[Any]:
    """The list at ``key``, or an empty one. Raises ExtenderError if it is not a list."""
    found = data.get(key) if isinstance(data, Mapping) else None
    if found is None:
        return []
    if not isinstance(found, list):
        raise ExtenderError(f"{key} is not a list")
    return found


def _pod_requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """Largest amount that the pod needs at once: all containers together, or one init container while it runs.

    Init containers with ``restartPolicy: Always`` (sidecars) keep running beside all later containers. Requests of the
    whole pod (``spec.resources``) replace those of its containers. The overhead of its runtime is added.
    """
    sidecars: dict[str, float] = {}
    starting: dict[str, float] = {}
    for container in items(spec, "initContainers"):
        asked = _requests(container)
        if asked and container.get("restartPolicy") == "Always":
            _add(sidecars, asked)
            asked = {}
        for name in {*asked, *sidecars}:
            now = sidecars.get(name, 0.0) + asked.get(name, 0.0)
            starting[name] = max(starting.get(name, 0.0), now)
    for container in items(spec, "containers"):
        _add(sidecars, _requests(container))
    total = {name: max(sidecars.get(name, 0.0), starting.get(name, 0.0)) for name in {**sidecars, **starting}}
    total |= _requests(spec)
    _add(total, {str(name): quantity(amount) for name, amount in optional(spec, "overhead").items()})
    return total


def _add(amounts: dict[str, float], more: Mapping[str, float]) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0.0) + amount


def _requests(container: Any) -> dict[str, float]:
    resources = optional(container, "resources") if isinstance(container, Mapping) else {}
    return {str(name): quantity(amount) for name, amount in optional(resources, "requests").items()}
