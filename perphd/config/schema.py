"""Strict reading of TOML tables into frozen dataclasses. A refusal names file, key, value and the allowed values.

The fields of a dataclass are the keys of its table; a field without default is a required key. Metadata holds
the rest: ``min`` and ``max`` (inclusive), ``unit``, ``doc``, ``key`` (the name in the file, if not the
field's), ``kind`` (the format of a text) and ``expert`` (rarely needed). docs/config.md and perphd.conf(5)
are generated from the same metadata.

Expert keys have a table of their own: ``[tuning.TABLE]`` for those of ``[TABLE]``, ``[lra.tuning]`` for those of
``[[lra]]``. The class attribute ``REPLACED`` of a table maps each former key to what replaces it.
"""

from __future__ import annotations

import enum
import functools
import math
import os
import re
import shlex
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from perphd.config.match import ALLOWED as MATCH_ALLOWED
from perphd.config.match import parse_match
from perphd.domain.endpoint import ALLOWED as ENDPOINT_ALLOWED
from perphd.domain.endpoint import endpoint_text, parse_endpoint
from perphd.domain.errors import ConfigError, ParseError
from perphd.domain.incident import IncidentKind
from perphd.domain.units import parse_size_bytes
from perphd.domain.window import ALLOWED as WINDOW_ALLOWED
from perphd.domain.window import parse_window
from perphd.domain.workload import Kind
from perphd.host.cgroup.hierarchy import check_cgroup_path
from perphd.host.cgroup.knobs import MAX_EGRESS_BYTES, MIN_EGRESS_BYTES, check_network_device

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}")
_UNIT = re.compile(r"[^/]+\.(?:service|scope|slice)")
_GROUP = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_INDEX = re.compile(r"\[\d+\]")
_SHOWN = 80
TUNING: Final = "tuning"
"""The table of expert keys; also the name of the subtable of one workload or receiver."""
CONTENDED: Final = ("disks", "links", "memory_bandwidth")
"""The devices of ``[contention]``."""
SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket (sun_path holds 108 bytes with its terminating zero)."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table, as read from a dataclass field. ``default`` None: no default, or required."""

    name: str
    field: str
    hint: Any
    required: bool
    default: Any
    low: float | None
    high: float | None
    unit: str
    doc: str
    kind: str
    expert: bool

    @property
    def type_name(self) -> str:
        """The TOML type, for documents and refusals."""
        if self.kind in ("size", "rate"):
            return "size"
        hint = _plain(self.hint)
        if typing.get_origin(hint) is typing.Literal or _is_enum(hint):
            return "string"
        return {bool: "boolean", int: "integer", float: "number"}.get(hint, "string")

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.kind:
            return _KINDS[self.kind].allowed
        hint = _plain(self.hint)
        if choices := _choices(hint):
            return ", ".join(f'"{choice}"' for choice in choices)
        if hint is bool:
            return "true, false"
        if hint is str:
            return "text"
        noun = "a whole number" if hint is int else "a number"
        unit = f" {self.unit}" if self.unit else ""
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low:.10g} to {self.high:.10g}{unit}"
        return noun + unit


@dataclass(frozen=True, slots=True)
class _Text:
    """A kind of text: ``read`` returns the value or raises ParseError/ValueError."""

    read: Callable[[str], Any]
    allowed: str


def setting(
    default: Any = MISSING,
    doc: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    kind: str = "",
    key: str = "",
    expert: bool = False,
) -> Any:
    """A dataclass field that is a key of a table. Without ``default`` the key is required."""
    metadata = {"doc": doc, "unit": unit, "kind": kind, "key": key, "expert": expert}
    if low is not None:
        metadata |= {"min": low}
    if high is not None:
        metadata |= {"max": high}
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


@functools.cache
def keys_of(table: type) -> tuple[Key, ...]:
    """The keys of a table, in the order of its fields."""
    hints = typing.get_type_hints(table)
    found = []
    for item in fields(table):
        meta = item.metadata
        required = item.default is MISSING and item.default_factory is MISSING
        default = None if item.default is MISSING else item.default
        found.append(
            Key(
                name=meta.get("key") or item.name,
                field=item.name,
                hint=hints[item.name],
                required=required,
                default=default,
                low=meta.get("min"),
                high=meta.get("max"),
                unit=meta.get("unit", ""),
                doc=meta.get("doc", ""),
                kind=meta.get("kind", ""),
                expert=meta.get("expert", False),
            )
        )
    return tuple(found)


