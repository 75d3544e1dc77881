"""Every mistake of a configuration file, not the first alone.

A reader stops at the first mistake. Here what was refused is taken out and the rest read again, until nothing is
refused any more. What follows from a mistake that was named already is not named again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from perphd.domain.errors import ConfigError

MOST: Final = 20
"""Mistakes that are named; whoever has more has taken the wrong file."""
_STEP: Final = re.compile(r"\[(\d+)\]")


def mistakes(raw: dict[str, Any], read: Callable[[dict[str, Any]], object]) -> tuple[ConfigError, ...]:
    """What ``read`` refuses of ``raw``, in the order in which it is found.

    Args:
        raw: what the file says; changed.
        read: raises ConfigError with the path of a key.
    """
    found: dict[str, ConfigError] = {}
    for _ in range(2 * MOST):
        try:
            read(raw)
        except ConfigError as exc:
            known = exc.key in found or any(exc.key.startswith(f"{key}.") for key in found)
            if not known:
                found[exc.key] = exc
            if len(found) == MOST or not _take_out(raw, exc.key, whole=known):
                break
        else:
            break
    return tuple(found.values())


def _take_out(raw: dict[str, Any], key: str, *, whole: bool) -> bool:
    """Take out what a key names; where it is not there, or ``whole``, what it would be in. False: nothing is left."""
    steps: list[str | int] = []
    for word in key.split("."):
        name, *_ = _STEP.split(word)
        steps += [name, *(int(number) for number in _STEP.findall(word))]
    place: Any = raw
    path: list[tuple[Any, str | int]] = []
    for step in steps:
        is_there = (
            step in place if isinstance(place, dict) else isinstance(place, list) and _within(step, place)
        )
        if not is_there:
            whole = False  # what it would be in goes
            break
        path.append((place, step))
        place = place[step]
    if whole and len(path) > 1:
        path.pop()
    if not path:
        return False
    holder, step = path[-1]
    if isinstance(holder, list) and isinstance(step, int):
        # Those behind it keep their numbers: one that nobody refuses takes its place.
        name = f"taken-out-{path[-2][1]}-{step}"
        stand_in = {"name": name, "cgroup": f"/{name}"}
        if path[-2][1] == "notify":
            stand_in = {"name": name, "command": "/bin/true"}
        if holder[step] == stand_in:
            return False
        holder[step] = stand_in
    else:
        del holder[step]
        if (
            step == "match" and "cgroup" not in holder
        ):  # a workload without either would be a mistake of its own
            holder["cgroup"] = f"/taken-out-{key}"
    for place, step in path:
        if step == "sli":  # a latency is not judged without the source that measures it
            place.pop("max_latency_ms", None)
    return True


def _within(step: str | int, place: list[Any]) -> bool:
    return isinstance(step, int) and step < len(place)
