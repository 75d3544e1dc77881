"""What can go wrong with resctrl, in classes by what the caller has to do about it.

The kernel answers a bad request with an errno, and often with a sentence in ``info/last_cmd_status``. That file is
global and is not cleared by every operation, so a sentence there may belong to an earlier request, maybe another
program's. An error carries the sentence only where it is known to belong to the failed request (``rdt.access``).
"""

from __future__ import annotations

import errno as _errno
import os
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rdt.schemata import Schemata

_SHOWN_VALUE_CHARS = 200


class ResctrlError(Exception):
    """A request to resctrl failed.

    Attributes:
        doing: what was tried, as a verb phrase: ``writing``, ``making the group``.
        path: the file or directory of the request.
        value: what was to be written; None where nothing was.
        errno: the kernel's number; None when rdt itself refused the request.
        status: the kernel's sentence about this very request; empty when it gave none.
        reason: rdt's own explanation; may be empty.
        actual: where a schemata was being changed: what it was read to be after the failure. None: it could not be
            read, or no schemata was being changed.
    """

    advice: ClassVar[str] = ""

    def __init__(
        self,
        path: str,
        *,
        doing: str = "using",
        value: str | None = None,
        errno: int | None = None,
        status: str = "",
        reason: str = "",
        actual: Schemata | None = None,
    ) -> None:
        self.doing = doing
        self.path = path
        self.value = value
        self.errno = errno
        self.status = status
        self.reason = reason
        self.actual = actual
        super().__init__(self._text())

    def _text(self) -> str:
        value = ""
        if self.value is not None:
            shown = (
                self.value
                if len(self.value) <= _SHOWN_VALUE_CHARS
                else self.value[:_SHOWN_VALUE_CHARS] + "..."
            )
            value = f" {shown!r}"
        words = []
        if self.reason:
            words.append(self.reason)
        if self.status:
            words.append(f"the kernel says {self.status!r}")
        if self.errno is not None:
            words.append(f"{_errno.errorcode.get(self.errno, self.errno)} ({os.strerror(self.errno)})")
        if self.advice:
            words.append(self.advice)
        return f"{self.doing}{value} {self.path}: {'; '.join(words)}"

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.__dict__.copy())


class Busy(ResctrlError):
    """Not now: RMIDs in limbo, another program's lock, a file in use. The same request may work later."""

    advice = "try again later"


class Locked(Busy):
    """Another program holds the tree's lock (flock on the mount point). The reason names it where it can be found."""


class Full(ResctrlError):
    """No CLOSID or RMID is left. Groups must be removed or shared first."""

    advice = "remove a group or let workloads share one"


class Gone(ResctrlError):
    """The group, task or domain is not there any more. Look again at what exists."""

    advice = "look again at what exists"


class Invalid(ResctrlError):
    """The kernel, or rdt before it, refuses the value. Asking again does not help."""


class Unsupported(ResctrlError):
    """This machine, kernel or mount does not offer what was asked for."""


class Denied(ResctrlError):
    """Not allowed: missing rights, a read-only file, or a group that belongs to somebody else."""


class Broken(ResctrlError):
    """The kernel failed, or answered what rdt cannot read. A person should look at it."""


class Mismatch(ResctrlError):
    """What was read back after a write is not what was written: another program writes there as well."""

    advice = "another program may be writing here as well"


def _again(kind: type[ResctrlError], state: dict[str, object]) -> ResctrlError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    Exception.__init__(error, error._text())
    return error


_CLASS_OF_ERRNO: dict[int, type[ResctrlError]] = {
    **dict.fromkeys((_errno.EBUSY, _errno.EAGAIN, _errno.EINTR, _errno.ETIMEDOUT), Busy),
    **dict.fromkeys((_errno.ENOSPC,), Full),
    **dict.fromkeys((_errno.ENOENT, _errno.ENODEV, _errno.ESRCH, _errno.ENOTDIR, _errno.ENOTCONN), Gone),
    **dict.fromkeys(
        (_errno.EINVAL, _errno.ERANGE, _errno.EOVERFLOW, _errno.E2BIG, _errno.EEXIST, _errno.ENAMETOOLONG),
        Invalid,
    ),
    **dict.fromkeys((_errno.EOPNOTSUPP, _errno.ENOSYS, _errno.ENOTSUP), Unsupported),
    **dict.fromkeys((_errno.EPERM, _errno.EACCES, _errno.EROFS), Denied),
}
# Sentences with which the kernel tells, with EINVAL, that the feature rather than the value is the matter.
_UNSUPPORTED_SENTENCES = ("Unknown or unsupported", "not supported", "Unsupported")


def class_of(errno: int, status: str = "") -> type[ResctrlError]:
    """The class of an errno, given the kernel's sentence about the same request (empty: none)."""
    if errno == _errno.EINVAL and any(words in status for words in _UNSUPPORTED_SENTENCES):
        return Unsupported
    return _CLASS_OF_ERRNO.get(errno, Broken)


def from_oserror(
    error: OSError, path: str, *, doing: str, value: str | None = None, status: str = "", reason: str = ""
) -> ResctrlError:
    """The error of the right class for what the kernel answered."""
    number = error.errno
    if number is None:
        number = _errno.ETIMEDOUT if isinstance(error, TimeoutError) else _errno.EIO
        reason = reason or str(error)
    kind = class_of(number, status)
    return kind(path, doing=doing, value=value, errno=number, status=status, reason=reason)
