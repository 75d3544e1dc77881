"""Cgroup files: a value ends with its cgroup, and a failed write has no later effect."""

from __future__ import annotations


class CgroupFiles:
    """See ``perphd.isolation.backends.Backend``. Other kinds of files differ from it in single answers."""

    @property
    def answers_late(self) -> bool:
        """False: the kernel has answered when write(2) returns."""
        return False

    def why_not_now(self, path: str) -> str:
        """Empty: a file that can be read can be set, as far as is known."""
        return ""

    def persists(self, path: str) -> bool:
        """False: a recreated cgroup has the kernel's defaults."""
        return False

    def restore_absent(self, path: str, text: str) -> bool:
        """False: there is nothing to restore."""
        return False

    def tidy(self, path: str) -> str:
        """Empty: nothing but the value was set."""
        return ""
