"""Summarises a host's capabilities in one line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from perphd.domain.capability import Capability

PROTECTIONS: Final = ("cpu", "memory", "cache", "bandwidth", "counters")
"""Possible values of ``perphctl doctor --require``."""
_WORDS: Final = {
    "cpu": "CPU",
    "memory": "memory",
    "cache": "cache",
    "bandwidth": "bandwidth",
    "counters": "counters",
}
_PART: Final = " (ceilings only)"
"""Follows a protection that this host has only in part, which is memory without ``memory.low``."""


def protections(items: Iterable[Capability]) -> Mapping[str, bool | None]:
    """Maps each protection, and counters, to True if this host has it, False if not, None if only in part."""
    there = {item.name for item in items if item.present}
    writes = "privilege" in there
    cpu = writes and bool(there & {"cgroup.cpu", "cgroup.cpuset"})
    memory: bool | None = writes and "memory.protection" in there
    if not memory and writes and "cgroup.memory" in there:
        memory = None
    return {
        "cpu": cpu,
        "memory": memory,
        "cache": writes and "resctrl.l3_cat" in there,
        "bandwidth": writes and "resctrl.mba" in there,
        "counters": "perf.hardware" in there,
    }


def verdict(items: Iterable[Capability]) -> str:
    """One line with the resources that perphd can protect here, and those that it cannot."""
    found = protections(items)
    able = [
        f"{word}{_PART if found[name] is None else ''}"
        for name, word in _WORDS.items()
        if found[name] is not False
    ]
    unable = [word for name, word in _WORDS.items() if found[name] is False]
    words = f"can protect {_comma(able)}" if found["cpu"] else "can only observe"
    return f"Verdict: {words}{f'; not {_comma(unable)}' if unable else ''}."


def missing(items: Iterable[Capability], required: Iterable[str]) -> tuple[str, ...]:
    """Required protections that this host lacks or has only in part."""
    found = protections(items)
    return tuple(name for name in required if found[name] is not True)


def _comma(words: Iterable[str]) -> str:
    return ", ".join(words)
