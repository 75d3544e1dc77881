"""Rebuilds the models' trees outside the loop: one at a time, in a short-lived worker process.

In each tick, the loop installs the compiled trees of at most one result, and copies the memory of at most one
correction (some hundred rows, labelled by one pass through its trees). That cost does not depend on the number
of models. A thread packs the input, starts the process, waits and reads the result,
without holding the interpreter lock on a busy machine (``spawn``). Any failure (no start, crash, hang,
invalid answer) is one problem in ``perphctl status``; the present model is kept.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Event
from typing import Final

from perphd.agent import spawn
from perphd.agent.records import Records
from perphd.domain.errors import PerphError
from perphd.predictor import LraModel, Registry
from perphd.predictor.ogbrt.rebuild import RebuildJob, Rebuilt
from perphd.predictor.rebuild_worker import RebuildFailed, pack_jobs, unpack_results

DEADLINE_S: Final = 60.0
"""Time limit of the worker in seconds."""
RETRY_S: Final = 900.0
"""Pause in seconds after a failed rebuild, because the next one would probably fail as well."""
COMMAND: Final = (sys.executable, "-P", "-m", "perphd.predictor.rebuild_worker")
"""The worker's command; it imports nothing from the working directory."""


@dataclass(frozen=True, slots=True)
class _Running:
    lra: str
    model: LraModel
    channel: str
    future: Future[Rebuilt]


class Rebuilds:
    """Runs rebuilds; see the module.

    Args:
        registry: the models.
        records: receives problems.
        command: the worker: program and arguments.
        deadline_s: time limit of the worker.
    """

    def __init__(
        self,
        registry: Registry,
        records: Records,
        command: Sequence[str] = COMMAND,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._registry, self._records = registry, records
        self._command, self._deadline_s = tuple(command), deadline_s
        self._running: _Running | None = None
        self._last = ""
        self._not_before_s = 0.0
        self._stop = Event()
        self.done = 0

    def step(self, now_s: float) -> None:
        """Call once per tick: apply a finished rebuild, start the next one. Never waits, never raises."""
        if self._running is not None:
            if not self._running.future.done():
                return
            self._take(self._running, now_s)
        if now_s < self._not_before_s or self._stop.is_set():
            return
        for lra, model in self._in_turn():
            due = model.next_rebuild()
            if due is not None:
                self._last = lra
                self._start(lra, model, *due)
                return

    def _in_turn(self) -> Sequence[tuple[str, LraModel]]:
        """All models in round-robin order: models after the last served one come first."""
        models = list(self._registry.all())
        after = next((i + 1 for i, (lra, _) in enumerate(models) if lra == self._last), 0)
        return models[after:] + models[:after]

    @property
    def ready(self) -> bool:
        """True if a finished rebuild waits for the next step."""
        return self._running is not None and self._running.future.done()

    def close(self) -> None:
        """End the worker, if it is running."""
        self._stop.set()
        if self._running is not None:
            wait([self._running.future])

    def _start(self, lra: str, model: LraModel, channel: str, job: RebuildJob) -> None:
        future: Future[Rebuilt] = Future()
        self._running = _Running(lra, model, channel, future)
        # Thread.start() would wait until the kernel has run the new thread once, which takes long on a busy
        # machine.
        try:
            _thread.start_new_thread(self._answer, (future, job))
        except RuntimeError as exc:  # for example because of TasksMax= of the service
            future.set_exception(RebuildFailed(f"a worker cannot be started: {exc}"))

    def _take(self, running: _Running, now_s: float) -> None:
        self._running = None
        rebuilt: Rebuilt | None = None
        problem: str | None = None
        try:
            rebuilt = running.future.result()
            self.done += 1
        except PerphError as exc:
            problem = f"model of {running.lra} is not rebuilt; the present one is kept: {exc}"
        except Exception as exc:  # the loop continues with the present model
            problem = f"model of {running.lra} is not rebuilt; the present one is kept: {exc!r}"
        if problem is not None:
            self._not_before_s = now_s + RETRY_S
        running.model.offer(running.channel, rebuilt)
        self._records.problem("rebuild", problem, now_s)

    def _answer(self, future: Future[Rebuilt], job: RebuildJob) -> None:
        """Run the worker; called in the thread."""
        try:
            future.set_result(self._run(job))
        except BaseException as exc:  # passed on to the loop
            future.set_exception(exc)

    def _run(self, job: RebuildJob) -> Rebuilt:
        environment = dict(os.environ) | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OPENBLAS_NUM_THREADS": "1",
        }
        try:
            ended = spawn.run(self._command, pack_jobs([job]), environment, self._deadline_s, self._stop)
        except TimeoutError as exc:
            raise RebuildFailed(f"the worker did not end within {self._deadline_s:g} s") from exc
        except spawn.Stopped as exc:
            raise RebuildFailed("perphd is stopping") from exc
        except OSError as exc:
            raise RebuildFailed(f"a worker cannot be started: {exc.strerror}: {self._command[0]}") from exc
        if ended.status != 0:
            said = ended.err.decode(errors="replace").strip().splitlines()
            raise RebuildFailed(f"the worker ended with {ended.status}: {said[-1] if said else 'no output'}")
        found = unpack_results(ended.out)
        if len(found) != 1:
            raise RebuildFailed(f"{len(found)} results for one job")
        return found[0]
