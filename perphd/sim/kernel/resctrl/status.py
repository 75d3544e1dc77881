"""``info/last_cmd_status``: what the last commands had to say."""

from __future__ import annotations

from typing import Final

_BUFFER_BYTES: Final = 512


class CommandStatus:
    """The kernel's buffer: texts pile up, one a line, until a command clears it; what does not fit is lost."""

    def __init__(self) -> None:
        self._text = ""
        self._overflow = False

    def clear(self) -> None:
        """Start again: ``ok`` until something is said."""
        self._text, self._overflow = "", False

    def say(self, text: str) -> None:
        """Add a line. Once a line did not fit, nothing more is added until the next ``clear``."""
        if self._overflow:
            return
        line = text + "\n"
        if len((self._text + line).encode()) >= _BUFFER_BYTES:
            self._overflow = True
            return
        self._text += line

    def read(self) -> str:
        """The content of the file."""
        return self._text or "ok\n"
