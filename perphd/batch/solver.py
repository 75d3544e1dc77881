"""Finds the exact plan in a short-lived process: ``python -m perphd.batch.solver`` solves one integer program by HiGHS.

The process reads one JSON object from standard input (worth, rows, bounds, start, time_limit_s), and writes one to
standard output: the solution, or null if HiGHS found none. The caller checks it (``better``). HiGHS is an optional
dependency (the extra ``worker``), and the daemon never imports it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, Final

import numpy as np

from perphd.batch.planner import IntegerProgram, JobPlan, feasible, solution_of
from perphd.forecast.histogram import Floats

TIME_LIMIT_S: Final = 2.0
NICENESS: Final = 15
_ROUNDING: Final = 1e-6


def question(
    stated: IntegerProgram, plan: JobPlan, slot_s: float, time_limit_s: float = TIME_LIMIT_S
) -> dict[str, Any]:
    """Input for the solver process. HiGHS starts its search from ``plan``."""
    return {
        "worth": stated.worth.tolist(),
        "rows": stated.rows.tolist(),
        "bounds": stated.bounds.tolist(),
        "start": solution_of(plan, stated, slot_s).tolist(),
        "time_limit_s": time_limit_s,
    }


def better(stated: IntegerProgram, plan: JobPlan, answer: list[float] | None) -> Floats | None:
    """The solution in ``answer`` if it is feasible and better than ``plan``; the solver's output is verified."""
    if answer is None or len(answer) != len(stated.options):
        return None
    solution: Floats = np.asarray(np.round(np.array(answer)), dtype=np.float64)
    binary = bool(np.all((solution == 0.0) | (solution == 1.0)))
    if (
        not binary
        or not feasible(solution, stated)
        or float(stated.worth @ solution) <= plan.worth + _ROUNDING
    ):
        return None
    return solution


def solved(asked: dict[str, Any]) -> list[float] | None:
    """The best solution that HiGHS finds within the time limit; None if it finds none."""
    highspy: Any = importlib.import_module("highspy")
    columns, rows = len(asked["worth"]), np.array(asked["rows"], dtype=np.float64)
    if not columns:
        return None
    problem = highspy.HighsLp()
    problem.num_col_, problem.num_row_ = columns, len(rows)
    problem.sense_ = highspy.ObjSense.kMaximize
    problem.col_cost_ = np.array(asked["worth"])
    problem.col_lower_, problem.col_upper_ = np.zeros(columns), np.ones(columns)
    problem.row_lower_ = np.full(len(rows), -highspy.kHighsInf)
    problem.row_upper_ = np.array(asked["bounds"])
    problem.integrality_ = [highspy.HighsVarType.kInteger] * columns
    places = [np.nonzero(row)[0] for row in rows]
    problem.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    problem.a_matrix_.start_ = np.cumsum([0, *map(len, places)])
    problem.a_matrix_.index_ = np.concatenate(places) if places else np.empty(0)
    problem.a_matrix_.value_ = np.concatenate([row[at] for row, at in zip(rows, places, strict=True)])
    highs = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("time_limit", float(asked["time_limit_s"])),
    ):
        highs.setOptionValue(option, value)
    highs.passModel(problem)
    start = highspy.HighsSolution()
    start.col_value = list(asked["start"])
    highs.setSolution(start)
    highs.run()
    found = [float(x) for x in highs.getSolution().col_value]
    return found if len(found) == columns and highs.getInfo().primal_solution_status == 2 else None


def main() -> int:
    """Answer one question from standard input, at low priority. Returns the exit status."""
    os.nice(NICENESS)
    json.dump(solved(json.load(sys.stdin)), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
