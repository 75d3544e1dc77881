"""Indicators printed by a command.

The command runs without a shell, as the daemon's user, in its own session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal

from perphd.domain.reading import Awaited, Unavailable
from perphd.domain.workload import SliSpec
from perphd.monitor.sli.keyed import MAX_BYTES, KeyedReader
from perphd.monitor.sli.options import resolution_of, seconds, setting
from perphd.monitor.sli.polled import AnsweredAt, PolledSource, SliError
from perphd.monitor.sli.reading import SliReading

_SHOWN_CHARACTERS = 200


class CommandSource(PolledSource):
    """Runs the command at most every ``every_s``; in between, readings are Awaited.

    A command that exceeds ``timeout_s`` is killed with its children.
    """

    def __init__(self, spec: SliSpec) -> None:
        argv = shlex.split(setting(spec, "command"))
        super().__init__(argv[0], seconds(spec, "timeout_s"), resolution_of(spec))
        self._argv = argv
        self._every_s = seconds(spec, "every_s")
        self._reader = KeyedReader(self._finder, delivered=False)
        self._asked_at_s: float | None = None
        self._reading = SliReading.missing(Unavailable(f"{argv[0]} has not been run yet"))

    async def read(self, now_s: float) -> SliReading:
        """Run the command if it is due."""
        # Tolerate slightly early ticks, which would otherwise skip every other run.
        if self._asked_at_s is None or now_s - self._asked_at_s >= 0.9 * self._every_s:
            self._asked_at_s = now_s
            self._reading = await super().read(now_s)
        reading = self._reading
        if not reading.is_missing():
            self._reading = SliReading.missing(Awaited(f"the command is run every {self._every_s:g} s"))
        return reading

    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as exc:
            raise SliError(f"it cannot be run: {exc.strerror or exc}") from exc
        try:
            output, errors = await asyncio.gather(_bounded(process.stdout), _bounded(process.stderr))
            status = await process.wait()
        finally:
            await _end(process)
        if status != 0:
            said = errors.decode(errors="replace").strip()[:_SHOWN_CHARACTERS]
            raise SliError(f"exit status {status}" + (f": {said}" if said else ""))
        return self._reader.reading(output.decode(errors="replace"), answered_at())

    async def close(self) -> None:
        """Do nothing, because no resource is held between runs."""


async def _bounded(stream: asyncio.StreamReader | None) -> bytes:
    data = b""
    while stream is not None and (chunk := await stream.read(MAX_BYTES)):
        data += chunk
        if len(data) > MAX_BYTES:
            raise SliError(f"it prints more than {MAX_BYTES} bytes")
    return data


async def _end(process: asyncio.subprocess.Process) -> None:
    # Kill the whole process group: children would keep the pipes open. The group is gone if all processes
    # have ended.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        await asyncio.shield(process.wait())
