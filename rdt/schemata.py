"""Schemata: the cache ways and memory bandwidth of a control group, per domain.

A schemata maps a resource (``L3``, ``L3CODE``, ``L2``, ``MB``, ``SMBA`` ...) to values per domain id. Domain
ids come from the kernel and may have gaps; L3 and MB number their domains separately. A schemata to be
written may be partial; missing values stay unchanged. The format is that of
Documentation/arch/x86/resctrl.rst and of the kernel's ``rdtgroup_schemata_show`` and
``rdtgroup_schemata_write``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdt.cbm import Cbm
from rdt.errors import Broken, Gone, Invalid, Unsupported
from rdt.frozen import FrozenDict

if TYPE_CHECKING:
    from rdt.info import Info


# kernfs refuses a longer write with E2BIG before the kernel parses it.
MAX_WRITE_BYTES = 4095
# The order in which the kernel shows resources; resources not listed come last.
SHOWN_ORDER = ("SMBA", "MB", "L2", "L2DATA", "L2CODE", "L3", "L3DATA", "L3CODE")

_CACHE_NAME = re.compile(r"L[0-9]+(CODE|DATA)?\Z")
_MASK = re.compile(r"[0-9a-fA-F]+\Z")
_NUMBER = re.compile(r"[0-9]+\Z")

Values = FrozenDict[int, int]


def is_cache(resource: str) -> bool:
    """True for a resource whose values are capacity bit masks (L2, L3, with or without CODE or DATA)."""
    return _CACHE_NAME.match(resource) is not None


def is_bandwidth(resource: str) -> bool:
    """True for a resource whose values are memory bandwidths: MB, and SMBA (slow memory, AMD)."""
    return resource in ("MB", "SMBA")


@dataclass(frozen=True, slots=True)
class Cell:
    """The place of one value in a schemata."""

    resource: str
    domain: int

    def __str__(self) -> str:
        return f"{self.resource}:{self.domain}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs from the wanted one. ``actual`` is None if the domain or resource does not exist."""

    cell: Cell
    wanted: int
    actual: int | None

    def __str__(self) -> str:
        actual = "absent" if self.actual is None else _value_text(self.cell.resource, self.actual)
        return f"{self.cell} is {actual}, wanted {_value_text(self.cell.resource, self.wanted)}"


