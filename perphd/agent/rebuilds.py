"""Rebuilds of the models' trees, away from the loop: one at a time, in a worker process that ends when done.

The loop does no more for one in any tick than copy what one correction remembers (some hundred rows, labelled by one
pass through its trees) or point it at the trees that came back, compiled; so much is bounded whatever the number of
models. Packing, starting the process, waiting and reading are the matter of a thread, and none of it holds the
interpreter while the machine is busy with others (``spawn``). Whatever goes wrong (it may not be started, dies,
hangs, answers nonsense) is one problem that ``perphctl status`` shows; the model that there is stays.
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
"""A worker that takes longer is ended."""
RETRY_S: Final = 900.0
"""Pause after a rebuild that failed: it would fail again."""
COMMAND: Final = (sys.executable, "-P", "-m", "perphd.predictor.rebuild_worker")
"""The worker; nothing of the working directory is imported."""


@dataclass(frozen=True, slots=True)
class _Running:
    lra: str
    model: LraModel
    channel: str
    future: Future[Rebuilt]


class Rebuilds:
    """See the module.

    Args:
        registry: the models.
        records: takes problems.
        command: the worker: program and arguments.
        deadline_s: how long it may take.
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
        """Once a tick: take what is ready, start what is due. Never waits, never raises."""
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
        """All models, the LRA whose turn was last at the end: none is served again while another waits."""
        models = list(self._registry.all())
        after = next((i + 1 for i, (lra, _) in enumerate(models) if lra == self._last), 0)
        return models[after:] + models[:after]

    @property
    def ready(self) -> bool:
        """A rebuild is done and waits for the next step."""
        return self._running is not None and self._running.future.done()

    def close(self) -> None:
        """End the worker, if there is one."""
        self._stop.set()
        if self._running is not None:
            wait([self._running.future])

    def _start(self, lra: str, model: LraModel, channel: str, job: RebuildJob) -> None:
        future: Future[Rebuilt] = Future()
        self._running = _Running(lra, model, channel, future)
        # Thread.start() would wait until the kernel has run the new thread once; that may be long on a full machine.
        _thread.start_new_thread(self._answer, (future, job))

    def _take(self, running: _Running, now_s: float) -> None:
        self._running = None
        rebuilt: Rebuilt | None = None
        problem: str | None = None
        try:
            rebuilt = running.future.result()
            self.done += 1
        except PerphError as exc:
            problem = f"model of {running.lra} is not rebuilt, the one that there is stays: {exc}"
        except Exception as exc:  # whatever it is, the loop goes on with the model that it has
            problem = f"model of {running.lra} is not rebuilt, the one that there is stays: {exc!r}"
        if problem is not None:
            self._not_before_s = now_s + RETRY_S
        running.model.offer(running.channel, rebuilt)
        self._records.problem("rebuild", problem, now_s)

    def _answer(self, future: Future[Rebuilt], job: RebuildJob) -> None:
        """Runs in the thread."""
        try:
            future.set_result(self._run(job))
        except BaseException as exc:  # the loop hears of it
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
            raise RebuildFailed("perphd ends") from exc
        except OSError as exc:
            raise RebuildFailed(f"a worker cannot be started: {exc.strerror}: {self._command[0]}") from exc
        if ended.status != 0:
            said = ended.err.decode(errors="replace").strip().splitlines()
            raise RebuildFailed(f"the worker ended with {ended.status}: {said[-1] if said else 'no word'}")
        found = unpack_results(ended.out)
        if len(found) != 1:
            raise RebuildFailed(f"{len(found)} results for one job")
        return found[0]
