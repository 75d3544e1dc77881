"""Domain values as JSON and back, and the JSON schemas of their types, for API and store.

Unavailable is ``{"unavailable": reason}``, a CPU set its list text, an enum its value. KEEP is an absent key.
Non-finite numbers are the texts ``inf``, ``-inf`` and ``nan``. Decoding ignores unknown keys, so
that an older client understands a newer daemon.
"""

from __future__ import annotations

import enum
import functools
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeAlias, TypeVar

from perphd.domain.allocation import KEEP
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ParseError, PerphError
from perphd.domain.reading import Unavailable

T = TypeVar("T")
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
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})
_NOT_FINITE = ("inf", "-inf", "nan")
_LONE = re.compile("[\ud800-\udfff]")


class WireError(PerphError):
    """A JSON value does not fit the domain type; the text states the key and the value."""

    def __init__(self, where: str, data: object, wanted: str) -> None:
        shown = repr(data)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(f"{where or 'the value'}: {shown} is not {wanted}")


def encode(value: object) -> Any:
    """A domain value as a JSON value (dict, list, str, int, float, bool, None).

    Raises:
        TypeError: a type that no domain value holds.
    """
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if kind is tuple or kind is list:
        return [encode(item) for item in value]  # type: ignore[attr-defined]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Unavailable):
        return {"unavailable": value.reason}
    if isinstance(value, CpuSet):
        return str(value)
    if is_dataclass(kind):
        pairs = ((name, getattr(value, name)) for name in _names_of(kind))
        return {name: encode(item) for name, item in pairs if item is not KEEP}
    match value:
        case int() | str():
            return value
        case Mapping():
            return {str(encode(key)): encode(item) for key, item in value.items()}
        case frozenset() | set():
            return [encode(item) for item in sorted(value)]
        case tuple() | list():
            return [encode(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


@functools.cache
def _names_of(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def to_json(value: object) -> str:
    """One line of JSON that ``from_json`` reads back without loss. Raises TypeError like ``encode``."""
    return json.dumps(encode(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def from_json(text: str, hint: type[T]) -> T:
    """Parse the text that ``to_json`` made.

    Raises:
        WireError: the text is not JSON, or does not fit ``hint`` (damaged, or written by another version).
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise WireError("", text, f"JSON: {exc}") from exc
    return decode(hint, data, hint.__name__)


def json_of(value: Any) -> str:
    r"""Strict JSON text of a JSON value. Raises ValueError for numbers that are not finite.

    A byte of a kernel path that is not UTF-8 is sent as six plain characters such as ``\udcff``. As a JSON escape, the
    same characters would be a lone surrogate, which many readers refuse.
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return _LONE.sub(lambda lone: f"\\\\u{ord(lone[0]):04x}", text)
    return text


def decode(hint: type[T], data: object, where: str = "") -> T:
    """The domain value of type ``hint`` that encodes as ``data``.

    ``where``: dotted path of the value, for the error.

    Raises:
        WireError: ``data`` does not fit ``hint``.
    """
    result: T = _decode(hint, data, where)
    return result


def _decode(hint: Any, data: object, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(typing.get_args(hint), data, where)
    if origin is typing.Literal:
        for choice in typing.get_args(hint):
            if encode(choice) == data:
                return choice
        raise WireError(where, data, "one of " + ", ".join(str(encode(c)) for c in typing.get_args(hint)))
    if origin is tuple:
        return _decode_tuple(typing.get_args(hint), data, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise WireError(where, data, "an object")
        value = typing.get_args(hint)[1]
        return {key: _decode(value, item, f"{where}.{key}") for key, item in data.items()}
    if hint is Any:
        return data
    if hint is Unavailable:
        if not (isinstance(data, dict) and isinstance(data.get("unavailable"), str)):
            raise WireError(where, data, 'an object with a text "unavailable"')
        return Unavailable(data["unavailable"])
    if is_dataclass(hint) and hint is not CpuSet:
        return _decode_object(hint, data, where)
    return _decode_plain(hint, data, where)


def _decode_plain(hint: Any, data: object, where: str) -> Any:
    if hint is float:
        if isinstance(data, int | float) and not isinstance(data, bool):
            return data
        if isinstance(data, str) and data in _NOT_FINITE:
            return float(data)
        raise WireError(where, data, "a number")
    if hint in (str, bool, int):
        if type(data) is not hint:
            raise WireError(where, data, {str: "text", bool: "true or false", int: "a whole number"}[hint])
        return data
    if hint is type(None):
        if data is not None:
            raise WireError(where, data, "null")
        return None
    if hint is CpuSet:
        try:
            return CpuSet.parse(data if isinstance(data, str) else "not text")
        except ParseError as exc:
            raise WireError(where, data, "a CPU list such as 0-3,8") from exc
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(data)
        except ValueError as exc:
            raise WireError(where, data, "one of " + ", ".join(str(member.value) for member in hint)) from exc
    raise TypeError(f"{hint!r} cannot be decoded from JSON")


def _decode_union(choices: tuple[Any, ...], data: object, where: str) -> Any:
    if type(data) is float and float in choices:
        return data
    if data is None and type(None) in choices:
        return None
    problem: WireError | None = None
    for choice in _ordered(choices):
        try:
            return _decode(choice, data, where)
        except WireError as exc:
            problem = exc
    assert problem is not None
    raise problem


@functools.cache
def _ordered(choices: tuple[Any, ...]) -> tuple[Any, ...]:
    """The types of a union, literals first, because "max" and "idle" are also valid text."""
    return tuple(sorted(choices, key=lambda choice: str(typing.get_origin(choice)) != str(typing.Literal)))


def _decode_tuple(items: tuple[Any, ...], data: object, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise WireError(where, data, "a list")
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_decode(items[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(data) != len(items):
        raise WireError(where, data, f"a list of {len(items)} values")
    return tuple(
        _decode(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(items, data, strict=True))
    )


@functools.cache
def _fields_of(hint: type) -> tuple[tuple[str, Any, bool], ...]:
    hints = typing.get_type_hints(hint)
    return tuple(
        (f.name, hints[f.name], f.default is MISSING and f.default_factory is MISSING)
        for f in fields(hint)
        if f.init
    )


def _decode_object(hint: Any, data: object, where: str) -> Any:
    if not isinstance(data, dict):
        raise WireError(where, data, "an object")
    values = {}
    for name, item_hint, required in _fields_of(hint):
        if name in data:
            values[name] = _decode(item_hint, data[name], f"{where}.{name}" if where else name)
        elif required:
            raise WireError(where, data, f"complete: {name} is missing")
    try:
        return hint(**values)
    except ValueError as exc:
        raise WireError(where, data, f"accepted: {exc}") from exc


class Components:
    """JSON schemas of domain types. Each dataclass has one schema, under its name."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}

    def of(self, hint: Any) -> Schema:
        """The schema of the JSON that ``encode`` produces for this type.

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
        raise TypeError(f"{hint!r} has no JSON schema")

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
            self.schemas[name] = {}  # recursive types end here
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