@dataclass(frozen=True, slots=True)
class Schemata:
    """Values by resource and domain: capacity bit masks (CBM) of caches; bandwidths in the unit of the schemata file.

    ``opaque``: text after the colon of lines that rdt does not understand (a resource of a newer kernel,
    ``uninitialized`` of a group in pseudo-lock set-up). They are shown but never written.
    """

    values: FrozenDict[str, Values] = FrozenDict()
    opaque: FrozenDict[str, str] = FrozenDict()

    @classmethod
    def of(cls, values: Mapping[str, Mapping[int, int] | Mapping[int, Cbm]]) -> Schemata:
        """Build from plain mappings: ``Schemata.of({"L3": {0: Cbm(0x7f)}, "MB": {0: 50}})``.

        Masks may also be plain numbers. Resources without values are left out.
        """
        return cls(
            FrozenDict(
                {
                    name: FrozenDict(
                        {
                            domain: value.bits if isinstance(value, Cbm) else value
                            for domain, value in cells.items()
                        }
                    )
                    for name, cells in values.items()
                    if cells
                }
            )
        )

    @classmethod
    def parse(cls, text: str, path: str = "schemata") -> Schemata:
        """Parse the kernel's text. Raises Broken, naming ``path``, if it is invalid."""
        values: dict[str, Values] = {}
        opaque: dict[str, str] = {}
        for line in text.splitlines():
            name, colon, rest = line.strip().partition(":")
            if not name and not colon:
                continue
            if not colon:
                raise Broken(path, doing="reading", value=line, reason="a schemata line without a colon")
            if name in values or name in opaque:
                raise Broken(path, doing="reading", value=line, reason=f"{name} is shown twice")
            cells = _parse_cells(name, rest)
            if cells is not None:
                values[name] = cells
            elif is_cache(name) or is_bandwidth(name):
                if "=" in rest:
                    raise Broken(path, doing="reading", value=line, reason="not a list of domain=value")
                opaque[name] = rest
            else:
                opaque[name] = rest
        return cls(FrozenDict(values), FrozenDict(opaque))

    def __bool__(self) -> bool:
        return any(self.values.values())

    def cells(self) -> Iterator[tuple[Cell, int]]:
        """Every value with its place, in the schemata's order."""
        for name, values in self.values.items():
            for domain, value in values.items():
                yield Cell(name, domain), value

    def get(self, resource: str, domain: int) -> int | None:
        """The value of one cell; None if the schemata does not contain it."""
        values = self.values.get(resource)
        return None if values is None else values.get(domain)

    def masks(self, resource: str) -> FrozenDict[int, Cbm]:
        """The masks of a cache by domain; empty if the schemata has no such resource."""
        cells = self.values.get(resource, FrozenDict())
        return FrozenDict({domain: Cbm(mask) for domain, mask in cells.items()})

    def domains(self, resource: str) -> tuple[int, ...]:
        """The domain ids of a resource, ascending; empty if the schemata has no such resource."""
        return tuple(sorted(self.values.get(resource, ())))

    def merged(self, other: Schemata) -> Schemata:
        """This schemata, overridden by ``other``'s values."""
        values = {name: dict(cells) for name, cells in self.values.items()}
        for cell, value in other.cells():
            values.setdefault(cell.resource, {})[cell.domain] = value
        return Schemata(Schemata.of(values).values, FrozenDict({**self.opaque, **other.opaque}))

    def only(self, cells: frozenset[Cell]) -> Schemata:
        """The part at these cells."""
        values: dict[str, dict[int, int]] = {}
        for cell, value in self.cells():
            if cell in cells:
                values.setdefault(cell.resource, {})[cell.domain] = value
        return Schemata.of(values)

    def present_in(self, other: Schemata) -> tuple[Schemata, tuple[Cell, ...]]:
        """The part whose cells ``other`` has, and the cells that it lacks."""
        absent = tuple(cell for cell, _ in self.cells() if other.get(cell.resource, cell.domain) is None)
        present = frozenset(cell for cell, _ in self.cells()) - frozenset(absent)
        return self.only(present), absent

    def restored_by(self, before: Schemata) -> Schemata:
        """The schemata that undoes this one: the same cells with their values in ``before``."""
        return before.only(frozenset(cell for cell, _ in self.cells()))

    def to_write(self) -> str:
        """The text of one write: a line per resource, masks first, domains ascending.

        Equal schemata have equal texts, whatever the order in which their resources were given. Masks come
        first because with mba_MBps the kernel applies bandwidths while it parses: a bad mask behind them
        would leave them changed.

        Raises Invalid if there is nothing to write, or the text is too long for one write.
        """
        lines = []
        for name, values in sorted(self.values.items(), key=lambda item: _written_order(item[0])):
            cells = ";".join(
                f"{domain}={_value_text(name, value)}" for domain, value in sorted(values.items())
            )
            if cells:
                lines.append(f"{name}:{cells}\n")
        text = "".join(lines)
        if not text:
            raise Invalid("schemata", doing="formatting", reason="it has no values; give at least one")
        if len(text) > MAX_WRITE_BYTES:
            raise Invalid(
                "schemata",
                doing="formatting",
                value=text,
                reason=f"longer than {MAX_WRITE_BYTES} bytes, the limit of one write",
            )
        return text

    def shown(self, info: Info, name_width: int = 0) -> str:
        """The text as the kernel shows it.

        Resources are in the kernel's order and right-aligned to ``name_width`` (the kernel uses the widest
        name that the machine could show). Masks are zero-padded, bandwidths take three columns.
        """
        rank = {name: index for index, name in enumerate(SHOWN_ORDER)}
        lines = []
        for name in sorted(self.values, key=lambda each: rank.get(each, len(rank))):
            cache = info.caches.get(name)
            digits = len(f"{cache.cbm_mask:x}") if cache else 0
            cells = (
                f"{domain}={value:0{digits}x}" if is_cache(name) else f"{domain}={value:3d}"
                for domain, value in sorted(self.values[name].items())
            )
            lines.append(f"{name:>{name_width}}:{';'.join(cells)}\n")
        lines.extend(f"{name:>{name_width}}:{rest}\n" for name, rest in self.opaque.items())
        return "".join(lines)

    def __str__(self) -> str:
        return " ".join(
            f"{name}:"
            + ";".join(f"{domain}={_value_text(name, value)}" for domain, value in sorted(cells.items()))
            for name, cells in sorted(self.values.items(), key=lambda item: _written_order(item[0]))
        )


def _written_order(resource: str) -> tuple[bool, int, str]:
    """Sort key for the lines of a write: caches first, then the kernel's order of resources, then the name."""
    known = SHOWN_ORDER.index(resource) if resource in SHOWN_ORDER else len(SHOWN_ORDER)
    return not is_cache(resource), known, resource


