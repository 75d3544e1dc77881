"""Which lists of CPUs and memory nodes of a unit have been given up, although the kernel still shows them full.

The kernel does not empty the list of a group with processes: what systemd was told to unset reads as all that there is
until the unit starts again, or systemd switches the controller off. The note is an extended attribute of the control
group: whoever gives back later can read it, and it ends with the group.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol


class GivenUp(Protocol):
    """Notes about the files of control groups' directories."""

    def add(self, directory: str, file: str) -> None:
        """This file is given up."""

    def discard(self, directory: str, file: str) -> None:
        """This file is set to something (again)."""

    def holds(self, directory: str, file: str) -> bool:
        """True if this file was given up and not set since."""


class Attributes:
    """As extended attributes, which cgroup v2 takes since Linux 5.7; where there are none, nothing is noted."""

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
