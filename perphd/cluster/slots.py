"""Holds room for copper pods in the node's NodeProfile object until the node itself sees them run. Pure.

A slot is an entry of ``spec.reservations``. The API server raises ``metadata.generation`` with every change of a spec
and with none of a status. A JSON patch that first tests the generation is therefore a compare and swap: of all
extenders that read the same generation, one gets its slot, and the others read again.

    room = amount that copper may still take, by the document in the status, less slots not yet counted in the document

The node's publisher removes a slot once its pod has run long enough to be measured, has ended, or never started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from perphd.cluster.asking import AskingPod
from perphd.cluster.document import NodeDocument
from perphd.domain.reading import value_or
from perphd.qos.ledger import Amounts

SLOT_S: Final = 60.0
"""Seconds without a bound pod after which a slot is released."""
SLOT_PREFIX: Final = "slot:"
"""Prefix of the names of slots in the node's ledger, by which a publisher recognises its own grants after a restart."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for one pod. ``since_unix_s``: when it was taken, by the extender's clock."""

    pod: str
    uid: str
    amounts: Amounts
    since_unix_s: float

    @property
    def holder(self) -> str:
        """Its name in the node's ledger: ``slot:namespace.pod``."""
        return SLOT_PREFIX + self.pod.replace("/", ".", 1)

    @property
    def names(self) -> tuple[str, str]:
        """Names under which the ledger may hold it: its own, and ``namespace.pod`` reserved by a scheduler."""
        return self.holder, self.holder.removeprefix(SLOT_PREFIX)


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The reason why there is no slot."""

    reason: str


def slots_of(profile: Mapping[str, Any]) -> tuple[Slot, ...]:
    """The slots of a NodeProfile; invalid entries are ignored."""
    found = []
    spec = profile.get("spec")
    entries = spec.get("reservations") if isinstance(spec, Mapping) else None
    for entry in entries if isinstance(entries, list) else ():
        try:
            amounts = Amounts(int(entry["cpuMilli"]) / 1000.0, int(entry["memoryBytes"]))
            found.append(Slot(str(entry["pod"]), str(entry["uid"]), amounts, float(entry["sinceUnix"])))
        except (KeyError, TypeError, ValueError):
            continue
    return tuple(found)


def room(document: NodeDocument, slots: tuple[Slot, ...]) -> Amounts:
    """Capacity left for a further copper pod."""
    free = document.copper.allocatable
    left = Amounts(value_or(free.cpus, 0.0), int(value_or(free.memory_bytes, 0.0)))
    counted = {held.holder for held in document.held}
    for slot in slots:
        if counted.isdisjoint(slot.names):
            left -= slot.amounts
    return left


def taken(
    profile: Mapping[str, Any], document: NodeDocument, asked: AskingPod, now_unix_s: float
) -> list[dict[str, Any]] | NoRoom:
    """The JSON patch that takes a slot for this pod: empty if it has one, NoRoom if there is none."""
    slots = slots_of(profile)
    if any(slot.uid == asked.uid for slot in slots):
        return []
    left = room(document, slots)
    if not asked.amounts.fits(left):
        return NoRoom(f"it requests {asked.amounts}, and copper may still take {left.at_least_nothing()}")
    entry = {
        "pod": asked.pod.name,
        "uid": asked.uid,
        "cpuMilli": round(asked.amounts.cpus * 1000),
        "memoryBytes": asked.amounts.memory_bytes,
        "sinceUnix": round(now_unix_s, 3),
    }
    spec = profile.get("spec")
    has_list = isinstance(spec, Mapping) and isinstance(spec.get("reservations"), list)
    path = "/spec/reservations/-" if has_list else "/spec"
    return [
        _test(profile),
        {"op": "add", "path": path, "value": entry if has_list else {"reservations": [entry]}},
    ]


def without(profile: Mapping[str, Any], is_over: Callable[[Slot], bool]) -> list[dict[str, Any]]:
    """The JSON patch that removes the slots for which ``is_over`` holds; empty if there are none."""
    slots = slots_of(profile)
    spec = profile.get("spec")
    entries = spec.get("reservations", []) if isinstance(spec, Mapping) else []
    over = {slot.uid for slot in slots if is_over(slot)}
    kept = [each for each in entries if not (isinstance(each, Mapping) and each.get("uid") in over)]
    if len(kept) == len(entries):
        return []
    return [_test(profile), {"op": "replace", "path": "/spec/reservations", "value": kept}]


def _test(profile: Mapping[str, Any]) -> dict[str, Any]:
    return {"op": "test", "path": "/metadata/generation", "value": profile["metadata"]["generation"]}