def _parse_cells(name: str, rest: str) -> Values | None:
    """Parse the values of a line; None if it is not a list of values (an opaque line)."""
    if not (is_cache(name) or is_bandwidth(name)):
        return None
    base, form = (16, _MASK) if is_cache(name) else (10, _NUMBER)
    cells: dict[int, int] = {}
    for item in rest.split(";"):
        domain, equals, value = item.partition("=")
        domain, value = domain.strip(), value.strip()
        if not equals or not _NUMBER.match(domain) or not form.match(value) or int(domain) in cells:
            return None
        cells[int(domain)] = int(value, base)
    return FrozenDict(cells)


def _value_text(resource: str, value: int) -> str:
    return f"{value:x}" if is_cache(resource) else f"{value:d}"


def differences(wanted: Schemata, actual: Schemata, info: Info) -> tuple[Difference, ...]:
    """Values of ``wanted`` that are missing or different in ``actual``, allowing for the kernel's rounding up."""
    found = []
    for cell, value in wanted.cells():
        got = actual.get(cell.resource, cell.domain)
        if got == value:
            continue
        bandwidth = info.bandwidths.get(cell.resource)
        if got is not None and bandwidth is not None and got == bandwidth.rounded(value):
            continue
        found.append(Difference(cell, value, got))
    return tuple(found)


def check(wanted: Schemata, info: Info, present: Schemata, path: str = "schemata") -> None:
    """Refuse values that cannot be written, with clearer messages than the kernel's.

    ``present``: the group's schemata as read, which lists the present domains. Conditions that only the
    kernel knows are not checked: overlap with an exclusive group, and holes in a mask if ``sparse_masks`` is
    unknown.

    Raises:
        Unsupported: a resource that this machine or mount does not have.
        Gone: a domain that does not exist (now).
        Invalid: a mask or bandwidth outside of the limits in ``info``.
    """
    text = str(wanted)
    for cell, value in wanted.cells():
        if cell.resource not in present.values:
            raise Unsupported(
                path, doing="writing", value=text,
                reason=f"there is no resource {cell.resource}; there are {', '.join(present.values) or 'none'}",
            )  # fmt: skip
        if cell.domain not in present.values[cell.resource]:
            ids = ", ".join(str(each) for each in present.domains(cell.resource))
            raise Gone(
                path, doing="writing", value=text,
                reason=f"{cell.resource} has no domain {cell.domain}; it has {ids}",
            )  # fmt: skip
        problem = (
            _mask_problem(cell, value, info)
            if is_cache(cell.resource)
            else _bandwidth_problem(cell, value, info)
        )
        if problem:
            raise Invalid(path, doing="writing", value=text, reason=f"{cell}: {problem}")


def _mask_problem(cell: Cell, mask: int, info: Info) -> str:
    cache = info.caches.get(cell.resource)
    if cache is None:
        return ""
    if mask < 0 or mask & ~cache.cbm_mask:
        return f"the mask {mask:x} is outside of {cache.cbm_mask:x}"
    if mask and cache.sparse_masks is False and not Cbm(mask).contiguous:
        return f"the mask {mask:x} has holes, which this cache does not support"
    if mask.bit_count() < cache.min_cbm_bits:
        return f"the mask {mask:x} has fewer than {cache.min_cbm_bits} bits"
    return ""


def _bandwidth_problem(cell: Cell, value: int, info: Info) -> str:
    bandwidth = info.bandwidths.get(cell.resource)
    if value < 0:
        return f"{value} is negative"
    if bandwidth is not None and bandwidth.is_percent and not bandwidth.minimum <= value <= 100:
        return f"{value} % is outside of {bandwidth.minimum} to 100 %"
    return ""


@dataclass(frozen=True, slots=True)
class Applied:
    """A schemata change that was written and read back."""

    before: Schemata
    after: Schemata
    wrote: Schemata
    """The values that differed and were written; empty if there was no difference."""
    absent: tuple[Cell, ...] = ()
    """Wanted cells in domains that do not exist now (all their CPUs are offline)."""

    @property
    def undo(self) -> Schemata:
        """The replaced values: applying them undoes the change."""
        return self.wrote.restored_by(self.before)


@dataclass(frozen=True, slots=True)
class CpusChanged:
    """A group's CPUs before and after a change."""

    before: frozenset[int]
    after: frozenset[int]


@dataclass(frozen=True, slots=True)
class DomainChange:
    """Change of the domains since the description was read (CPU hotplug)."""

    vanished: tuple[Cell, ...]
    appeared: tuple[Cell, ...]

    def __bool__(self) -> bool:
        return bool(self.vanished or self.appeared)
