"""Raises this process's limit on open descriptors: two dozen per workload soon exceed a shell's limit."""

from __future__ import annotations

import resource
from typing import Final

_NR_OPEN_DEFAULT: Final = 1 << 20
"""Initial value of fs.nr_open on every kernel; setrlimit(2) refuses more, "unlimited" included."""


def raise_limit() -> int | None:
    """Raise the soft limit on open descriptors to the hard limit.

    Returns the new limit; None if there is no limit. The soft limit is low only because of select(2), which
    perphd does not use.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    most = _NR_OPEN_DEFAULT if hard == resource.RLIM_INFINITY else hard
    if soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # fs.nr_open is lower on this host
            return soft
    return max(soft, most)
