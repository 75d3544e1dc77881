"""Asking systemd over D-Bus with dbus-fast, which is imported when it is first needed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import threading
from collections.abc import Callable, Coroutine, Sequence
from importlib.util import find_spec
from typing import Any, Final

from perphd.domain.errors import Broken, Full
from perphd.host.systemd_bus import DESTINATION, MANAGER, OBJECT, Bus, BusctlBus, bus_error
from perphd.host.systemd_properties import Property

TIMEOUT_S: Final = 1.5
"""A systemd that does not answer so long is busy; nothing else waits for it."""


class DbusFastBus:
    """By dbus-fast over one kept connection, in a thread with an event loop of its own.

    Calls block their caller for at most ``TIMEOUT_S``: they belong in the isolation thread. ``connect``: for tests.
    """

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, Any]] | None = None) -> None:
        self._connect = connect or _system_bus
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bus: Any = None
        self._lock = threading.Lock()

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """See ``Bus``."""
        from dbus_fast import Variant  # type: ignore[import-not-found,unused-ignore]

        values = [[item.name, Variant(item.signature, _plain(item))] for item in properties]
        self._call("SetUnitProperties", "sba(sv)", [unit, True, values], unit)

    def freeze(self, unit: str, frozen: bool) -> None:
        """See ``Bus``."""
        self._call("FreezeUnit" if frozen else "ThawUnit", "s", [unit], unit)

    def _call(self, member: str, signature: str, body: list[Any], unit: str) -> None:
        with self._lock:
            try:
                loop = self._running()
            except (OSError, RuntimeError) as exc:
                number = getattr(exc, "errno", None) or errno.EAGAIN
                advice = (
                    "systemd was not asked; the limits on threads (TasksMax) or on open files may be reached"
                )
                raise Full(unit, member, number, detail=f"no thread for D-Bus: {exc}", advice=advice) from exc
            future = asyncio.run_coroutine_threadsafe(self._ask(member, signature, body), loop)
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

    def _drop(self) -> None:
        """A late answer must not be taken for that of another call, nor may connections pile up."""
        bus, self._bus = self._bus, None
        if bus is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(bus.disconnect)

    async def _ask(self, member: str, signature: str, body: list[Any]) -> Any:
        from dbus_fast import Message

        if self._bus is None or not self._bus.connected:
            self._bus = await self._connect()
        message = Message(
            destination=DESTINATION,
            path=OBJECT,
            interface=MANAGER,
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
                loop.close()  # a loop that nobody runs would answer no call, ever
                raise
            self._loop = loop
        return self._loop

    def close(self) -> None:
        """Disconnect and end the thread."""
        loop, bus, self._loop, self._bus = self._loop, self._bus, None, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_end(loop, bus), loop)


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
    """The value as dbus-fast wants it."""
    if isinstance(item.value, tuple):
        return [list(pair) for pair in item.value]
    return item.value


def open_bus() -> Bus:
    """The best way there is: dbus-fast if it is installed, else busctl."""
    return BusctlBus() if find_spec("dbus_fast") is None else DbusFastBus()
