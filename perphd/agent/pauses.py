"""Pauses set by the operator. They survive reload, restart and upgrade; a file can set one as well."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Final

from perphd.domain.control import Pause
from perphd.domain.wire import WireError, decode
from perphd.host.state_files import StateFiles

FILE: Final = "pauses.json"
"""File in the state directory with the pauses set by ``perphctl pause``."""
REASON_BYTES: Final = 200
"""Bytes of the pause file that are read as the reason."""


class Pauses:
    """The pauses in force.

    Args:
        state_dir: directory in which they are stored; None: keep them in memory only.
        wall_clock: seconds since the epoch.
        pause_file: path; while this file exists, all workloads are paused, and its first line is the reason. Empty:
            perphd watches no file.

    If the file in the state directory cannot be read, all workloads are paused until ``resume``, because the file
    may have contained a pause.
    """

    def __init__(self, state_dir: Path | None, wall_clock: Callable[[], float], pause_file: str = "") -> None:
        self._path = None if state_dir is None else state_dir / FILE
        self._wall_clock, self._pause_file = wall_clock, pause_file
        self._files, self._changing = StateFiles("pauses"), asyncio.Lock()
        self._set = {pause.workload: pause for pause in self._read()}
        self._by_file: Pause | None = None

    def look(self) -> tuple[str, ...]:
        """Check the time and the pause file. Returns a sentence for every pause that began or ended by itself."""
        now_s = self._wall_clock()
        told = []
        for workload, pause in list(self._set.items()):
            if not pause.holds(now_s):
                del self._set[workload]
                told.append(f"{workload or 'all workloads'}: the pause has ended")
        if told and self._path is not None:
            # Nobody waits for this write. If it fails, the file still contains a pause that has ended, which does
            # no harm.
            self._files.replace(self._path, _text(self._set))
        found = self._file(now_s)
        if (found is None) != (self._by_file is None):
            verb = "paused" if found is not None else "no longer paused"
            told.append(f"all workloads: {verb} by the file {self._pause_file}")
        self._by_file = found
        return tuple(told)

    @property
    def any(self) -> bool:
        """True if a pause is set, even if it has ended since the last call of ``look``."""
        return bool(self._set) or self._by_file is not None

    def of(self, workload: str, declaration: str | None = None) -> Pause | None:
        """The pause that applies to a workload, or to the declaration that found it."""
        if not self.any:
            return None
        return next((pause for pause in self.all() if pause.covers(workload, declaration)), None)

    def all(self) -> tuple[Pause, ...]:
        """Every pause in force."""
        by_file = () if self._by_file is None else (self._by_file,)
        now_s = self._wall_clock()
        return (*by_file, *(pause for pause in self._set.values() if pause.holds(now_s)))

    async def begin(self, workload: str, for_s: float | None, reason: str, by: str) -> Pause:
        """Pause a workload (empty: all); replaces an earlier pause of the same workload.

        Raises:
            ConfigError: it cannot be stored; nothing has changed.
        """
        now_s = self._wall_clock()
        pause = Pause(workload, now_s, None if for_s is None else now_s + for_s, reason, by)
        await self._keep(lambda now: now | {workload: pause})
        return pause

    def begin_now(self, reason: str, by: str) -> Future[None]:
        """Pause all workloads at once and store the pause afterwards, so that a slow disk does not prolong harm.

        The future raises ConfigError if the pause cannot be stored; the pause then ends with this process.
        """
        self._set = self._set | {"": Pause("", self._wall_clock(), None, reason, by)}
        if self._path is not None:
            return self._files.replace(self._path, _text(self._set))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    async def end(self, workload: str | None) -> tuple[Pause, ...]:
        """End the pause of a workload ("": the general one; None: every pause). Returns the ended pauses.

        Raises:
            ConfigError: the change cannot be stored; nothing has changed.
        """
        ended = tuple(pause for name, pause in self._set.items() if workload is None or name == workload)
        if ended:
            await self._keep(lambda now: {name: pause for name, pause in now.items() if pause not in ended})
        return ended

    def close(self) -> None:
        """Wait until everything is stored."""
        self._files.close()

    def _file(self, now_s: float) -> Pause | None:
        if not self._pause_file:
            return None
        try:
            with open(self._pause_file, "rb", opener=_at_once) as file:
                first = file.readline(REASON_BYTES)
                since_s = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        except OSError as exc:  # the file exists, so pausing is the safe interpretation
            return Pause("", now_s, None, f"it cannot be read: {exc.strerror}", self._pause_file)
        reason = first.decode(errors="replace").strip()
        return Pause("", since_s, None, reason, f"the file {self._pause_file}")

    def _read(self) -> Iterable[Pause]:
        if self._path is None:
            return ()
        try:
            return decode(tuple[Pause, ...], json.loads(self._path.read_text(encoding="utf-8"))["pauses"])
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError, WireError) as exc:
            reason = f"{self._path} cannot be read ({exc}); perphctl resume replaces it"
            return [Pause("", self._wall_clock(), None, reason, "perphd")]

    async def _keep(self, change: Callable[[dict[str, Pause]], dict[str, Pause]]) -> None:
        """Store the pauses with a change. The change takes effect once it is stored. Changes do not overlap."""
        async with self._changing:
            before = dict(self._set)
            if self._path is not None:
                await asyncio.wrap_future(self._files.replace(self._path, _text(change(before))))
            self._set, is_same = change(self._set), self._set == before
            if (
                not is_same and self._path is not None
            ):  # a pause has ended meanwhile, and the file contains it again
                self._files.replace(self._path, _text(self._set))


def _text(pauses: Mapping[str, Pause]) -> str:
    return json.dumps({"pauses": [asdict(pause) for pause in pauses.values()]}, indent=2) + "\n"


def _at_once(path: str, flags: int) -> int:
    """Open without blocking: the daemon must not hang on a named pipe without a writer."""
    return os.open(path, flags | os.O_NONBLOCK)
