"""Domain values as JSON and back: the one place that knows how.

Unavailable is ``{"unavailable": reason}``, a CPU set its list text, an enum its value; KEEP is an absent key,
and numbers that are not finite are the texts ``inf``, ``-inf`` and ``nan``. Reading ignores keys that it does
not know, so that an older client understands a newer daemon.
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
from typing import Any, TypeVar

from perphd.domain.allocation import KEEP
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ParseError, PerphError
from perphd.domain.reading import Unavailable

T = TypeVar("T")
_NOT_FINITE = ("inf", "-inf", "nan")
_LONE = re.compile("[\ud800-\udfff]")


class WireError(PerphError):
    """A JSON value is not what the domain type needs; says which key and what was there."""

    def __init__(self, where: str, data: object, wanted: str) -> None:
        shown = repr(data)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(f"{where or 'the value'}: {shown} is not {wanted}")


def encode(value: object) -> Any:
    """The JSON value (dict, list, str, int, float, bool, None) of a domain value.

    Raises:
        TypeError: a type that no domain value holds.
    """
    match value:
        case None | bool():
            return value
        case Unavailable():
            return {"unavailable": value.reason}
        case CpuSet():
            return str(value)
        case enum.Enum():
            return value.value
        case int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(encode(key)): encode(item) for key, item in value.items()}
        case tuple() | list() | frozenset() | set():
            items = sorted(value) if isinstance(value, frozenset | set) else value
            return [encode(item) for item in items]
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {name: encode(item) for name, item in pairs if item is not KEEP}
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def json_of(value: Any) -> str:
    r"""Strict JSON: a number that is not finite is a mistake of ours, not something to send.

    Bytes of a kernel path that are no UTF-8 are sent as ``\udcff`` in plain characters, not as JSON's escape of the
    same look, which many readers refuse.
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return _LONE.sub(lambda lone: f"\\\\u{ord(lone[0]):04x}", text)
    return text


def decode(hint: type[T], data: object, where: str = "") -> T:
    """The domain value of type ``hint`` that encodes as ``data``.

    ``where`` is the dotted path of the value, for the error.

    Raises:
        WireError: ``data`` is no such value.
    """
    result: T = _decode(hint, data, where)
    return result


def _decode(hint: Any, data: object, where: str) -> Any:
    origin = _origin(hint)
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


def _origin(hint: Any) -> Any:
    return typing.get_origin(hint)


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
    raise TypeError(f"{hint!r} has no JSON form here")


def _decode_union(choices: tuple[Any, ...], data: object, where: str) -> Any:
    # Literals first: "max" and "idle" are also text.
    ordered = sorted(choices, key=lambda choice: _origin(choice) is not typing.Literal)
    problem: WireError | None = None
    for choice in ordered:
        try:
            return _decode(choice, data, where)
        except WireError as exc:
            problem = exc
    assert problem is not None
    raise problem


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
    return hint(**values)
