"""Answers in the form of perphctl --json: a schema version, RFC 3339 times, and null for every missing value.

The socket's own form is for programs that talk to perphd directly: a number or ``{"unavailable": reason}``,
and times on the daemon's monotonic clock. Here every missing value is null, and ``missing`` gives the reason
by the path of the value. Every monotonic time ``NAME_s`` is accompanied by the same instant as ``NAME`` in
RFC 3339. Pure.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

SCHEMA: Final = 1
"""Incremented whenever the location or meaning of a value changes."""
MONOTONIC: Final = frozenset({"at_s", "since_s", "decided_at_s", "began_s", "seen_s"})
"""Names of values that are instants on the daemon's clock."""
_UNIX_SUFFIX: Final = "_unix_s"


def published(data: Any) -> Any:
    """The answer for scripts. Answers that are not objects are unchanged."""
    if not isinstance(data, Mapping):
        return data
    clock = data.get("clock")
    offset_s = None
    if isinstance(clock, Mapping) and {"unix_s", "monotonic_s"} <= clock.keys():
        offset_s = float(clock["unix_s"]) - float(clock["monotonic_s"])
    missing: dict[str, str] = {}
    body = _value(data, "", offset_s, missing)
    return {"schema": SCHEMA, **body, **({"missing": missing} if missing else {})}


def rfc3339(unix_s: float) -> str:
    """An instant in UTC with milliseconds."""
    moment = datetime.datetime.fromtimestamp(unix_s, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _value(value: Any, path: str, offset_s: float | None, missing: dict[str, str]) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {"unavailable"}:
            missing[path] = str(value["unavailable"])
            return None
        return _object(value, path, offset_s, missing)
    if isinstance(value, list | tuple):
        if path.endswith(".sli.options"):
            return {str(key): item for key, item in value} if not isinstance(value, Mapping) else value
        return [_value(item, f"{path}[{n}]", offset_s, missing) for n, item in enumerate(value)]
    return value


def _object(
    value: Mapping[str, Any], path: str, offset_s: float | None, missing: dict[str, str]
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, item in value.items():
        made[name] = _value(item, f"{path}.{name}" if path else name, offset_s, missing)
        moment = _moment(name, item, offset_s)
        stem = name.removesuffix(_UNIX_SUFFIX).removesuffix("_s")
        if moment is not None and stem not in value:
            made[stem] = moment
    return made


def _moment(name: str, item: Any, offset_s: float | None) -> str | None:
    """The instant denoted by a value with this name; None if it is not an instant."""
    if isinstance(item, bool) or not isinstance(item, int | float):
        return None
    try:
        if name.endswith(_UNIX_SUFFIX):
            return rfc3339(float(item))
        if name in MONOTONIC and offset_s is not None:
            return rfc3339(float(item) + offset_s)
    except (OverflowError, ValueError, OSError):
        pass
    return None
