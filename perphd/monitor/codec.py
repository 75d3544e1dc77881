"""Domain values as JSON and back, without loss: what the store keeps of decisions can be replayed.

JSON has no infinities and no NaN; they are written as the texts ``inf``, ``-inf`` and ``nan``.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from perphd.domain.decision import Decision, Outcome
from perphd.domain.errors import PerphError

T = TypeVar("T")
_NO_FIT: Final = object()
_SPECIAL = frozenset({"inf", "-inf", "nan"})


class DecodeError(PerphError, ValueError):
    """A record does not have the form of its type: written by another version, or damaged."""


def to_json(value: object) -> str:
    """A dataclass of the domain as one line of JSON."""
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def from_json(text: str, kind: type[T]) -> T:
    """The value that ``to_json`` made ``text`` of.

    Raises:
        DecodeError: it is not JSON, or does not have the form of ``kind``.
    """
    try:
        data = json.loads(text)
    except ValueError as exc:
        raise DecodeError(f"a stored {kind.__name__} is not JSON: {exc}") from exc
    return cast("T", _typed(data, kind, kind.__name__))


def decode_decision(record: str) -> Decision:
    """A row's ``record`` of the table decisions. Raises DecodeError."""
    return from_json(record, Decision)


def decode_outcome(record: str) -> Outcome:
    """A row's ``record`` of the table outcomes. Raises DecodeError."""
    return from_json(record, Outcome)


def _plain(value: Any) -> Any:
    # Enum first: a StrEnum is text as well.
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} is no value of the domain")


def _typed(data: Any, kind: Any, where: str) -> Any:
    value = _try(data, kind, where)
    if value is _NO_FIT:
        raise DecodeError(f"stored {where}: {str(data)[:80]!r} does not fit")
    return value


def _try(data: Any, kind: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        members = sorted(get_args(kind), key=_rank)
        return next((found for m in members if (found := _try(data, m, where)) is not _NO_FIT), _NO_FIT)
    if origin is Literal:
        return next((choice for choice in get_args(kind) if _plain(choice) == data), _NO_FIT)
    if origin is tuple:
        return _tuple(data, get_args(kind), where)
    return _scalar_or_class(data, kind, where)


def _rank(member: Any) -> int:
    """Order of trying a union's members: texts with a meaning of their own before numbers that accept ``inf``."""
    return 1 if member is float else 0


def _tuple(data: Any, items: tuple[Any, ...], where: str) -> Any:
    if not isinstance(data, list):
        return _NO_FIT
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_typed(item, items[0], where) for item in data)
    if len(items) != len(data):
        return _NO_FIT
    return tuple(_typed(item, kind, where) for item, kind in zip(data, items, strict=True))


def _scalar_or_class(data: Any, kind: Any, where: str) -> Any:
    if kind is NoneType:
        return None if data is None else _NO_FIT
    if kind is bool or kind is str:
        return data if isinstance(data, kind) else _NO_FIT
    if kind is int:
        return data if isinstance(data, int) and not isinstance(data, bool) else _NO_FIT
    if kind is float:
        number = isinstance(data, int | float) and not isinstance(data, bool)
        return float(data) if number or (isinstance(data, str) and data in _SPECIAL) else _NO_FIT
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next((member for member in kind if member.value == data), _NO_FIT)
    if isinstance(kind, type) and is_dataclass(kind):
        return _instance(data, kind, where)
    raise TypeError(f"{where}: {kind} is no type of the domain")


def _instance(data: Any, kind: type, where: str) -> Any:
    if not isinstance(data, dict):
        return _NO_FIT
    hints = _hints(kind)
    if not data.keys() <= hints.keys():
        return _NO_FIT
    values = {name: _typed(item, hints[name], f"{where}.{name}") for name, item in data.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as exc:  # a field is missing, or refused by the class
        raise DecodeError(f"stored {where}: {exc}") from exc


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
