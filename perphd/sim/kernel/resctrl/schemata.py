"""``schemata`` and ``size``: content of a group's files, and the kernel's handling of writes.

All lines of a write are parsed and checked before the first value is set (Documentation/arch/x86/resctrl.rst;
messages and exact rules as captured from Linux 6.1 and 6.12).
"""

from __future__ import annotations

import errno
from typing import Final

from perphd.sim.kernel.resctrl.controls import Controls, Schema
from perphd.sim.kernel.resctrl.groups import Group, Mode
from perphd.sim.kernel.resctrl.hardware import BandwidthControl, CacheControl
from perphd.sim.kernel.resctrl.numbers import BLANKS, text_of, unsigned
from perphd.sim.kernel.resctrl.status import CommandStatus
from perphd.sim.kernel.vfs import refuse

_U32: Final = 1 << 32
_Staged = dict[tuple[str, int], int]


def show(controls: Controls, group: Group) -> str:
    """``schemata``: names right-aligned, masks zero-padded and bandwidths blank-padded to one width."""
    lines: list[str] = []
    width = controls.value_width
    for schema in controls.schemas:
        values: list[str] = []
        for domain in controls.domains(schema):
            value = controls.get(schema, domain.id, group.closid)
            shown = f"{value:0{width}x}" if isinstance(schema.resource, CacheControl) else f"{value:{width}d}"
            values.append(f"{domain.id}={shown}")
        lines.append(f"{schema.name:>{controls.name_width}}:{';'.join(values)}\n")
    return "".join(lines)


def show_size(controls: Controls, group: Group) -> str:
    """``size``: like ``schemata``, with bytes instead of masks."""
    lines: list[str] = []
    for schema in controls.schemas:
        values: list[str] = []
        for domain in controls.domains(schema):
            value = controls.get(schema, domain.id, group.closid)
            if isinstance(schema.resource, CacheControl):
                # Under Sub-NUMA Clustering, a bit represents its share of one node's part of the cache.
                part = schema.resource.cache_bytes // max(1, len(domain.nodes))
                value = part // schema.resource.ways * value.bit_count()
            values.append(f"{domain.id}={value % _U32}")
        lines.append(f"{schema.name:>{controls.name_width}}:{';'.join(values)}\n")
    return "".join(lines)


def write(controls: Controls, group: Group, data: bytes, status: CommandStatus) -> None:
    """One write to ``schemata``; OSError: EINVAL, and nothing is changed.

    Without its newline, a write is refused before the status is cleared. Under ``mba_MBps`` the kernel's
    software controller applies each value at once, so there an error leaves the values before it in force.
    """
    if not data.endswith(b"\n"):
        raise refuse(errno.EINVAL)
    status.clear()
    staged: _Staged = {}
    try:
        for line in text_of(data[:-1]).split("\n"):
            _parse_line(controls, group, line, staged)
    except _Refused as exc:
        if exc.text is not None:
            status.say(exc.text)
        raise refuse(errno.EINVAL) from exc
    for (name, domain_id), value in staged.items():
        schema = controls.schema(name)
        if schema is not None:
            controls.put(schema, domain_id, group.closid, value)


class _Refused(Exception):
    """A line that the kernel refuses, with its message (None: no message)."""

    def __init__(self, text: str | None = None) -> None:
        super().__init__(text)
        self.text = text


def _parse_line(controls: Controls, group: Group, line: str, staged: _Staged) -> None:
    name, colon, values = line.partition(":")
    name = name.strip(BLANKS)
    if not colon:
        raise _Refused("Missing ':'")
    if not values:
        raise _Refused(f"Missing '{name}' value")
    schema = controls.schema(name)
    if schema is None or group.closid >= schema.num_closids:
        raise _Refused(f"Unknown or unsupported resource name '{name}'")
    known = {domain.id for domain in controls.domains(schema)}
    rest: str = values
    while rest:
        part, _, rest = rest.partition(";")
        number, equals, text = part.partition("=")
        domain_id = unsigned(number, 10)
        if not equals or domain_id is None:
            raise _Refused("Missing '=' or non-numeric domain")
        if domain_id not in known:
            raise _Refused
        if (schema.name, domain_id) in staged:
            raise _Refused(f"Duplicate domain {domain_id}")
        value = _value(controls, schema, group, domain_id, text.strip(BLANKS))
        if schema.mbps:
            controls.put(schema, domain_id, group.closid, value)
        else:
            staged[schema.name, domain_id] = value


def _value(controls: Controls, schema: Schema, group: Group, domain_id: int, text: str) -> int:
    if isinstance(schema.resource, BandwidthControl):
        return _bandwidth(schema.resource, text, mbps=schema.mbps)
    mask = _mask(schema.resource, text)
    if controls.overlaps(schema, domain_id, mask, group.closid, exclusive=True):
        raise _Refused("Overlaps with exclusive group")
    if group.mode is Mode.EXCLUSIVE and controls.overlaps(
        schema, domain_id, mask, group.closid, exclusive=False
    ):
        raise _Refused("Overlaps with other group")
    return mask


def _bandwidth(limit: BandwidthControl, text: str, *, mbps: bool) -> int:
    value = unsigned(text, 10, 32)
    if value is None:
        raise _Refused(f"Invalid MB value {text}")
    if mbps:
        return value
    if not limit.min_bandwidth <= value <= limit.maximum:
        raise _Refused(f"MB value {value} out of range [{limit.min_bandwidth},{limit.maximum}]")
    return -(-value // limit.bandwidth_gran) * limit.bandwidth_gran


def _mask(cache: CacheControl, text: str) -> int:
    mask = unsigned(text, 16)
    if mask is None:
        raise _Refused(f"Non-hex character in the mask {text}")
    if (mask == 0 and cache.min_cbm_bits > 0) or mask > cache.full_mask:
        raise _Refused("Mask out of range")
    run = mask
    while run and not run & 1:
        run >>= 1
    if run & (run + 1) and not cache.sparse_masks:
        raise _Refused(f"The mask {mask:x} has non-consecutive 1-bits")
    first = (~run & (run + 1)).bit_length() - 1
    if first < cache.min_cbm_bits:
        raise _Refused(f"Need at least {cache.min_cbm_bits} bits in the mask")
    return mask
