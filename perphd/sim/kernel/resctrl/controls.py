"""Control values of every group: one capacity mask or bandwidth limit per schema, domain and CLOSID."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from perphd.sim.kernel.resctrl.groups import MAX_CLOSIDS, Mode
from perphd.sim.kernel.resctrl.hardware import BandwidthControl, CacheControl, Domain, RdtMachine

MBPS_UNLIMITED: Final = (1 << 32) - 1
"""Initial value of ``MB`` under ``-o mba_MBps``."""

_ORDER: Final = {"SMBA": 0, "MB": 1, "L2": 2, "L3": 3}
_CDP_SUFFIX: Final = ("DATA", "CODE")

Modes = Callable[[], Mapping[int, Mode]]
"""Returns the mode of every CLOSID in use."""


@dataclass(frozen=True, slots=True)
class Schema:
    """One line of ``schemata`` and one directory of ``info``. ``peer``: under CDP, the other of code and data."""

    name: str
    resource: CacheControl | BandwidthControl
    num_closids: int
    peer: str | None = None
    mbps: bool = False

    @property
    def default(self) -> int:
        """The unrestricted value: the full mask, or the whole bandwidth."""
        if isinstance(self.resource, CacheControl):
            return self.resource.full_mask
        return MBPS_UNLIMITED if self.mbps else self.resource.maximum


def schemas_of(machine: RdtMachine, options: Iterable[str]) -> tuple[Schema, ...]:
    """The schemas of a mount with these options, in the order in which ``schemata`` shows them."""
    chosen = frozenset(options)
    found: list[Schema] = []
    controls: list[CacheControl | BandwidthControl] = [*machine.caches, *machine.bandwidths]
    for resource in sorted(controls, key=lambda r: _ORDER[r.name]):
        if isinstance(resource, CacheControl) and ("cdp" if resource.name == "L3" else "cdpl2") in chosen:
            for suffix, other in zip(_CDP_SUFFIX, reversed(_CDP_SUFFIX), strict=True):
                peer = resource.name + other
                found.append(Schema(resource.name + suffix, resource, resource.num_closids // 2, peer))
            continue
        mbps = resource.name == "MB" and "mba_MBps" in chosen
        found.append(Schema(resource.name, resource, resource.num_closids, mbps=mbps))
    return tuple(found)


class Controls:
    """The values and their consequences: use of every bit, overlaps, initial values of a new group."""

    def __init__(self, machine: RdtMachine, options: Iterable[str], online: int) -> None:
        self.machine = machine
        self.schemas = schemas_of(machine, options)
        self._by_name = {schema.name: schema for schema in reversed(self.schemas)}
        self.modes: Modes = dict
        self._online = online
        self._values: dict[tuple[str, int], list[int]] = {}
        self.bring_online(online)

    @property
    def num_closids(self) -> int:
        """The smallest number of CLOSIDs over all schemas, which limits the number of groups."""
        return min((schema.num_closids for schema in self.schemas), default=MAX_CLOSIDS)

    @property
    def name_width(self) -> int:
        """Width of a name column: that of the widest name under any mount option."""
        return max(
            (len(s.name) + (4 if _could_split(s) else 0) for s in self.schemas),
            default=0,
        )

    @property
    def value_width(self) -> int:
        """Width of a value column: that of the widest resource; 0 if the kernel does not pad."""
        if not self.machine.kernel.padded_values:
            return 0
        return max((schema.resource.width for schema in self.schemas), default=0)

    def schema(self, name: str) -> Schema | None:
        """The schema with this name in ``schemata``."""
        return self._by_name.get(name)

    def domains(self, schema: Schema) -> Iterator[Domain]:
        """The schema's domains with at least one CPU online, in order."""
        return (d for d in schema.resource.domains if d.cpus.mask & self._online)

    def bring_online(self, online: int) -> None:
        """Set the online CPUs: domains without one vanish, and those that (re)appear have defaults."""
        self._online = online
        for schema in self.schemas:
            for domain in schema.resource.domains:
                key = (schema.name, domain.id)
                if not domain.cpus.mask & online:
                    self._values.pop(key, None)
                elif key not in self._values:
                    self._values[key] = [schema.default] * MAX_CLOSIDS

    def get(self, schema: Schema, domain_id: int, closid: int) -> int:
        """The value in force."""
        return self._values[schema.name, domain_id][closid]

    def put(self, schema: Schema, domain_id: int, closid: int, value: int) -> None:
        """Set a value."""
        self._values[schema.name, domain_id][closid] = value

    # -- caches ---------------------------------------------------------------------------------------

    def overlaps(self, schema: Schema, domain_id: int, mask: int, closid: int, *, exclusive: bool) -> bool:
        """Whether the mask overlaps another group's; with ``exclusive``, only exclusive groups count.

        Without it, bits shared with hardware count as well. Under CDP, code and data are compared too.
        """
        cache = schema.resource
        if not isinstance(cache, CacheControl):
            return False
        if not exclusive and mask & cache.shareable_bits:
            return True
        return any(
            mask & other
            for i, mode in self.modes().items()
            if i != closid and (mode is Mode.EXCLUSIVE or not exclusive)
            for other in self._halves(schema, domain_id, i)
        )

    def _halves(self, schema: Schema, domain_id: int, closid: int) -> Iterator[int]:
        yield self.get(schema, domain_id, closid)
        if schema.peer is not None:
            yield self._values[schema.peer, domain_id][closid]

    def could_be_exclusive(self, closid: int) -> str | None:
        """None if this group shares no part of its cache, else the kernel's message."""
        caches = [schema for schema in self.schemas if isinstance(schema.resource, CacheControl)]
        for schema in caches:
            for domain in self.domains(schema):
                mask = self.get(schema, domain.id, closid)
                if self.overlaps(schema, domain.id, mask, closid, exclusive=False):
                    return "Schemata overlaps"
        return None if caches else "Cannot be exclusive without CAT/CDP"

    def initialise(self, closid: int) -> str | None:
        """Give a new group everything that is shareable or unused; returns the reason if nothing is left."""
        for schema in self.schemas:
            for domain in self.domains(schema):
                value = schema.default
                if isinstance(schema.resource, CacheControl):
                    value = self._initial_mask(schema, schema.resource, domain.id, closid)
                    if value.bit_count() < schema.resource.min_cbm_bits:
                        return f"No space on {schema.name}:{domain.id}"
                self.put(schema, domain.id, closid, value)
        return None

    def _initial_mask(self, schema: Schema, cache: CacheControl, domain_id: int, closid: int) -> int:
        usable = used = cache.shareable_bits
        for other, mode in self.modes().items():
            if other == closid:
                continue
            for mask in self._halves(schema, domain_id, other):
                used |= mask
                if mode is Mode.SHAREABLE:
                    usable |= mask
        usable |= cache.full_mask & ~used
        if cache.sparse_masks and self.machine.kernel.sparse_masks_file:
            return usable
        return first_run(usable)

    def bit_usage(self, schema: Schema) -> str:
        """The line of ``bit_usage``: the use of every bit of every instance."""
        return (
            ";".join(f"{domain.id}={self._usage(schema, domain.id)}" for domain in self.domains(schema))
            + "\n"
        )

    def _usage(self, schema: Schema, domain_id: int) -> str:
        cache = schema.resource
        if not isinstance(cache, CacheControl):
            return ""
        shared = exclusive = 0
        for closid, mode in self.modes().items():
            mask = self.get(schema, domain_id, closid)
            if mode is Mode.EXCLUSIVE:
                exclusive |= mask
            else:
                shared |= mask
        letters: list[str] = []
        for bit in reversed(range(cache.ways)):
            by_hardware, by_software = cache.shareable_bits >> bit & 1, shared >> bit & 1
            if by_hardware:
                letters.append("X" if by_software else "H")
            elif by_software:
                letters.append("S")
            else:
                letters.append("E" if exclusive >> bit & 1 else "0")
        return "".join(letters)


def _could_split(schema: Schema) -> bool:
    return isinstance(schema.resource, CacheControl) and schema.resource.cdp and schema.peer is None


def first_run(mask: int) -> int:
    """The lowest run of ones."""
    if not mask:
        return 0
    low = mask & -mask
    return mask & ~(mask + low)
