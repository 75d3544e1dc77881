"""Rebuilds of the models' trees, away from the loop: one model at a time, in a worker process that ends when done.

The loop only hands over arrays and takes results; the process is started and waited for by a thread. Whatever goes
wrong (it may not be started, dies, hangs, answers nonsense) is one problem that ``perphctl status`` shows; the model
that there is stays.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
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
    channels: tuple[str, ...]
    future: Future[list[Rebuilt]]


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
        self._thread: ThreadPoolExecutor | None = None
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
            if due := model.rebuilds_due():
                self._start(lra, model, due)
                return
        if self._thread is not None:  # nothing to do: keep no thread for it
            self._thread.shutdown(wait=False)
            self._thread = None

    def close(self) -> None:
        """End the worker, if there is one."""
        self._closed = True
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None

    def _start(self, lra: str, model: LraModel, due: Sequence[tuple[str, RebuildJob]]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="perphd-rebuild")
        jobs = [job for _, job in due]
        future = self._thread.submit(self._run, jobs)
        self._running = _Running(lra, model, tuple(channel for channel, _ in due), future)

    def _take(self, running: _Running, now_s: float) -> None:
        self._running = None
        problem: str | None = None
        try:
            found = running.future.result()
            for channel, rebuilt in zip(running.channels, found, strict=True):
                running.model.offer(channel, rebuilt)
            self.done += 1
        except PerphError as exc:
            problem = f"model of {running.lra} is not rebuilt, the one that there is stays: {exc}"
        except Exception as exc:  # whatever it is, the loop goes on with the model that it has
            problem = f"model of {running.lra} is not rebuilt, the one that there is stays: {exc!r}"
        if problem is not None:
            self._not_before_s = now_s + RETRY_S
            for channel in running.channels:
                running.model.offer(channel, None)
        self._records.problem("rebuild", problem, now_s)

    def _run(self, jobs: Sequence[RebuildJob]) -> list[Rebuilt]:
        """Runs in the thread."""
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
        with process:
            try:
                out, err = process.communicate(pack_jobs(jobs), timeout=self._deadline_s)
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
        if len(found) != len(jobs):
            raise RebuildFailed(f"{len(found)} results for {len(jobs)} jobs")
        return found
