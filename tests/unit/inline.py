"""Coroutines that wait for nothing, and calls that wait in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0


def inline(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits. Works inside of a running event loop too."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("the coroutine waits")


class HeldCall:
    """A call that blocks its thread until the event loop lets it go."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call, self._began, self._go = call, Event(), Event()

    def __call__(self, *args: Any) -> Any:
        self._began.set()
        assert self._go.wait(PATIENCE_S), "the event loop stands still"
        return self._call(*args)

    async def let_go(self) -> None:
        """Let the call go, once it has begun."""
        assert await asyncio.to_thread(self._began.wait, PATIENCE_S)
        self._go.set()
