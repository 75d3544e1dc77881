"""Parts shared by publishers for all schedulers: rounds with backoff, and termination by signal."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from perphd.adapters.backoff import Backoff
from perphd.domain.errors import PerphError


async def repeat(
    once: Callable[[], Awaitable[None]], period_s: float, failure: type[PerphError], log: logging.Logger
) -> None:
    """Call ``once`` every ``period_s`` seconds until cancelled; back off while it raises ``failure``.

    Each new failure is logged once. A failure may have a ``pause_s``, the minimum pause that the server requested.
    """
    backoff, problem = Backoff(min(0.5, period_s), max(30.0, period_s)), ""
    while True:
        started_s = time.monotonic()
        try:
            await once()
            if problem:
                log.warning("a round succeeded after %d failures", backoff.failures)
            problem = ""
            backoff.succeeded()
            pause_s = max(0.0, period_s - (time.monotonic() - started_s))
        except failure as exc:
            pause_s = backoff.failed(getattr(exc, "pause_s", 0.0))
            if str(exc) != problem:
                log.warning("a round failed: %s; next try in %.1f s", exc, pause_s)
            problem = str(exc)
        await asyncio.sleep(pause_s)


def stop_signal() -> asyncio.Event:
    """An event set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def until_stopped(stop: asyncio.Event, *work: Coroutine[Any, Any, None]) -> None:
    """Run this work until ``stop`` is set. An exception in one part ends the others; an ExceptionGroup is raised."""
    with suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each) for each in work]
            await stop.wait()
            for task in running:
                task.cancel()
