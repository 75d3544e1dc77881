"""What perphd asks of systemd's manager object (org.freedesktop.systemd1(5)), and asking it with busctl(1).

``perphd.host.systemd_dbus`` asks the same over a connection of its own; a restore must do without that.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from perphd.domain.errors import Broken, Busy, Denied, Gone, Invalid, KernelError, Unsupported, kernel_error
from perphd.host.systemd_properties import Property

DESTINATION: Final = "org.freedesktop.systemd1"
OBJECT: Final = "/org/freedesktop/systemd1"
MANAGER: Final = "org.freedesktop.systemd1.Manager"


class NoAnswer(Busy):
    """systemd or the bus did not answer in time: the next request would most likely wait as long, for any unit."""


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
    """What perphd asks of systemd. All raise KernelError classes."""

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Set run-time properties of a unit, all or none."""

    def freeze(self, unit: str, frozen: bool) -> None:
        """Freeze or thaw every process of a unit."""

    def close(self) -> None:
        """Give the connection back; closing twice is fine."""


def bus_error(unit: str, doing: str, text: str) -> KernelError:
    """What systemd said, in the class that tells what to do about it."""
    kind, number = next(
        ((kind, number) for word, kind, number in _CLASSES if word in text), (Broken, errno.EIO)
    )
    return kind(
        unit, doing, number, detail=text, advice=f"systemctl status {unit} and its journal may tell more"
    )


class BusctlBus:
    """By the program busctl(1): slow (a process a call), but it needs nothing but systemd.

    ``run``: as ``subprocess.run``, for tests.
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

    def _call(self, member: str, signature: str, words: Sequence[str], unit: str) -> None:
        command = ["busctl", "--system", "--timeout=5", "--", "call", DESTINATION, OBJECT, MANAGER, member]
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

    def close(self) -> None:
        """Nothing is kept."""


def _words(item: Property) -> list[str]:
    """The value as busctl wants it: arrays begin with their length."""
    if isinstance(item.value, int):
        return [str(item.value)]
    if isinstance(item.value, bytes):
        return [str(len(item.value)), *(str(byte) for byte in item.value)]
    return [str(len(item.value)), *(word for path, number in item.value for word in (path, str(number)))]
