"""TLS for clients: the host's certificate authorities are loaded only for the first connection that needs them.

On import, aiohttp loads all of them twice for its own contexts: 3 MiB that a server never uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
from collections.abc import Iterator
from typing import Any, Final

_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables that tell OpenSSL where certificate authorities are."""


@contextlib.contextmanager
def no_authorities() -> Iterator[None]:
    """Let TLS contexts created within the block trust no authority.

    Import aiohttp within the block, and connect with ``verified``.
    """
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(dict.fromkeys(_VARIABLES, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


async def verified(url: str) -> dict[str, Any]:
    """Arguments of an aiohttp request to ``url`` that make it trust the host's authorities."""
    return {"ssl": await asyncio.to_thread(_trusting)} if url.startswith("https:") else {}


@functools.cache
def _trusting() -> ssl.SSLContext:
    return ssl.create_default_context()
