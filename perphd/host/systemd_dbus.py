"""Calls to systemd over D-Bus with dbus-fast, which is imported on first use."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

from perphd.domain.errors import Broken, Full
from perphd.host.systemd_bus import (
    DESTINATION,
    MANAGER,
    OBJECT,
    PROPERTIES,
    BusctlBus,
    CallingBus,
    bus_error,
    parts_of,
)
from perphd.host.systemd_properties import Property

TIMEOUT_S: Final = 1.5
"""Seconds after which a systemd that does not answer counts as busy."""


class DbusFastBus:
    """Calls through dbus-fast over one kept connection, in a thread with its own event loop.

    Calls block for at most ``TIMEOUT_S`` and belong in the isolation thread. ``connect``: replaced in tests.
    """

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, Any]] | None = None) -> None:
        self._connect = connect or _system_bus
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bus: Any = None
        self._closed: asyncio.Future[None] | None = None
        self._lock = threading.Lock()

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """See ``Bus``."""
        from dbus_fast import Variant  # type: ignore[import-not-found,unused-ignore]

        values = [[item.name, Variant(item.signature, _plain(item))] for item in properties]
        self._call("SetUnitProperties", "sba(sv)", [unit, True, values], unit)

    def freeze(self, unit: str, frozen: bool) -> None:
        """See ``Bus``."""
        self._call("FreezeUnit" if frozen else "ThawUnit", "s", [unit], unit)

    def call(
        self, member: str, signature: str, body: Sequence[Any], unit: str, path: str = OBJECT
    ) -> list[Any]:
        """See ``CallingBus``."""
        sent = [_sent(part, value) for part, value in zip(parts_of(signature), body, strict=True)]
        return [_received(value) for value in self._call(member, signature, sent, unit, path)]

    def _call(self, member: str, signature: str, body: list[Any], unit: str, path: str = OBJECT) -> list[Any]:
        with self._lock:
            try:
                loop = self._running()
            except (OSError, RuntimeError) as exc:
                number = getattr(exc, "errno", None) or errno.EAGAIN
                advice = (
                    "no request was sent; the limits on threads (TasksMax) or on open files may be reached"
                )
                raise Full(unit, member, number, detail=f"no thread for D-Bus: {exc}", advice=advice) from exc
            future = asyncio.run_coroutine_threadsafe(self._ask(member, signature, body, path), loop)
            try:
                answer = future.result(TIMEOUT_S)
            except (concurrent.futures.TimeoutError, TimeoutError) as exc:
                future.cancel()
                self._drop()
                raise bus_error(unit, member, f"systemd timed out after {TIMEOUT_S:g} s") from exc
            except Exception as exc:
                self._drop()
                raise Broken(unit, member, errno.EIO, detail=f"D-Bus: {exc}") from exc
        if answer is not None and answer.error_name:
            raise bus_error(unit, member, f"{answer.error_name}: {' '.join(map(str, answer.body))}")
        return [] if answer is None else list(answer.body)

    def _drop(self) -> None:
        """Drop the connection after a failed call.

        A late answer is thus not mistaken for another call's, and connections do not pile up.
        """
        bus, self._bus = self._bus, None
        if bus is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(bus.disconnect)

    async def _ask(self, member: str, signature: str, body: list[Any], path: str) -> Any:
        from dbus_fast import Message

        if self._bus is None or not self._bus.connected:
            self._bus = await self._connect()
            self._closed = asyncio.ensure_future(_until_closed(self._bus))
        message = Message(
            destination=DESTINATION,
            path=path,
            interface=MANAGER if path == OBJECT else PROPERTIES,
            member=member,
            signature=signature,
            body=body,
        )
        return await self._bus.call(message)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            try:
                threading.Thread(target=loop.run_forever, name="perphd-dbus", daemon=True).start()
            except RuntimeError:
                loop.close()  # a loop without a thread would never answer
                raise
            self._loop = loop
        return self._loop

    def close(self) -> None:
        """Disconnect and end the thread."""
        loop, bus, self._loop, self._bus = self._loop, self._bus, None, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_end(loop, bus), loop)


async def _until_closed(bus: Any) -> None:
    """Fetch the reason for which a connection ends.

    dbus-fast keeps it in a future. The event loop logs a traceback (EOFError, when the bus stops first at a shutdown)
    if nobody fetches it; the next call reports the error itself.
    """
    with suppress(Exception):
        await bus.wait_for_disconnect()


async def _end(loop: asyncio.AbstractEventLoop, bus: Any) -> None:
    if bus is not None:
        bus.disconnect()
    left = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    loop.call_soon(loop.stop)


async def _system_bus() -> Any:
    from dbus_fast import BusType
    from dbus_fast.aio import MessageBus

    return await MessageBus(bus_type=BusType.SYSTEM).connect()


def _plain(item: Property) -> Any:
    """The value as dbus-fast expects it."""
    if isinstance(item.value, tuple):
        return [list(pair) for pair in item.value]
    return item.value


def _sent(signature: str, value: Any) -> Any:
    """A value with dbus-fast's own variants."""
    if signature == "v":
        from dbus_fast import Variant

        return Variant(value.signature, _sent(value.signature, value.value))
    if signature[0] == "a":
        return [_sent(signature[1:], each) for each in value]
    if signature[0] == "(":
        parts = parts_of(signature[1:-1])
        return [_sent(part, each) for part, each in zip(parts, value, strict=True)]
    return value


def _received(value: Any) -> Any:
    """A value without variants."""
    from dbus_fast import Variant

    if isinstance(value, Variant):
        return _received(value.value)
    if isinstance(value, dict):
        return {name: _received(each) for name, each in value.items()}
    return [_received(each) for each in value] if isinstance(value, list) else value


def open_bus() -> CallingBus:
    """The best available bus: dbus-fast if it is installed, else busctl."""
    return BusctlBus() if find_spec("dbus_fast") is None else DbusFastBus()