def usual_keys(table: type) -> tuple[Key, ...]:
    """The keys that operators need."""
    return tuple(key for key in keys_of(table) if not key.expert)


def expert_keys(table: type) -> tuple[Key, ...]:
    """The keys of its tuning table."""
    return tuple(key for key in keys_of(table) if key.expert)


def read_values(
    table: type,
    raw: object,
    source: str,
    prefix: str,
    *,
    keys: Iterable[Key] | None = None,
    others: str = "",
    extra: Iterable[str] = (),
) -> dict[str, Any]:
    """Check the keys in ``raw`` and return their values by field name; absent keys stay absent.

    Args:
        table: the dataclass whose fields are the keys.
        raw: content of the file.
        source: the file's name, for refusals.
        prefix: the table's name, e.g. ``daemon`` or ``lra[0]``.
        keys: the keys accepted here; None: all keys of ``table``.
        others: the name of the table to which the other keys belong.
        extra: further keys that the caller reads itself.

    Raises:
        ConfigError: not a table, an unknown, misplaced or missing key, or a value that is refused.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError(source, prefix, f"{show(raw)} is not a table", "a table of keys")
    keys_here = {key.name: key for key in (keys_of(table) if keys is None else keys)}
    elsewhere = [key.name for key in keys_of(table) if key.name not in keys_here]
    replaced: Mapping[str, str] = getattr(table, "REPLACED", {})
    known = [*keys_here, *extra]
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in known:
            where = f"{prefix}.{name}"
            if name in elsewhere:
                raise ConfigError(source, where, f"is now {others}.{name}", f"{name} below {header(others)}")
            if name in replaced:
                raise ConfigError(source, where, "has been replaced", replaced[name])
            near = [
                f"{others}.{key}" for key in close_names(str(name), [*known, *elsewhere]) if key in elsewhere
            ]
            if near:
                allowed = ", ".join(known or near)
                raise ConfigError(source, where, f"unknown key; did you mean {near[0]!r}?", allowed)
            raise unknown_key(source, where, str(name), known or [f"{others}.{key}" for key in elsewhere])
        if name in keys_here:
            values[keys_here[name].field] = read_value(keys_here[name], value, source, f"{prefix}.{name}")
    for key in keys_here.values():
        if key.required and key.name not in raw:
            raise ConfigError(source, f"{prefix}.{key.name}", "is missing", key.allowed)
    return values


def read_item(
    table: type,
    raw: object,
    source: str,
    prefix: str,
    *,
    extra: Iterable[str] = (),
    tuning_extra: Iterable[str] = (),
) -> dict[str, Any]:
    """Like ``read_values``, for one of several tables; its expert keys are in its own subtable ``tuning``.

    ``tuning_extra``: further keys of that subtable that the caller reads itself.

    Raises:
        ConfigError: as ``read_values``.
    """
    place = f"{prefix}.{TUNING}"
    values = read_values(
        table, raw, source, prefix, keys=usual_keys(table), others=place, extra=(*extra, TUNING)
    )
    assert isinstance(raw, Mapping)
    if TUNING in raw:
        keys = expert_keys(table)
        values |= read_values(table, raw[TUNING], source, place, keys=keys, others=prefix, extra=tuning_extra)
    return values


def header(prefix: str) -> str:
    """A table's header, from its path: ``[tuning.daemon]``, ``[[lra]]``, ``[lra.tuning]``."""
    name = _INDEX.sub("", prefix)
    return f"[[{name}]]" if prefix.endswith("]") else f"[{name}]"


