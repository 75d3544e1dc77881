"""One dashboard: assembled, and served until the process is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from perphd.commands.dashboard.access import Sessions
from perphd.commands.dashboard.api import Api
from perphd.commands.dashboard.feed import Feed
from perphd.commands.dashboard.fleet_page import FleetPage
from perphd.commands.dashboard.picture import announced
from perphd.commands.dashboard.server import Dashboard
from perphd.commands.dashboard.sources import DaemonSide, StoreSide
from perphd.control.client import Client
from perphd.domain.errors import PerphError

ADDRESS: Final = "127.0.0.1"


class Serving:
    """A dashboard of one daemon.

    Args:
        client: queries the daemon.
        admin: whether changes are allowed.
        url_file: file that always contains a valid link, renewed after each use; None: only one link exists.
        extender: address of perphd-extender, for the page of the fleet; empty: none.
    """

    def __init__(
        self, client: Client, admin: bool = False, url_file: str | None = None, extender: str = ""
    ) -> None:
        self._url_file = url_file
        self.daemon = DaemonSide(client)
        self.sessions = Sessions(None if url_file is None else self._keep)
        self.feed = Feed(client.path, self.daemon.picture, announced)
        self.api = Api(self.daemon, StoreSide(client), FleetPage(extender))
        self._server = Dashboard(self.api, self.feed, self.sessions, admin)
        self.port = 0

    @property
    def link(self) -> str:
        """The address that opens the dashboard once."""
        return self._link(self.sessions.token)

    async def start(self, port: int) -> None:
        """Listen; port 0: the kernel chooses.

        Raises:
            Unreachable, NotPermitted: the daemon cannot be queried.
            OSError: the port is unavailable.
            PerphError: the file of links cannot be written.
        """
        await self.daemon.get("status")  # reports an unreachable daemon or a missing right at once
        self.port = await self._server.start(ADDRESS, port)
        if self._url_file is not None:
            self._keep(self.sessions.token)

    async def stop(self) -> None:
        """Stop serving. Stopping twice is fine."""
        await self._server.stop()
        if self._url_file is not None:
            with suppress(OSError):
                os.unlink(self._url_file)

    def _link(self, token: str) -> str:
        return f"http://{ADDRESS}:{self.port}/?token={token}"

    def _keep(self, token: str) -> None:
        assert self._url_file is not None
        _write(self._url_file, f"{self._link(token)}\n")


async def serve(
    client: Client,
    port: int,
    admin: bool,
    url_file: str | None,
    say: Callable[[str], None],
    extender: str = "",
) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises the errors of ``Serving.start``."""
    serving = Serving(client, admin, url_file, extender)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    try:
        await serving.start(port)
        if url_file is None:
            say(f"Open this link, which works once: {serving.link}")
        else:
            say(f"{url_file}: contains a link that works once, and a new one after each use")
        say("The page may make changes." if admin else "The page is read-only.")
        await ended.wait()
    finally:
        await serving.stop()


def _write(path: str, text: str) -> None:
    """Replace a file that only its owner and its group may read."""
    part = f"{path}.part"
    try:
        with suppress(FileNotFoundError):
            os.unlink(part)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(part, flags, 0o640), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except OSError as exc:
        raise PerphError(f"{path}: cannot be written: {exc.strerror}") from exc
