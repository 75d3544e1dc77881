"""Calls to systemd's manager object (org.freedesktop.systemd1(5)), and an implementation with busctl(1).

``perphd.host.systemd_dbus`` makes the same calls with dbus-fast; restore must work without that package.
"""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from perphd.domain.errors import Broken, Busy, Denied, Gone, Invalid, KernelError, Unsupported, kernel_error
from perphd.host.systemd_properties import Property

DESTINATION: Final = "org.freedesktop.systemd1"
OBJECT: Final = "/org/freedesktop/systemd1"
MANAGER: Final = "org.freedesktop.systemd1.Manager"
PROPERTIES: Final = "org.freedesktop.DBus.Properties"


class NoAnswer(Busy):
    """systemd or the bus did not answer in time.

    The next request, for any unit, would probably wait as long.
    """


_CLASSES: Final[tuple[tuple[str, type[KernelError], int], ...]] = (
    ("AccessDenied", Denied, errno.EACCES),
    ("InteractiveAuthorizationRequired", Denied, errno.EACCES),
    ("NoSuchUnit", Gone, errno.ENOENT),
    ("not found", Gone, errno.ENOENT),
    ("Access denied", Denied, errno.EACCES),
    ("unknown property", Unsupported, errno.EOPNOTSUPP),
    ("UnknownMethod", Unsupported, errno.EOPNOTSUPP),
    ("UnknownProperty", Unsupported, errno.EOPNOTSUPP),
    ("PropertyReadOnly", Unsupported, errno.EOPNOTSUPP),
    ("NoReply", NoAnswer, errno.ETIMEDOUT),
    ("timed out", NoAnswer, errno.ETIMEDOUT),
    ("InvalidArgs", Invalid, errno.EINVAL),
    ("out of range", Invalid, errno.EINVAL),
    ("Unexpected message contents", Invalid, errno.EINVAL),
)


class Bus(Protocol):
    """The calls that perphd makes. All raise KernelError classes."""

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Set run-time properties of a unit, all or none."""

    def freeze(self, unit: str, frozen: bool) -> None:
        """Freeze or thaw all processes of a unit."""

    def close(self) -> None:
        """Close the connection; closing twice is allowed."""


class CallingBus(Bus, Protocol):
    """A bus that can also call any other method of systemd."""

    def call(
        self, member: str, signature: str, body: Sequence[Any], unit: str, path: str = OBJECT
    ) -> list[Any]:
        """Call a method of the manager or, for another object, of its properties interface; returns the
        answer.

        ``body``: plain values; a variant is a ``Variant``. ``unit``: the unit concerned, for errors.
        """


@dataclass(frozen=True, slots=True)
class Variant:
    """A value with its D-Bus type."""

    signature: str
    value: Any


def parts_of(signature: str) -> list[str]:
    """Split a signature into complete types: ``sa(sv)t`` is s, a(sv) and t."""
    parts: list[str] = []
    place = 0
    while place < len(signature):
        begin = place
        while signature[place] == "a":
            place += 1
        depth = 0
        while True:
            depth += {"(": 1, ")": -1}.get(signature[place], 0)
            place += 1
            if depth == 0:
                break
        parts.append(signature[begin:place])
    return parts


def bus_error(unit: str, doing: str, text: str) -> KernelError:
    """Convert systemd's error text to the matching error class."""
    kind, number = next(
        ((kind, number) for word, kind, number in _CLASSES if word in text), (Broken, errno.EIO)
    )
    return kind(unit, doing, number, detail=text, advice=f"see systemctl status {unit} and its journal")


class BusctlBus:
    """Calls through the program busctl(1): slow (one process per call), but requires only systemd.

    ``run``: replaces ``subprocess.run`` in tests.
    """

    def __init__(self, run: Callable[..., Any] = subprocess.run) -> None:
        self._run = run

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """See ``Bus``."""
        words = [unit, "true", str(len(properties))]
        for item in properties:
            words += [item.name, item.signature, *_words(item)]
        self._call("SetUnitProperties", "sba(sv)", words, unit)

    def freeze(self, unit: str, frozen: bool) -> None:
        """See ``Bus``."""
        self._call("FreezeUnit" if frozen else "ThawUnit", "s", [unit], unit)

    def call(
        self, member: str, signature: str, body: Sequence[Any], unit: str, path: str = OBJECT
    ) -> list[Any]:
        """See ``CallingBus``."""
        words = [
            word
            for part, value in zip(parts_of(signature), body, strict=True)
            for word in _busctl_words(part, value)
        ]
        said = str(self._call(member, signature, words, unit, path, ["--json=short"]).stdout).strip()
        try:
            return [_unwrapped(value) for value in json.loads(said)["data"]] if said else []
        except (ValueError, KeyError, TypeError) as exc:
            raise Broken(unit, member, errno.EIO, detail=f"busctl answered {said[:200]!r}") from exc

    def _call(
        self,
        member: str,
        signature: str,
        words: Sequence[str],
        unit: str,
        path: str = OBJECT,
        options: Sequence[str] = (),
    ) -> Any:
        interface = MANAGER if path == OBJECT else PROPERTIES
        command = ["busctl", "--system", "--timeout=5", *options, "--"]
        command += ["call", DESTINATION, path, interface, member]
        try:
            done = self._run(
                [*command, signature, *words], capture_output=True, text=True, timeout=10, check=False
            )
        except subprocess.TimeoutExpired as exc:
            raise bus_error(unit, member, "busctl timed out") from exc
        except OSError as exc:
            if isinstance(exc, FileNotFoundError | PermissionError):
                raise Unsupported(
                    unit, member, exc.errno or errno.ENOENT, advice="install busctl (systemd)"
                ) from exc
            raise kernel_error(exc, unit, member, advice="busctl could not be started") from exc
        if done.returncode:
            raise bus_error(unit, member, done.stderr.strip() or f"busctl exit status {done.returncode}")
        return done

    def close(self) -> None:
        """Do nothing, because nothing is kept open."""


def _busctl_words(signature: str, value: Any) -> list[str]:
    """A value as busctl's words: an array begins with its length, a variant with its type."""
    if signature[0] == "a":
        return [str(len(value)), *(word for each in value for word in _busctl_words(signature[1:], each))]
    if signature[0] == "(":
        return [
            word
            for part, each in zip(parts_of(signature[1:-1]), value, strict=True)
            for word in _busctl_words(part, each)
        ]
    if signature == "v":
        return [value.signature, *_busctl_words(value.signature, value.value)]
    return ["true" if value else "false"] if signature == "b" else [str(value)]


def _unwrapped(value: Any) -> Any:
    """A value of busctl's JSON without the types of variants."""
    if isinstance(value, dict) and value.keys() == {"type", "data"}:
        return _unwrapped(value["data"])
    if isinstance(value, dict):
        return {name: _unwrapped(each) for name, each in value.items()}
    return [_unwrapped(each) for each in value] if isinstance(value, list) else value


def _words(item: Property) -> list[str]:
    """The value as busctl's words; arrays begin with their length."""
    if isinstance(item.value, int):
        return [str(item.value)]
    if isinstance(item.value, bytes):
        return [str(len(item.value)), *(str(byte) for byte in item.value)]
    return [str(len(item.value)), *(word for path, number in item.value for word in (path, str(number)))]