def read_value(key: Key, value: object, source: str, where: str) -> Any:
    """Check one value against its key.

    Raises:
        ConfigError: wrong type, out of bounds, or text of the wrong format.
    """
    hint = _plain(key.hint)
    if key.kind or hint is str:
        return _text(key, value, source, where)
    if choices := _choices(hint):
        if not isinstance(value, str) or value not in choices:
            close = _suggestion(value, choices)
            raise ConfigError(source, where, f"{show(value)} is not an accepted value{close}", key.allowed)
        return hint(value) if _is_enum(hint) else value
    if hint is bool:
        if not isinstance(value, bool):
            raise ConfigError(source, where, f"{show(value)} is neither true nor false", key.allowed)
        return value
    return _number(key, hint, value, source, where)


def file_value(key: Key, value: Any) -> Any:
    """The value in the form of a configuration file, where sizes and choices are text."""
    if key.kind in ("size", "rate"):
        return size_text(value)
    return str(value.value) if isinstance(value, enum.Enum) else value


def size_text(count: int) -> str:
    """A size such as ``512M`` that reads back as exactly this number of bytes."""
    for suffix, factor in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count and count % factor == 0:
            return f"{count // factor}{suffix}"
    return str(count)


def unknown_key(source: str, where: str, name: str, known: Iterable[str]) -> ConfigError:
    """The refusal of a key that does not exist, with the closest one that does."""
    names = list(known)
    return ConfigError(source, where, f"unknown key{_suggestion(name, names)}", ", ".join(names))


def show(value: object) -> str:
    """A value for a refusal: on one line, truncated."""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4300 digits; a table nested too deeply
        text = f"a very long {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _number(key: Key, hint: Any, value: object, source: str, where: str) -> int | float:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole and (hint is int or not isinstance(value, float)):
        noun = "a whole number" if hint is int else "a number"
        raise ConfigError(source, where, f"{show(value)} is not {noun}", key.allowed)
    assert isinstance(value, int | float)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(source, where, f"{value} is not a finite number", key.allowed)
    if (key.low is not None and value < key.low) or (key.high is not None and value > key.high):
        raise ConfigError(source, where, f"{show(value)} is out of range", key.allowed)
    return value if hint is int else float(value)


def _text(key: Key, value: object, source: str, where: str) -> Any:
    if not isinstance(value, str):
        raise ConfigError(source, where, f"{show(value)} is not text", key.allowed)
    kind = _KINDS[key.kind or "text"]
    try:
        return kind.read(value)
    except ParseError as exc:
        raise ConfigError(source, where, f"{show(value)} is not {exc.what}", exc.allowed) from exc
    except ValueError as exc:
        raise ConfigError(source, where, f"{show(value)} {exc}", kind.allowed) from exc


def _printable(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", text):
        raise ValueError("contains control characters")
    return text


def _path(text: str) -> str:
    text = os.path.expanduser(text) if text.startswith("~/") else text
    if not _printable(text).startswith("/") or "/../" in f"{text}/" or len(text) > 4000:
        raise ValueError("is not an absolute path of at most 4000 characters without '..'")
    return text.rstrip("/") or "/"


def _optional_path(text: str) -> str:
    return _path(text) if text else ""


def _socket(text: str) -> str:
    path = _path(text)
    if len(path.encode()) > SOCKET_PATH_BYTES:
        raise ValueError(f"has more than the {SOCKET_PATH_BYTES} bytes allowed for a Unix socket")
    return path


def _cgroup(text: str) -> str:
    path = _printable(text)
    if path.startswith("/sys/fs/cgroup/"):
        raise ValueError("begins with a mount point: leave out /sys/fs/cgroup, and a controller's name")
    if _UNIT.fullmatch(path):
        raise ValueError(f'is a unit, not a path: write match = "unit:{path}" instead of cgroup')
    return check_cgroup_path(path)


def _match(text: str) -> str:
    kind, _, name = text.partition(":")
    if kind in ("service", "systemd") and name:
        unit = name if "." in name else f"{name}.service"
        raise ValueError(f'is not a valid match; did you mean "unit:{unit}"?')
    return str(parse_match(text))


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("is not a name")
    return text


def _group(text: str) -> str:
    if not _GROUP.fullmatch(text):
        raise ValueError("is not the name of a group")
    return text


def _window(text: str) -> str:
    parse_window(text)
    return text


def _url(text: str) -> str:
    parts = urlsplit(_printable(text))
    if text and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("is not an http:// or https:// URL")
    return text


def _command(text: str) -> str:
    try:
        words = shlex.split(_printable(text))
    except ValueError as exc:
        raise ValueError(f"cannot be parsed: {exc}") from exc
    if text and not (words and words[0].startswith("/")):
        raise ValueError("does not begin with an absolute path")
    return text


def _incidents(text: str) -> str:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in tuple(IncidentKind)]
    if unknown:
        raise ValueError(f"names {unknown[0]!r}, which is not a kind of notice")
    return ",".join(dict.fromkeys(names))


