"""The interface of a kind of knob, for planning and restoring."""

from __future__ import annotations


class Backend:
    """One kind of knob. The defaults here describe plain cgroup files; other kinds override some."""

    answers_late = False
    """True if a value may still take effect after its write has failed."""

    def why_not_now(self, path: str) -> str:
        """The reason why the knob cannot be set at present, although it can be read; empty if it can be set."""
        return ""

    def persists(self, path: str) -> bool:
        """True if a recreated cgroup gets this value again, so that restoring does not end with the cgroup."""
        return False

    def restore_absent(self, path: str, text: str) -> bool:
        """Restore a value whose cgroup does not exist; False if nothing persists.

        Raises:
            KernelError: the kernel or systemd refused it.
        """
        return False

    def tidy(self, path: str) -> str:
        """Remove helper objects of a restored setting; returns why some of them remain, empty if none does."""
        return ""
