"""``info/last_cmd_status``: messages of the last commands."""

from __future__ import annotations

from typing import Final

_BUFFER_BYTES: Final = 512


class CommandStatus:
    """The kernel's buffer: messages accumulate, one per line, until a command clears it; overflow is lost."""

    def __init__(self) -> None:
        self._text = ""
        self._overflow = False

    def clear(self) -> None:
        """Clear the buffer; it reads ``ok`` until the next message."""
        self._text, self._overflow = "", False

    def say(self, text: str) -> None:
        """Add a line. After the first line that does not fit, nothing is added until the next ``clear``."""
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
