"""Errors, classified by what the caller must do about them."""

from __future__ import annotations

import errno as _errno
import os


class PerphError(Exception):
    """Base of every error that perphd raises on purpose. Its text is written for an operator."""


class ConfigError(PerphError):
    """A configuration value is refused.

    Args:
        source: the file or the request that holds the value.
        key: dotted path of the key, e.g. ``lra[0].cgroup``.
        problem: what is wrong with it, in words.
        allowed: what would be accepted, in words.
    """

    def __init__(self, source: str, key: str, problem: str, allowed: str = "") -> None:
        self.source, self.key, self.problem, self.allowed = source, key, problem, allowed
        text = f"{source}: {key}: {problem}" if key else f"{source}: {problem}"
        super().__init__(f"{text} (allowed: {allowed})" if allowed else text)


class ParseError(PerphError, ValueError):
    """Text that cannot be parsed, such as a CPU list, a size or a PSI line.

    The message states the text and what is allowed.
    """

    def __init__(self, what: str, text: str, allowed: str) -> None:
        self.what, self.text, self.allowed = what, text, allowed
        shown = text if len(text) <= 80 else text[:77] + "..."
        super().__init__(f"{shown!r} is not {what} (allowed: {allowed})")


class KernelError(PerphError):
    """A kernel file refused an operation.

    Args:
        path: the file.
        operation: ``read``, ``write``, ``open``, ``mkdir`` ...
        errno: the kernel's error number.
        value: the value that was to be written, if any.
        detail: the kernel's own message, if any (resctrl's last_cmd_status).
        advice: what the operator can do; empty if nothing is known.
    """

    def __init__(
        self,
        path: str,
        operation: str,
        errno: int,
        value: str | None = None,
        detail: str = "",
        advice: str = "",
    ) -> None:
        self.path, self.operation, self.errno = path, operation, errno
        self.value, self.detail, self.advice = value, detail, advice
        name = _errno.errorcode.get(errno, str(errno))
        text = f"{path}: {operation}"
        if value is not None:
            text += f" {value!r}"
        text += f": {name} ({os.strerror(errno)})"
        if detail:
            text += f"; kernel says: {detail}"
        if advice:
            text += f"; {advice}"
        super().__init__(text)


class Gone(KernelError):
    """The object no longer exists (ENOENT, ENODEV, ESRCH). The caller drops it and looks for a new one."""


class Busy(KernelError):
    """The object is busy (EBUSY, EAGAIN). The caller retries later, up to a deadline."""


class Full(KernelError):
    """A resource of the kernel or of the disk is exhausted (ENOSPC, ENOMEM, EMFILE)."""


class Unsupported(KernelError):
    """This kernel does not support the operation (EOPNOTSUPP, ENOSYS). The caller does without it and reports that."""


class Denied(KernelError):
    """The operation is not permitted (EACCES, EPERM, EROFS). The operator must grant access."""


class Invalid(KernelError):
    """The kernel refuses the value (EINVAL, ERANGE, E2BIG). This is a bug in perphd; retrying does not help."""


class Broken(KernelError):
    """Any other error (EIO ...). The caller keeps the last good state and reports the error."""


_CLASSES: dict[int, type[KernelError]] = {
    _errno.ENOENT: Gone,
    _errno.ENODEV: Gone,
    _errno.ESRCH: Gone,
    _errno.EBUSY: Busy,
    _errno.EAGAIN: Busy,
    _errno.ENOSPC: Full,
    _errno.ENOMEM: Full,
    _errno.EMFILE: Full,
    _errno.ENFILE: Full,
    _errno.EOPNOTSUPP: Unsupported,
    _errno.ENOSYS: Unsupported,
    _errno.EACCES: Denied,
    _errno.EPERM: Denied,
    _errno.EROFS: Denied,
    _errno.EINVAL: Invalid,
    _errno.ERANGE: Invalid,
    _errno.E2BIG: Invalid,
    _errno.EOVERFLOW: Invalid,
}


def kernel_error(
    exc: OSError, path: str, operation: str, value: str | None = None, advice: str = "", detail: str = ""
) -> KernelError:
    """Translate an ``OSError`` into the class that tells the caller what to do.

    Returns the error (for ``raise kernel_error(...) from exc``); never raises.
    """
    number = exc.errno if exc.errno is not None else _errno.EIO
    return _CLASSES.get(number, Broken)(path, operation, number, value, detail=detail, advice=advice)