def _chosen(text: str, of: Iterable[str]) -> str:
    names, known = [name.strip() for name in text.split(",") if name.strip()], [str(name) for name in of]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"names {show(unknown[0])}, which is not accepted{_suggestion(unknown[0], known)}")
    return ",".join(dict.fromkeys(names))


def _endpoint(text: str) -> str:
    return endpoint_text(*parse_endpoint(text)) if text else ""


def _devices(text: str) -> str:
    return ",".join(check_network_device(name.strip()) for name in text.split(",") if name.strip())


def _rate(text: str) -> int:
    rate_bytes = parse_size_bytes(text)
    if rate_bytes and not MIN_EGRESS_BYTES <= rate_bytes <= MAX_EGRESS_BYTES:
        raise ValueError("is out of range")
    return rate_bytes


_KINDS: Mapping[str, _Text] = {
    "text": _Text(_printable, "text without control characters"),
    "size": _Text(
        parse_size_bytes,
        'a whole number in quotes, optionally followed by K, M, G or T (powers of 1024; also Ki, KiB ...), e.g. "512M"',
    ),
    "path": _Text(_path, "an absolute path without '..'; ~/ is the home of the user who starts perphd"),
    "optional-path": _Text(_optional_path, "an absolute path without '..', or \"\" for the default"),
    "socket": _Text(_socket, f"an absolute path of at most {SOCKET_PATH_BYTES} bytes"),
    "cgroup": _Text(
        _cgroup,
        "an absolute path below the cgroup root such as /system.slice/mariadb.service, "
        "without '.', '..' or empty parts",
    ),
    "match": _Text(_match, MATCH_ALLOWED),
    "name": _Text(_name, "1 to 63 letters, digits and _ . @ -, beginning with a letter or digit"),
    "devices": _Text(_devices, 'names of network devices between commas, e.g. "eth0"'),
    "rate": _Text(
        _rate, f'"0", or at least {MIN_EGRESS_BYTES} bytes per second, as a size in quotes, e.g. "100M"'
    ),
    "window": _Text(_window, WINDOW_ALLOWED),
    "optional-command": _Text(
        _command, "the absolute path of a program, with arguments quoted as in a shell"
    ),
    "optional-url": _Text(_url, "an http:// or https:// URL"),
    "incidents": _Text(_incidents, f"one or more of {', '.join(IncidentKind)}, between commas"),
    "endpoint": _Text(_endpoint, ENDPOINT_ALLOWED),
    "contended": _Text(
        lambda text: _chosen(text, CONTENDED),
        f'one or more of {", ".join(CONTENDED)}, between commas; "" for none',
    ),
    "kinds": _Text(lambda text: _chosen(text, Kind), '"lra", "batch" or "lra,batch"; "" for none'),
    "bands": _Text(
        lambda text: _chosen(text, ("gold", "silver")), '"gold", "silver" or "gold,silver"; "" for none'
    ),
    "group": _Text(_group, "the name of a Unix group: lower-case letters, digits, _ and -"),
}


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """The known name that was probably meant; empty if none is close."""
    import difflib  # needed only after a mistake

    return difflib.get_close_matches(name[:100], list(known), n=1)


def _suggestion(value: object, known: Iterable[str]) -> str:
    close = close_names(value, known) if isinstance(value, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _plain(hint: Any) -> Any:
    """``X`` of ``X | None``; any other hint unchanged."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        return inner[0]
    return hint


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, enum.Enum)


def _choices(hint: Any) -> tuple[str, ...]:
    if typing.get_origin(hint) is typing.Literal:
        return tuple(str(choice) for choice in typing.get_args(hint))
    if _is_enum(hint):
        return tuple(str(member.value) for member in hint)
    return ()
