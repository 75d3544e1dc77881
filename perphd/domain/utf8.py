"""Names that the kernel allows and UTF-8 does not: a control group or a file may be called by any bytes.

Python holds such bytes as lone surrogates (PEP 383). The file is then still found by its name, but whatever is to be
stored, sent or logged as text must not fail for it.
"""

from __future__ import annotations

import io
from typing import TextIO


def encodable(text: str) -> str:
    r"""The same text; what UTF-8 cannot hold as in a program's source, ``\udcff`` for the byte 0xff."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def printable(text: str) -> str:
    r"""The same text on one line: control characters as in a program's source, ``\n`` for a line feed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in encodable(text))


def print_any(*streams: TextIO) -> None:
    """Let what is printed there be shown as ``encodable`` has it, instead of ending the program."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
