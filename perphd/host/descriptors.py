"""How many descriptors this process may have open: two dozen for each workload are soon more than a shell allows."""

from __future__ import annotations

import resource
from typing import Final

_NR_OPEN_DEFAULT: Final = 1 << 20
"""fs.nr_open as every kernel starts with it: setrlimit(2) refuses more, "unlimited" included."""


def raise_limit() -> int | None:
    """Raise the soft limit of open descriptors to the hard one; the limit then, None: there is none.

    The soft one is low for the sake of select(2), which nothing here calls.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    most = _NR_OPEN_DEFAULT if hard == resource.RLIM_INFINITY else hard
    if soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # fs.nr_open is lower here
            return soft
    return max(soft, most)
