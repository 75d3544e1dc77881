"""Reads the bodies of HTTP answers up to a maximum size."""

from __future__ import annotations

from typing import Final

import aiohttp

_PART: Final = 1 << 16


async def whole_body(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The whole body, read in pieces, because ``content.read(n)`` returns as soon as some bytes have arrived.

    Raises:
        ValueError: it is longer than ``most_bytes``.
    """
    parts, size = list[bytes](), 0
    async for part in answer.content.iter_chunked(_PART):
        size += len(part)
        if size > most_bytes:
            raise ValueError(f"the answer is longer than the allowed {most_bytes} bytes")
        parts.append(part)
    return b"".join(parts)
