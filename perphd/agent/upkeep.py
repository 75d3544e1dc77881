"""What the daemon does for itself as a process: its priority, its garbage collector, its memory."""

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
"""The daemon's own priority, as Nice= in its unit."""
SAID_EVERY_S = 60.0
"""Shortest time between two log lines about the same complaint of the event loop."""


class Complaints:
    """The event loop's exception handler: what fails over and over is logged once a minute, with how often it did."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """``context``: as asyncio hands it over; its ``message`` tells what is the same."""
        what = str(context.get("message", ""))
        now_s = self._clock()
        if now_s - self._said.get(what, -math.inf) < SAID_EVERY_S:
            self._unsaid[what] += 1
            return
        self._said[what] = now_s
        if unsaid := self._unsaid.pop(what, 0):
            log.error("%s: %d times more since the last report", what, unsaid)
        loop.default_exception_handler(context)


def spare_the_start() -> None:
    """Modules and all else that was made at the start stay: the garbage collector need not look at them again.

    Importing leaves holes of more than 1 MiB behind, which go back to the kernel.
    """
    slim_dataclasses()
    gc.collect()
    gc.freeze()
    give_back_memory()


def slim_dataclasses() -> None:
    """Let all frozen dataclasses with slots refuse assignments through the same two functions.

    The two that ``dataclass`` makes for each class also keep alive what the class was before it got its slots. Without
    them the running daemon takes 1 MiB less.
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
    """Collect no garbage within the block, such as a tick; what is due is collected right after it.

    A collection takes up to milliseconds, and a tick ends with the writes that an LRA waits for.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def protect_self() -> None:
    """Ask for a little more CPU priority than anybody's default, so that a loaded host does not blind its guard; and
    for as many descriptors as there may be.
    """
    raise_limit()
    if os.getpriority(os.PRIO_PROCESS, 0) <= OWN_NICE:
        return  # the unit has given it (Nice=), and forbids more
    try:
        os.setpriority(os.PRIO_PROCESS, 0, OWN_NICE)
    except OSError as exc:
        log.info("running at normal priority: %s", exc.strerror)


def give_back_memory() -> None:
    """Return to the kernel the pages that the C library holds and nobody uses; takes about a millisecond.

    By itself glibc only cuts its heap at the end: with workloads that come and go, what is resident creeps towards the
    most that every part of the heap ever held, though no more is in use. Other C libraries have no such call.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    found = getattr(
        ctypes.CDLL(None), "malloc_trim", None
    )  # without the interpreter's lock, as all of ctypes'
    if found is not None:
        found.argtypes = (ctypes.c_size_t,)
    return found
