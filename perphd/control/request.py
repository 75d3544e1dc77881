"""Parses requests of the control API: bodies, queries, numbers."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from perphd.config.schema import show, unknown_key
from perphd.control.errors import ApiError, Code
from perphd.control.port import Done

BODY: Final = "the request"
"""The source named in refusals of a request's values."""


async def read_body(request: web.Request, within_s: float, known: Sequence[str] = ()) -> dict[str, Any]:
    """The body as an object; with ``known``, other keys are refused.

    Raises:
        ApiError: it is not a JSON object, or has an unknown key.
        TimeoutError: it was not complete in time.
    """
    raw = await arrived(request, within_s)
    try:
        body = json.loads(raw.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        reason = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        raise ApiError(Code.REFUSED, f"the body is not JSON: {reason}", "", "a JSON object") from exc
    if not isinstance(body, dict):
        raise ApiError(Code.REFUSED, f"the body is {show(body)}", "", "a JSON object")
    if known:
        only(body, known)
    return body


async def arrived(request: web.Request, within_s: float) -> bytes:
    """The whole body, which later calls return at once.

    Raises:
        ApiError: the client has disconnected.
        TimeoutError: the body was not complete in time.
    """
    try:
        async with asyncio.timeout(within_s):
            return await request.read()
    except ConnectionError as exc:
        raise ApiError(Code.TIMEOUT, "the client disconnected before the request was complete") from exc


async def done(result: Done) -> None:
    """Wait for the agent if the operation is asynchronous."""
    if inspect.isawaitable(result):
        await result


def only(given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse unknown keys."""
    for name in given:
        if name not in known:
            raise unknown_key(BODY, name, name, known)


def whole(value: object, key: str, highest: int) -> int:
    """A whole number from 1 to ``highest``. Raises ApiError for any other value."""
    allowed = f"a whole number from 1 to {highest}"
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else 0
    except ValueError:
        number = 0
    if not 1 <= number <= highest:
        raise ApiError(Code.REFUSED, f"{show(value)} is not {allowed}", key, allowed)
    return number


def reading(key: str, value: object) -> float:
    """A reading of the request: a number of at least 0 and below 1e18. Raises ApiError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ApiError(
            Code.REFUSED, f"{show(value)} is not accepted", key, "a number of at least 0 and below 1e18"
        )
    return float(value)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
