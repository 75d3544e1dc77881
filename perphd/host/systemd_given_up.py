"""Notes about a unit's released CPU and memory node lists, which the kernel still shows as full.

The kernel does not empty the list of a group with processes: a list that systemd has unset shows everything
until the unit restarts, or systemd disables the controller. The note is an extended attribute of the control
group, so that a later restore can read it, and it vanishes with the group.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol


class GivenUp(Protocol):
    """Notes about files of control groups."""

    def add(self, directory: str, file: str) -> None:
        """Note that this file was released."""

    def discard(self, directory: str, file: str) -> None:
        """Remove the note, because the file is set again."""

    def holds(self, directory: str, file: str) -> bool:
        """True if this file was released and not set since."""


class Attributes:
    """Notes as extended attributes (cgroup v2 since Linux 5.7); on older kernels nothing is noted."""

    def add(self, directory: str, file: str) -> None:
        """See ``GivenUp``."""
        with suppress(OSError):
            os.setxattr(directory, _name(file), b"1")

    def discard(self, directory: str, file: str) -> None:
        """See ``GivenUp``."""
        with suppress(OSError):
            os.removexattr(directory, _name(file))

    def holds(self, directory: str, file: str) -> bool:
        """See ``GivenUp``."""
        try:
            return os.getxattr(directory, _name(file)) == b"1"
        except OSError:
            return False


def _name(file: str) -> str:
    return f"user.perphd.given_up.{file}"
