"""Common part of sources that poll: timeouts, back-off after failures, errors as reasons."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeAlias

from perphd.domain.backoff import BackoffRule, RetryPause
from perphd.domain.errors import PerphError
from perphd.domain.masking import masked
from perphd.domain.reading import Unavailable
from perphd.monitor.sli.reading import SliReading
from perphd.monitor.sli.resolution import Resolution, ResolutionFinder

RETRY: Final = BackoffRule(1.0, 30.0)
SLOW_RETRY: Final = BackoffRule(1.0, 4.0)
"""Backoff after a timeout. It is short, because a slow server's indicators matter most while it is slow."""

AnsweredAt: TypeAlias = Callable[[], float]
"""Returns the moment of the call, as time base of a rate, on the same scale as ``now_s``."""


class SliError(PerphError):
    """A source cannot provide indicators now. The message is the reason that the operator sees."""


class PolledSource(ABC):
    """Turns ``_ask``, which may raise or hang, into a ``read`` that does neither.

    After a failure the source is retried after 1 s, then 2, 4 ... up to 30 s (4 s after a timeout); meanwhile the
    last reason is returned.
    """

    def __init__(self, label: str, timeout_s: float, known: Resolution | None = None) -> None:
        """``known``: resolution of the source; None: perphd finds it while it reads the source."""
        self._label, self._timeout_s = label, timeout_s
        self._finder = ResolutionFinder(known)
        self._retry = RetryPause(RETRY)
        self._reason = ""

    @property
    def resolution(self) -> Resolution:
        """Reporting period of the source, as far as it is known."""
        return self._finder.resolution

    def worked(self, cpu_s: float | None) -> None:
        """Take the application's CPU time between the last two readings; None if unknown."""
        self._finder.worked(cpu_s)

    @abstractmethod
    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        """Query once and call ``answered_at`` when the answer arrives. Any exception means that there is no reading."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything; closing twice is allowed."""

    async def _failed(self) -> None:
        """Called after each failed query: drop a connection in an unknown state."""
        await self.close()

    async def read(self, now_s: float) -> SliReading:
        """The indicators now, or the reason why there are none."""
        if now_s < self._retry.until_s:
            # No countdown in the reason: equal reasons are stored and shown once.
            return SliReading.missing(Unavailable(self._reason))
        loop = asyncio.get_running_loop()
        asked_at_s = loop.time()
        try:
            async with asyncio.timeout(self._timeout_s):
                reading = await self._ask(lambda: now_s + (loop.time() - asked_at_s))
        except TimeoutError:
            reason = f"{self._label}: no answer within {self._timeout_s:g} s"
            return await self._refuse(now_s, reason, SLOW_RETRY)
        except Exception as exc:  # a client library may raise anything; none of it may stop the daemon
            words = str(exc) if isinstance(exc, PerphError) else f"{type(exc).__name__}: {exc}"
            return await self._refuse(now_s, f"{self._label}: {masked(words)}")
        self._retry.succeeded()
        return reading

    async def _refuse(self, now_s: float, reason: str, rule: BackoffRule = RETRY) -> SliReading:
        self._reason = reason
        self._retry.rule = rule
        self._retry.failed(now_s)
        await self._failed()
        return SliReading.missing(Unavailable(reason))


def read_password(path: str) -> str:
    """The first line of a password file; empty for an empty path.

    Raises:
        SliError: it cannot be read.
    """
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().rstrip("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise SliError(f"password_file {path}: {exc}") from exc
