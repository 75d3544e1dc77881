"""The pairing of least sum as an integer program over kinds of tenants, for nodes with many equal pods.

    minimise    sum over s <= t of w_st x_st        x_st: pairs of a tenant of kind s and one of kind t
    for every s:    2 x_ss + sum over t != s of x_st = tenants of kind s

A kind is an application and a request; with an odd number, one tenant stays unpaired and counts with its request. The
sum is that of ``perphd.forecast.peaks.matched``, whose cost grows with the cube of the tenants. HiGHS solves this in
milliseconds.
"""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any

import numpy as np

from perphd.forecast.peaks import HostUsage
from perphd.forecast.usage_profile import effective_ratio


def least_pairs(host: HostUsage) -> float:
    """The least sum of the pairs of these tenants."""
    counts = Counter((tenant.application, tenant.request) for tenant in host.tenants)
    kinds = sorted(counts)
    number = [counts[kind] for kind in kinds] + [1] * (len(host.tenants) % 2)
    costs, ends, most = [], [], []
    for s, (first, request) in enumerate(kinds):
        for t in range(s, len(number)):
            if t == s and number[s] < 2:
                continue
            costs.append(
                effective_ratio(host.profile, first, kinds[t][0]) * (request + kinds[t][1])
                if t < len(kinds)
                else request
            )
            ends.append((s, t))
            most.append(number[s] // 2 if s == t else min(number[s], number[t]))
    return _solved(costs, ends, most, number) if costs else 0.0


def _solved(costs: list[float], ends: list[tuple[int, int]], most: list[int], number: list[int]) -> float:
    highspy: Any = importlib.import_module("highspy")
    problem = highspy.HighsLp()
    problem.num_col_, problem.num_row_ = len(costs), len(number)
    problem.col_cost_ = np.array(costs)
    problem.col_lower_, problem.col_upper_ = np.zeros(len(costs)), np.array(most, dtype=np.float64)
    problem.row_lower_ = problem.row_upper_ = np.array(number, dtype=np.float64)
    problem.integrality_ = [highspy.HighsVarType.kInteger] * len(costs)
    problem.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    index, value, start = [], [], [0]
    for s, t in ends:
        index += [s] if s == t else [s, t]
        value += [2.0] if s == t else [1.0, 1.0]
        start.append(len(index))
    problem.a_matrix_.start_, problem.a_matrix_.index_ = np.array(start), np.array(index)
    problem.a_matrix_.value_ = np.array(value)
    highs = highspy.Highs()
    for option, wanted in (
        ("output_flag", False),
        ("threads", 1),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-9),
    ):
        highs.setOptionValue(option, wanted)
    highs.passModel(problem)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS found no pairing: {highs.getModelStatus()}")
    return float(highs.getInfo().objective_function_value)
