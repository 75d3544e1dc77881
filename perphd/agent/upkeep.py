"""Maintains the daemon's own process: priority, garbage collector, memory."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from typing import Any, NoReturn

from perphd.host.descriptors import raise_limit

log = logging.getLogger("perphd")

OWN_NICE = -10
"""Nice value of the daemon; it equals Nice= in the daemon's unit."""
SAID_EVERY_S = 60.0
"""Minimum time in seconds between two log lines about the same failure in the event loop."""


class Complaints:
    """The event loop's exception handler: a repeated failure is logged once a minute, with its count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception. ``context`` comes from asyncio; its ``message`` identifies repetitions."""
        what = str(context.get("message", ""))
        now_s = self._clock()
        if now_s - self._said.get(what, -math.inf) < SAID_EVERY_S:
            self._unsaid[what] += 1
            return
        self._said[what] = now_s
        if unsaid := self._unsaid.pop(what, 0):
            log.error("%s: %d more times since the last report", what, unsaid)
        loop.default_exception_handler(context)


def spare_the_start() -> None:
    """Exempt all objects that exist after the start from garbage collection.

    Imports leave more than 1 MiB of unused memory between objects. It is returned to the kernel.
    """
    slim_dataclasses()
    gc.collect()
    gc.freeze()
    give_back_memory()


def slim_dataclasses() -> None:
    """Let all frozen dataclasses with slots refuse assignments through the same two functions.

    The two functions that ``dataclass`` makes for each class also keep the class without slots alive. Without
    them, the daemon's memory is 1 MiB smaller.
    """
    for kind in [found for found in gc.get_objects() if issubclass(type(found), type)]:
        params = kind.__dict__.get("__dataclass_params__")
        if params is not None and params.frozen and "__slots__" in kind.__dict__:
            kind.__setattr__, kind.__delattr__ = _refuse_to_set, _refuse_to_delete


def _refuse_to_set(_: object, name: str, __: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


@contextmanager
def collecting_later() -> Iterator[None]:
    """Suspend garbage collection within the block, such as a tick, and catch up right after it.

    A collection takes up to milliseconds, and a tick ends with the writes that an LRA waits for.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def protect_self() -> None:
    """Raise the daemon's CPU priority slightly, so that it keeps running on a loaded host.

    It also raises the limit of descriptors to its maximum.
    """
    raise_limit()
    if os.getpriority(os.PRIO_PROCESS, 0) <= OWN_NICE:
        return  # the unit has set the priority (Nice=) and forbids a higher one
    try:
        os.setpriority(os.PRIO_PROCESS, 0, OWN_NICE)
    except OSError as exc:
        log.info("the CPU priority cannot be raised: %s; running at normal priority", exc.strerror)


def give_back_memory() -> None:
    """Return unused pages held by the C library to the kernel; takes about a millisecond.

    By itself, glibc only trims the end of its heap. As workloads come and go, resident memory would approach
    the sum of all parts' peaks. Other C libraries have no such call.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    found = getattr(
        ctypes.CDLL(None), "malloc_trim", None
    )  # without the interpreter lock, like all ctypes calls
    if found is not None:
        found.argtypes = (ctypes.c_size_t,)
    return found
