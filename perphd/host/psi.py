"""Reads pressure stall information (PSI), and has the kernel notify perphd when pressure rises.

Format and triggers: Documentation/accounting/psi.rst. Reading uses ``KernelFs``. A trigger lives as long as
its descriptor, so ``PsiTrigger`` works on real paths only.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from perphd.domain.errors import Gone, KernelError, ParseError, Unsupported, kernel_error
from perphd.domain.reading import Unavailable
from perphd.host.fs import KernelFile, KernelFs
from perphd.host.notified import Notified

SYSTEM_ROOT: Final = "/proc/pressure"
RESOURCES: Final = ("cpu", "memory", "io")

MIN_WINDOW_US: Final = 500_000
MAX_WINDOW_US: Final = 10_000_000
UNPRIVILEGED_WINDOW_US: Final = 2_000_000
"""Without CAP_SYS_RESOURCE, a window must be a multiple of this value. This value itself is allowed everywhere."""

PSI_OFF: Final = Unavailable(
    "EOPNOTSUPP: pressure stall information is switched off (psi=1 is not on the kernel command line)"
)

_PCT = r"([0-9]{1,3}\.[0-9]{2})"
_LINE = rf"avg10={_PCT} avg60={_PCT} avg300={_PCT} total=([0-9]{{1,20}})"
_PRESSURE = re.compile(rf"some {_LINE}(?:\nfull {_LINE})?\n?", re.ASCII)
_ALLOWED = "'some avg10=0.00 avg60=0.00 avg300=0.00 total=0', and optionally the same with 'full'"


@dataclass(frozen=True, slots=True)
class Stall:
    """One line: shares of time stalled over the kernel's three windows (0..100), and the total since boot."""

    avg10_pct: float
    avg60_pct: float
    avg300_pct: float
    total_us: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """Contents of a pressure file.

    ``some``: at least one task waited. ``full``: all tasks waited at once; None: the kernel does not report
    it.
    """

    some: Stall
    full: Stall | None


def parse_pressure(text: str) -> Pressure:
    """Parse a pressure file.

    Raises:
        ParseError: the text is not in the kernel's format.
    """
    found = _PRESSURE.fullmatch(text)
    if found is None:
        raise ParseError("a pressure reading", text, _ALLOWED)
    a, b, c, total, fa, fb, fc, full_total = found.groups()
    some = Stall(float(a), float(b), float(c), int(total))
    full = None if full_total is None else Stall(float(fa), float(fb), float(fc), int(full_total))
    return Pressure(some, full)


def read_pressure(source: KernelFile) -> Pressure | Unavailable:
    """Read an open pressure file; Unavailable if the kernel has PSI switched off.

    Raises:
        Gone: the cgroup vanished (or its ``cgroup.pressure`` was set to 0). Other KernelErrors are passed on.
        ParseError: the content is not in the kernel's format.
    """
    try:
        return parse_pressure(source.read().decode("ascii", errors="replace"))
    except Unsupported:
        return PSI_OFF


def pressure_at(fs: KernelFs, path: str) -> Pressure | Unavailable:
    """Read the pressure file at ``path``; Unavailable with the reason if it cannot be read."""
    try:
        file = fs.open(path)
    except Unsupported:
        return PSI_OFF
    except Gone:
        return Unavailable(
            f"{path} does not exist: no such cgroup, cgroup.pressure is 0, or PSI is not in this kernel "
            "(CONFIG_PSI, psi=1 on the kernel command line)"
        )
    except KernelError as exc:
        return Unavailable(str(exc))
    try:
        return read_pressure(file)
    except (KernelError, ParseError) as exc:
        return Unavailable(str(exc))
    finally:
        file.close()


class PsiTrigger:
    """Calls back, on the running asyncio loop, when a pressure file's stall time exceeds a threshold.

    The kernel notifies at most once per window, at the window's end. The calls stop at ``close``, or when the
    cgroup vanishes: ``on_gone`` is then called once, and the descriptors are closed.

    Asyncio's selectors cannot wait for POLLPRI. Each trigger's descriptor is therefore alone in an epoll,
    whose descriptor the loop watches. The loop's readiness check already consumes the event, so the callback
    needs no further check. Only the event of a vanished cgroup remains readable.

    Args:
        path: the real file, such as ``/sys/fs/cgroup/x.service/cpu.pressure`` or ``/proc/pressure/cpu``.
        on_pressure: called at every event, from the loop.
        on_gone: called once if the cgroup vanishes.
        stall: ``some`` or ``full``.
        threshold_us: stall time within the window that triggers an event.
        window_us: 500 000 to 10 000 000; without CAP_SYS_RESOURCE only multiples of 2 000 000.

    Raises:
        ValueError: threshold or window out of the kernel's range.
        KernelError: the kernel refuses the trigger (Unsupported: PSI is off; Denied: no right to write).
        RuntimeError: no asyncio loop is running.
    """

    def __init__(
        self,
        path: str,
        on_pressure: Callable[[], None],
        on_gone: Callable[[], None],
        *,
        stall: Literal["some", "full"] = "some",
        threshold_us: int = 100_000,
        window_us: int = UNPRIVILEGED_WINDOW_US,
    ) -> None:
        if not MIN_WINDOW_US <= window_us <= MAX_WINDOW_US:
            raise ValueError(
                f"a PSI window of {window_us} us is not allowed (allowed: {MIN_WINDOW_US} to {MAX_WINDOW_US})"
            )
        if not 0 < threshold_us <= window_us:
            raise ValueError(
                f"a PSI threshold of {threshold_us} us is not allowed (allowed: 1 to the window, {window_us})"
            )
        self.path = path
        self._on_pressure, self._on_gone = on_pressure, on_gone
        asyncio.get_running_loop()  # raise before a trigger is armed that no loop would receive
        fd = _armed(path, stall, threshold_us, window_us)
        try:
            self._notified = Notified(fd, select.EPOLLPRI | select.EPOLLERR, self._ready)
        except OSError as exc:  # no descriptor is left for the epoll
            raise kernel_error(exc, path, "poll") from exc

    @property
    def closed(self) -> bool:
        """True after ``close`` or after the cgroup vanished."""
        return self._notified.closed

    def close(self) -> None:
        """Disarm the trigger and close the descriptors; closing twice is allowed."""
        self._notified.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ready(self, events: int) -> None:
        if events & select.EPOLLERR:
            self.close()
            self._on_gone()
        else:
            self._on_pressure()


def _armed(path: str, stall: str, threshold_us: int, window_us: int) -> int:
    """A descriptor of ``path`` with the trigger; the caller closes it."""
    shown = f"{stall} {threshold_us} {window_us}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise kernel_error(exc, path, "open for a PSI trigger", shown) from exc
    try:
        # The newline matters: /proc/pressure/* drops the last byte of what is written.
        os.write(fd, f"{shown}\n".encode())
    except OSError as exc:
        os.close(fd)
        advice = ""
        if exc.errno == errno.EINVAL and window_us % UNPRIVILEGED_WINDOW_US:
            advice = f"without CAP_SYS_RESOURCE the window must be a multiple of {UNPRIVILEGED_WINDOW_US} us"
        raise kernel_error(exc, path, "arm a PSI trigger", shown, advice) from exc
    return fd
