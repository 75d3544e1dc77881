"""Names that are not valid UTF-8: control groups and files may be named by any bytes.

Python represents such bytes as lone surrogates (PEP 383), so that such a name still finds its file. Text that
perphd stores, sends or logs must be made encodable first.
"""

from __future__ import annotations

import io
from typing import TextIO


def encodable(text: str) -> str:
    r"""The text with bytes that are not UTF-8 as escapes: ``\udcff`` for the byte 0xff."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def printable(text: str) -> str:
    r"""The text on one line: control characters as escapes, ``\n`` for a line feed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in encodable(text))


def print_any(*streams: TextIO) -> None:
    """Make these streams print unencodable characters as escapes instead of raising."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
