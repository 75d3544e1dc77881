"""Collects every mistake of a configuration file, not only the first.

A reader stops at the first mistake. This module removes the refused part and reads the rest again, until
nothing is refused. Consequences of a mistake that was already reported are not reported again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from perphd.domain.errors import ConfigError

MOST: Final = 20
"""Maximum number of reported mistakes; a file with more is probably the wrong one."""
_STEP: Final = re.compile(r"\[(\d+)\]")


def mistakes(raw: dict[str, Any], read: Callable[[dict[str, Any]], object]) -> tuple[ConfigError, ...]:
    """Everything in ``raw`` that ``read`` refuses, in the order in which it is found.

    Args:
        raw: content of the file; modified.
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
    """Remove a key; if it is absent, or with ``whole``, remove its container. False: nothing is left to remove."""
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
            whole = False  # remove its container instead
            break
        path.append((place, step))
        place = place[step]
    if whole and len(path) > 1:
        path.pop()
    if not path:
        return False
    holder, step = path[-1]
    if isinstance(holder, list) and isinstance(step, int):
        # Later elements must keep their numbers, so a valid placeholder takes the place of the removed one.
        name = f"taken-out-{path[-2][1]}-{step}"
        stand_in = {"name": name, "cgroup": f"/{name}"}
        if path[-2][1] == "notify":
            stand_in = {"name": name, "command": "/bin/true"}
        if holder[step] == stand_in:
            return False
        holder[step] = stand_in
    else:
        del holder[step]
        if step == "match" and "cgroup" not in holder:  # a workload without either would be another mistake
            holder["cgroup"] = f"/taken-out-{key}"
    for place, step in path:
        if step == "sli":  # a latency objective is not checked without its source
            place.pop("max_latency_ms", None)
    return True


def _within(step: str | int, place: list[Any]) -> bool:
    return isinstance(step, int) and step < len(place)
