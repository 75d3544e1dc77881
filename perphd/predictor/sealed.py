"""Sealed files: bounded dataclasses as versioned JSON with a checksum, never code.

A file is one object: ``format``, ``version``, ``sha256`` and ``body``; the checksum covers the body's canonical JSON
(keys sorted, no spaces). Models and profiles come from other hosts as well, so this codec is stricter than
``domain.wire``: a number outside its bounds, a list that is too long, or an unknown key is refused with its path.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from perphd.domain.allocation import IDLE, Weight
from perphd.domain.errors import PerphError

T = TypeVar("T")
_MAX_TEXT = 4096


class SealedError(PerphError):
    """A value that does not fit its type; the message names its path."""


def given() -> Any:
    """A field without bounds, which every file has."""
    return field()


def number(low: float, high: float, default: Any = MISSING) -> Any:
    """A field for a number from ``low`` to ``high``. ``default``: for files from before the field was added."""
    return field(default=default, metadata={"low": low, "high": high})


def items(low: int, high: int, each: float = math.inf, default: Any = MISSING) -> Any:
    """A field for a list of ``low`` to ``high`` items, whose numbers are from -``each`` to ``each``."""
    return field(default=default, metadata={"fewest": low, "most": high, "low": -each, "high": each})


@dataclass(frozen=True, slots=True)
class SealedFormat:
    """One kind of file.

    ``name``: its ``format``. ``noun``: for messages. ``version`` is written, ``readable`` ones are read. ``error``:
    raised for a text that is refused.
    """

    name: str
    noun: str
    version: int
    readable: Collection[int]
    most_bytes: int
    error: type[PerphError]

    def text(self, value: object) -> str:
        """The text of a value, ending with a newline. Raises ``error`` if it could not be read again."""
        body = _encode(value)
        try:
            decode(type(value), body)
            canonical = _canonical(body)
        except SealedError as exc:
            raise self.error(str(exc)) from exc
        except ValueError as exc:
            raise self.error(f"the {self.noun} holds a number that is not finite: {exc}") from exc
        head = json.dumps({"format": self.name, "version": self.version, "sha256": _digest(canonical)})
        text = f'{head[:-1]}, "body": {canonical}}}\n'
        self._check_size(text)
        return text

    def value(self, hint: type[T], text: str | bytes) -> T:
        """The value of a text. Raises ``error`` for any text that the method ``text`` cannot have produced."""
        self._check_size(text)
        try:
            data = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as exc:
            reason = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
            raise self.error(f"it is not JSON: {reason}") from exc
        if not isinstance(data, dict) or data.get("format") != self.name:
            raise self.error(f"it is not a perphd {self.noun}: its format is not {self.name!r}")
        version = data.get("version")
        if type(version) is not int or version not in self.readable:
            known = f"version {self.version}"
            if len(self.readable) > 1:
                known = f"versions {min(self.readable)} to {max(self.readable)}"
            raise self.error(f"its version is {_shown(version)}; this perphd reads {known}")
        if extra := data.keys() - {"format", "version", "sha256", "body"}:
            raise self.error(f"unknown key {_shown(min(extra))}")
        body = data.get("body")
        try:
            right = isinstance(body, dict) and data.get("sha256") == _digest(_canonical(body))
        except (ValueError, RecursionError) as exc:  # a number such as 1e999 is read as infinite
            raise self.error(f"it holds an invalid value: {exc}") from exc
        if not right:
            raise self.error("its checksum is wrong: the text is damaged or was edited")
        try:
            return decode(hint, body)
        except SealedError as exc:
            raise self.error(str(exc)) from exc

    def _check_size(self, text: str | bytes) -> None:
        if len(text) > self.most_bytes:
            raise self.error(f"{len(text)} bytes exceed the limit for a {self.noun} ({self.most_bytes})")


def decode(hint: type[T], data: object, where: str = "") -> T:
    """The dataclass that ``data`` describes. ``where``: its path, for messages.

    Raises:
        SealedError: a value is missing, unknown, of the wrong kind or out of bounds.
    """
    result: T = _decode_object(hint, data, where)
    return result


def _canonical(body: object) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _encode(value: object) -> Any:
    if value is IDLE:
        return "idle"
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {item.name: item.metadata.get("hint", hints[item.name]) for item in fields(cls)}


def _decode(hint: Any, data: object, where: str, meta: Any = types.MappingProxyType({})) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return _decode_object(hint, data, where)
    if typing.get_origin(hint) is tuple:
        return _decode_list(typing.get_args(hint)[0], data, where, meta)
    choices = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if types.NoneType in choices and data is None:
        return None
    if inner := next((c for c in choices if isinstance(c, type) and is_dataclass(c)), None):
        return _decode_object(inner, data, where)
    if hint == Weight and data == "idle":
        return IDLE
    low, high = meta.get("low", -math.inf), meta.get("high", math.inf)
    if bool in choices and isinstance(data, bool):
        return data
    if str in choices and isinstance(data, str) and len(data) <= _MAX_TEXT:
        return data
    if int in choices and type(data) is int and low <= data <= high:
        return data
    if float in choices and type(data) in (int, float) and low <= typing.cast(float, data) <= high:
        return float(typing.cast(float, data))
    bounds = f" from {low:.10g} to {high:.10g}" if math.isfinite(low) else ""
    wanted = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}
    allowed = next(name for kind, name in wanted.items() if kind in choices)
    raise SealedError(f"{where} is {_shown(data)}, not {allowed}{bounds}")


def _decode_object(cls: type, data: object, where: str) -> Any:
    if not isinstance(data, dict):
        raise SealedError(f"{where or 'the body'} is {_shown(data)}, not an object")
    known = {f.name: f for f in fields(cls)}
    if extra := data.keys() - known.keys():
        raise SealedError(f"{where or 'the body'} has the unknown key {_shown(min(extra))}")
    values = {}
    for name, item in known.items():
        path = f"{where}.{name}" if where else name
        if name not in data:
            if item.default is not MISSING:
                continue  # added after the file's version: the default applies
            raise SealedError(f"{path} is missing")
        values[name] = _decode(_hints(cls)[name], data[name], path, item.metadata)
    return cls(**values)


def _decode_list(hint: Any, data: object, where: str, meta: Any) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise SealedError(f"{where} is {_shown(data)}, not a list")
    if not meta["fewest"] <= len(data) <= meta["most"]:
        raise SealedError(f"{where} has {len(data)} items, not {meta['fewest']} to {meta['most']}")
    return tuple(_decode(hint, item, f"{where}[{i}]", meta) for i, item in enumerate(data))


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # integers with thousands of digits have no text
        return "a number with too many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
