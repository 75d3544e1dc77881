"""Rebuilds of the models' trees, away from the loop: one at a time, in a worker process that ends when done.

The loop does no more for one in any tick than copy what one correction remembers (some hundred rows, labelled by one
pass through its trees) or point it at the trees that came back, compiled; so much is bounded whatever the number of
models. Packing, starting the process, waiting and reading are the matter of a thread. Whatever goes
wrong (it may not be started, dies, hangs, answers nonsense) is one problem that ``perphctl status`` shows; the model
that there is stays.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Final

from perphd.agent.records import Records
from perphd.domain.errors import PerphError
from perphd.predictor import LraModel, Registry
from perphd.predictor.ogbrt.rebuild import RebuildJob, Rebuilt
from perphd.predictor.rebuild_worker import RebuildFailed, pack_jobs, unpack_results

DEADLINE_S: Final = 60.0
"""A worker that takes longer is ended."""
RETRY_S: Final = 900.0
"""After a rebuild that failed, none for so long: what failed once fails again."""
COMMAND: Final = (sys.executable, "-m", "perphd.predictor.rebuild_worker")
"""The worker."""


@dataclass(frozen=True, slots=True)
class _Running:
    lra: str
    model: LraModel
    channel: str
    future: Future[Rebuilt]
    thread: Thread


class Rebuilds:
    """See the module.

    Args:
        registry: the models.
        records: takes problems.
        command: the worker, as for ``subprocess``.
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
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before_s = 0.0
        self._closed = False
        self.done = 0

    def step(self, now_s: float) -> None:
        """Once a tick: take what is ready, start what is due. Never waits, never raises."""
        if self._running is not None:
            if not self._running.future.done():
                return
            self._take(self._running, now_s)
        if now_s < self._not_before_s or self._closed:
            return
        for lra, model in self._registry.all():
            due = model.next_rebuild()
            if due is not None:
                self._start(lra, model, *due)
                return

    @property
    def ready(self) -> bool:
        """A rebuild is done and waits for the next step."""
        return self._running is not None and self._running.future.done()

    def close(self) -> None:
        """End the worker, if there is one."""
        self._closed = True
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()
        if self._running is not None:
            self._running.thread.join()

    def _start(self, lra: str, model: LraModel, channel: str, job: RebuildJob) -> None:
        future: Future[Rebuilt] = Future()
        thread = Thread(target=self._answer, args=(future, job), name="perphd-rebuild", daemon=True)
        self._running = _Running(lra, model, channel, future, thread)
        thread.start()

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
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
                env=environment,
            )  # fmt: skip
        except OSError as exc:
            raise RebuildFailed(f"a worker cannot be started: {exc.strerror}: {exc.filename}") from exc
        self._process = process
        if self._closed:  # meanwhile
            process.kill()
        with process:
            try:
                out, err = process.communicate(pack_jobs([job]), timeout=self._deadline_s)
            except subprocess.TimeoutExpired as exc:
                process.kill()
                raise RebuildFailed(f"the worker did not end within {self._deadline_s:g} s") from exc
            finally:
                self._process = None
        if process.returncode != 0:
            said = err.decode(errors="replace").strip().splitlines()
            raise RebuildFailed(
                f"the worker ended with {process.returncode}: {said[-1] if said else 'no word'}"
            )
        found = unpack_results(out)
        if len(found) != 1:
            raise RebuildFailed(f"{len(found)} results for one job")
        return found[0]
