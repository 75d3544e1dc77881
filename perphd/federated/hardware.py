"""Rates the likeness of two hosts, as far as an application's response to contention depends on hardware.

    distance = model + |log2 of the ratio of cores| / 2 + |log2 of the ratio of L3 bytes per core| / 2 + SMT

``model``: 0 for the same CPU model, .5 for another model of the same vendor, 1.5 for another vendor, 1 if only one is
known. ``SMT``: 1 if only one of the hosts has sibling threads. If the L3 of only one host is known, its term is .5. A
term that is unknown for both hosts is 0.

    likeness = (1 - distance / 2)^2,    0 from a distance of 2

A host with twice the cores has a likeness of .56, another model of the same vendor as well, both together .25.
"""

from __future__ import annotations

import math
from typing import Annotated, Final

import msgspec

UNLIKE: Final = 2.0
"""Distance from which another host carries no information about this one."""
_OTHER_MODEL, _OTHER_VENDOR, _UNKNOWN_MODEL, _UNKNOWN_CACHE = 0.5, 1.5, 1.0, 0.5
_SMT: Final = 1.0


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processors of a host. ``cpu``: model name as in /proc/cpuinfo, which begins with the vendor; empty: unknown.

    ``l3_bytes``: size of all last-level caches together; 0: unknown.
    """

    cpu: Annotated[str, msgspec.Meta(max_length=128)]
    cores: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    threads_per_core: Annotated[float, msgspec.Meta(ge=1.0, le=8.0)] = 1.0
    l3_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0


def distance(one: Hardware, other: Hardware) -> float:
    """The distance between two hosts; symmetric, 0 for equal ones."""
    found = _model(one.cpu, other.cpu) + abs(math.log2(one.cores / other.cores)) / 2
    if one.l3_bytes and other.l3_bytes:
        ratio = (one.l3_bytes / one.cores) / (other.l3_bytes / other.cores)
        found += abs(math.log2(ratio)) / 2
    elif one.l3_bytes or other.l3_bytes:
        found += _UNKNOWN_CACHE
    return found + _SMT * ((one.threads_per_core > 1.0) != (other.threads_per_core > 1.0))


def likeness(apart: float) -> float:
    """Weight of the estimates of a host at this distance, from 0 to 1."""
    return max(0.0, 1.0 - apart / UNLIKE) ** 2


def _model(one: str, other: str) -> float:
    words, others = one.split(), other.split()
    if words == others:
        return 0.0
    if not words or not others:
        return _UNKNOWN_MODEL
    return _OTHER_MODEL if words[0].casefold() == others[0].casefold() else _OTHER_VENDOR
