"""Errors of resctrl, classified by what the caller must do.

The kernel answers a bad request with an errno, and often with a message in ``info/last_cmd_status``. That
file is global, and some operations do not clear it, so a message there may belong to another program's
request. An error carries the message only if it certainly belongs to the failed request (``rdt.access``).
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
        doing: the attempted action, as a verb phrase: ``writing``, ``making the group``.
        path: the file or directory of the request.
        value: the value to be written; None if there was none.
        errno: the kernel's number; None if rdt itself refused the request.
        status: the kernel's message about this request; empty if there is none.
        reason: rdt's own explanation; may be empty.
        actual: the schemata read after a failed change of it; None if it could not be read, or for other
            requests.
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
    """The resource is busy (RMIDs in limbo, another program's lock, a file in use). The same request may
    succeed later.
    """

    advice = "try again later"


class Locked(Busy):
    """Another program holds the tree's lock (flock on the mount point); the reason names it if possible."""


class Full(ResctrlError):
    """No CLOSID or RMID is left. A group must be removed first, or workloads must share one."""

    advice = "remove a group or let workloads share one"


class Gone(ResctrlError):
    """The group, task or domain no longer exists. List groups, tasks or domains again before the next request."""

    advice = "list groups, tasks or domains again"


class Invalid(ResctrlError):
    """The kernel, or rdt before it, refuses the value. Retrying does not help."""


class Unsupported(ResctrlError):
    """This machine, kernel or mount does not offer what was requested."""


class Denied(ResctrlError):
    """The request is not allowed: missing rights, a read-only file, or another program's group."""


class Broken(ResctrlError):
    """The kernel failed, or gave an answer that rdt cannot parse. A person should investigate."""


class Mismatch(ResctrlError):
    """The value read back differs from the value written: another program writes there as well."""

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
# Kernel messages that accompany EINVAL when the feature, not the value, is the problem.
_UNSUPPORTED_SENTENCES = ("Unknown or unsupported", "not supported", "Unsupported")


def class_of(errno: int, status: str = "") -> type[ResctrlError]:
    """The error class of an errno, given the kernel's message about the same request (empty: none)."""
    if errno == _errno.EINVAL and any(words in status for words in _UNSUPPORTED_SENTENCES):
        return Unsupported
    return _CLASS_OF_ERRNO.get(errno, Broken)


def from_oserror(
    error: OSError, path: str, *, doing: str, value: str | None = None, status: str = "", reason: str = ""
) -> ResctrlError:
    """The error of the right class for an OSError."""
    number = error.errno
    if number is None:
        number = _errno.ETIMEDOUT if isinstance(error, TimeoutError) else _errno.EIO
        reason = reason or str(error)
    kind = class_of(number, status)
    return kind(path, doing=doing, value=value, errno=number, status=status, reason=reason)
