"""JSON schemas of domain types: the same rules as ``perphd.control.wire``, said instead of done."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeAlias

from perphd.control.wire import encode
from perphd.domain.allocation import KEEP
from perphd.domain.cpuset import CpuSet
from perphd.domain.reading import Unavailable

Schema: TypeAlias = Mapping[str, Any]

_PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]},
    type(None): {"type": "null"},
    CpuSet: {"type": "string", "description": "a CPU list such as 0-3,8"},
    Unavailable: {
        "type": "object",
        "properties": {"unavailable": {"type": "string", "description": "why there is no reading"}},
        "required": ["unavailable"],
        "additionalProperties": False,
    },
}


class Components:
    """Schemas of types; every dataclass is described once, by name."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}

    def of(self, hint: Any) -> Schema:
        """The schema of what ``encode`` makes of a value of this type.

        Raises:
            TypeError: a type that the wire does not know.
        """
        origin = typing.get_origin(hint)
        if origin in (types.UnionType, typing.Union):
            return self._union(typing.get_args(hint))
        if origin is typing.Literal:
            return {"enum": [encode(choice) for choice in typing.get_args(hint)]}
        if origin is tuple:
            return self._tuple(typing.get_args(hint))
        if origin in (frozenset, set, list):
            return {"type": "array", "items": self.of(typing.get_args(hint)[0])}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(typing.get_args(hint)[1])}
        if hint is Any or hint is object:
            return {}
        if hint in _PLAIN:
            return _PLAIN[hint]
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return {"enum": [member.value for member in hint]}
        if is_dataclass(hint):
            return self._object(hint)
        raise TypeError(f"{hint!r} has no JSON form here")

    def _union(self, choices: tuple[Any, ...]) -> Schema:
        found: list[Schema] = []
        for choice in choices:
            if _is_keep(choice):
                continue  # an absent key
            schema = self.of(choice)
            if schema not in found:
                found.append(schema)
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _tuple(self, items: tuple[Any, ...]) -> Schema:
        if len(items) == 2 and items[1] is Ellipsis:
            return {"type": "array", "items": self.of(items[0])}
        count = len(items)
        return {
            "type": "array",
            "prefixItems": [self.of(item) for item in items],
            "minItems": count,
            "maxItems": count,
        }

    def _object(self, hint: Any) -> Schema:
        name = hint.__name__
        if name not in self.schemas:
            self.schemas[name] = {}  # types that hold themselves end here
            hints = typing.get_type_hints(hint)
            shown = [item for item in fields(hint) if item.init or item.default is MISSING]
            self.schemas[name] = {
                "type": "object",
                "properties": {item.name: self.of(hints[item.name]) for item in shown},
                "required": [item.name for item in shown if not _may_be_absent(hints[item.name])],
            }
        return {"$ref": f"#/components/schemas/{name}"}


def _is_keep(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal and KEEP in typing.get_args(hint)


def _may_be_absent(hint: Any) -> bool:
    """True for a field that may be KEEP."""
    return any(_is_keep(choice) for choice in typing.get_args(hint))
