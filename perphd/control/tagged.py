"""Encodes a policy's memory as JSON with type tags, because the policy interface does not know its types.

Only classes of perphd's own pure packages are encoded and created, so that a file cannot create anything
else.
"""

from __future__ import annotations

import enum
import importlib
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final

from perphd.domain.errors import PerphError

_ALLOWED: Final = (
    "perphd.admission.", "perphd.domain.", "perphd.forecast.", "perphd.predictor.", "tools.bench.policies.",
)  # fmt: skip
_MOVED: Final = {
    "perphd.admission.forecast:Forecast": "perphd.forecast.load:LoadForecast",
    "perphd.admission.culprit:Moment": "perphd.admission.detector.antagonist:Moment",
    "perphd.admission.crowd_cache:Ban": "perphd.admission.arbiter.partition_cache:Ban",
    "perphd.admission.crowd_cache:CacheState": "perphd.admission.arbiter.partition_cache:CacheState",
    "perphd.admission.crowd_cache:Tightened": "perphd.admission.arbiter.partition_cache:Tightened",
    "perphd.admission.crowd_state:Crowd": "perphd.admission.arbiter.partition_state:PartitionState",
    "perphd.admission.lra_state:Standing": "perphd.admission.controller.lra_state:Settling",
    "perphd.admission.outcomes:Regret": "perphd.admission.review.outcomes:Cooldown",
}
"""Former names of classes in recordings of earlier versions, each with its present name."""
_PACKAGES: Final = {
    "arbiter": (
        "domain_caches member partition partition_cache partition_cores partition_reach "
        "partition_records partition_state partitioned placement"
    ),
    "controller": "awaited change_review lra_state",
    "detector": (
        "antagonist attention cause channels cusum gathering miss_cost origin phases scatter "
        "significance slowdown storage"
    ),
    "features": "egress floor own_ways pregrow probing quarantine streaming windowed",
    "inference": "bandwidth domains inferer ladder way_layout",
    "moves": "blind giveback memory reach rescue",
    "review": "batch_rates kept lra_context outcomes",
}
_MOVED_MODULES: Final = {
    "perphd.admission.arbiter": "perphd.admission.arbiter.arbitration",
    "perphd.admission.controller": "perphd.admission.controller.lra_state",
    "perphd.admission.detector": "perphd.admission.detector.judge",
} | {
    f"perphd.admission.{module}": f"perphd.admission.{package}.{module}"
    for package, modules in _PACKAGES.items()
    for module in modules.split()
}
"""Former names of modules in recordings of earlier versions, each with its present name."""
_SEQUENCES: Final[dict[str, Callable[[Any], Any]]] = {
    "tuple": tuple,
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}


class TaggedError(PerphError):
    """A value cannot be encoded, or a recording names a class that may not be created."""


def encode_tagged(value: object) -> Any:
    """Encode a value as JSON. Raises TaggedError for unsupported types."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, enum.Enum):
        return {"enum": _name(type(value)), "value": value.name}
    kind = type(value).__name__
    if kind in _SEQUENCES and isinstance(value, tuple | list | set | frozenset | deque):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
        made: dict[str, Any] = {kind: [encode_tagged(item) for item in items]}
        if isinstance(value, deque):
            made["most"] = value.maxlen
        return made
    if isinstance(value, Mapping):
        return {"dict": [[encode_tagged(key), encode_tagged(item)] for key, item in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        pairs = {f.name: encode_tagged(getattr(value, f.name)) for f in fields(value)}
        return {"type": _name(type(value)), "fields": pairs}
    raise TaggedError(f"a policy's memory holds a {type(value).__name__}, which cannot be recorded")


def decode_tagged(data: Any) -> Any:
    """Decode a value. Raises TaggedError for an unknown or forbidden class."""
    if not isinstance(data, dict):
        return data
    if "float" in data:
        return float(data["float"])
    if "enum" in data:
        return _class(data["enum"])[data["value"]]
    if "dict" in data:
        return {decode_tagged(key): decode_tagged(item) for key, item in data["dict"]}
    if "type" in data:
        made = _class(data["type"])
        result = object.__new__(made)
        # Bypass __init__: computed fields are in the record, too.
        known = {field.name for field in fields(made)}
        for name, item in data["fields"].items():
            if name in known:  # otherwise the record comes from an older version with another structure
                object.__setattr__(result, name, decode_tagged(item))
        for field in fields(made):
            if field.name not in data["fields"]:  # the field is newer than the record
                object.__setattr__(result, field.name, _default(field))
        return result
    for kind, make in _SEQUENCES.items():
        if kind in data:
            items = [decode_tagged(item) for item in data[kind]]
            return deque(items, data.get("most")) if kind == "deque" else make(items)
    raise TaggedError(f"{str(data)[:80]} is not a recorded value: it has no known tag")


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    raise TaggedError(f"the record lacks {field.name!r}, which has no default")


def _name(made: type) -> str:
    return f"{made.__module__}:{made.__qualname__}"


def _class(name: str) -> Any:
    module, _, inner = _MOVED.get(name, name).partition(":")
    module = _MOVED_MODULES.get(module, module)
    if not module.startswith(_ALLOWED):
        raise TaggedError(f"{name[:80]!r} is not a class of a policy's memory")
    try:
        found: Any = importlib.import_module(module)
        for part in inner.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as exc:
        raise TaggedError(f"{name[:80]!r} is not known to this version: {exc}") from exc
    if not (isinstance(found, type) and (is_dataclass(found) or issubclass(found, enum.Enum))):
        raise TaggedError(f"{name[:80]!r} is not a class of a policy's memory")
    return found
