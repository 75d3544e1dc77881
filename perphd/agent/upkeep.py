"""What the daemon does for itself as a process: its priority, its garbage collector, its memory."""

from __future__ import annotations

import ctypes
import functools
import gc
import logging
import os
from collections.abc import Callable

log = logging.getLogger("perphd")

OWN_NICE = -10
"""The daemon's own priority, as Nice= in its unit."""


def spare_the_start() -> None:
    """Modules and all else that was made at the start stay: the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


def protect_self() -> None:
    """Ask for a little more CPU priority than anybody's default, so that a loaded host does not blind its guard."""
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
