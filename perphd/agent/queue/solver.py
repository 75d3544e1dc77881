"""Improves plans with HiGHS, in a short-lived process of low priority. Without HiGHS, the greedy plan is used."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Final

from perphd.batch.planner import JobPlan, PlanWindow, RunningJob, WaitingJob, plan_of, program
from perphd.batch.solver import TIME_LIMIT_S, better, question

log = logging.getLogger("perphd")

COMMAND: Final = (sys.executable, "-P", "-m", "perphd.batch.solver")
PATIENCE_S: Final = 15.0
"""Seconds after which the process is killed: the solver's own time limit plus the start on a busy host."""
EVERY_S: Final = 30.0
"""Minimum time in seconds between the starts of two solver processes."""


class QueueSolver:
    """Improves a greedy plan that leaves candidates waiting. ``run``: replaces ``subprocess.run`` in tests."""

    def __init__(self, run: Callable[..., Any] = subprocess.run) -> None:
        self._run = run
        self._asked_s: float | None = None
        self._there = find_spec("highspy") is not None

    def improved(
        self,
        now_s: float,
        window: PlanWindow,
        waiting: Sequence[WaitingJob],
        running: Sequence[RunningJob],
        plan: JobPlan,
    ) -> JobPlan:
        """A plan of higher value, or ``plan``. Blocks while the process runs."""
        if not self._there or len(plan.now) == len(waiting):
            return plan
        if self._asked_s is not None and 0 <= now_s - self._asked_s < EVERY_S:
            return plan
        self._asked_s = now_s
        stated = program(window, waiting, running)
        asked = json.dumps(question(stated, plan, window.slot_s, TIME_LIMIT_S))
        try:
            done = self._run(
                COMMAND, input=asked, capture_output=True, text=True, timeout=PATIENCE_S, check=True
            )
            answer = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as exc:
            log.warning("the batch queue uses its greedy plan: HiGHS gave no usable answer: %s", exc)
            return plan
        solution = better(stated, plan, answer)
        return plan if solution is None else plan_of(solution, stated, window.slot_s)
