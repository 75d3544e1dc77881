"""ORACLE in the space of the published partitioning controllers: every unit of cores, ways and bandwidth is assigned.

PARTIES and CLITE divide whole cores, cache ways and tenths of bandwidth among all jobs: each job gets at least one, and
all units are assigned. Their results must be compared with the best point of the same space, not with settings that
they cannot express (an unthrottled batch job beside unthrottled services). The search uses branch and bound: the
performance of a workload alone with a part is an upper bound of its performance with it beside others.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from perphd.domain.cpuset import CpuSet
from perphd.sim.node.grant import Array, Grant
from perphd.sim.node.model import Node
from tools.bench.policies.oracle import MET, Optimum, Situation, alone_rate, batch_work, compositions, scores
from tools.bench.policies.peers.units import MBA_UNITS

_CHUNK: Final = 192
_MOST_LOOKS: Final = 8000
"""Maximum number of divisions that are computed with all workloads."""


def divided(here: Situation) -> Optimum:
    """The best division of all units: every target met, then batch's work (without batch: the worst score)."""
    machine, count = here.machine, len(here.works)
    totals = machine.cores, machine.llc_ways, MBA_UNITS
    if min(totals) < count:
        return Optimum(False, 0.0, -1.0, "more workloads than units", 0)
    most = tuple(total - count + 1 for total in totals)
    alone = [_alone(here, index, most) for index in range(count)]
    looks = count * most[0] * most[1] * most[2]
    rows = [np.array(list(compositions(total, count))) - 1 for total in totals]
    c, w, m = (axis.ravel() for axis in np.meshgrid(*(np.arange(len(r)) for r in rows), indexing="ij"))
    worst, bound = np.full(len(c), np.inf), np.zeros(len(c))
    for index in range(count):
        reach = alone[index][rows[0][c, index], rows[1][w, index], rows[2][m, index]]
        if index in here.lras:
            worst = np.minimum(worst, reach)
        else:
            bound += reach / len(here.batch)
    good = np.flatnonzero(worst >= MET)
    if not len(good):
        return Optimum(False, 0.0, float(worst.max()), "no part suffices for somebody even alone", looks)
    order = good[np.lexsort((-worst[good], -bound[good]))]
    node = Node(machine, here.works)
    champion = Optimum(False, 0.0, -1.0, "", 0)
    for start in range(0, min(len(order), _MOST_LOOKS), _CHUNK):
        some = order[start : start + _CHUNK]
        if champion.feasible and (not here.batch or champion.work >= float(bound[some[0]]) - 1e-9):
            break
        units = [(rows[0][c[i]] + 1, rows[1][w[i]] + 1, rows[2][m[i]] + 1) for i in some]
        told = node.solve([_grants(here, *parts) for parts in units], here.loads, chunk=_CHUNK)
        looks += len(some)
        score, done = scores(here, told), batch_work(here, told.work_per_s)
        met = score >= MET
        at = int(np.where(met, done + 1e-9 * score, -1.0).argmax()) if met.any() else int(score.argmax())
        found = Optimum(
            bool(met[at]), float(done[at]) if met[at] else 0.0, float(score[at]), _how(*units[at]), 0
        )
        champion = max((champion, found), key=lambda o: (o.feasible, o.work if o.feasible else o.score))
    return Optimum(champion.feasible, champion.work, champion.score, champion.how, looks)


def _alone(here: Situation, index: int, most: tuple[int, ...]) -> Array:
    """An LRA's score, or batch's share of its rate on the whole machine, alone with each part [cores, ways, tenths]."""
    machine, work, goal = here.machine, here.works[index], here.goals[index]
    table = [
        [_grant(here, 0, 0, cores, ways, tenths)]
        for cores in range(1, most[0] + 1)
        for ways in range(1, most[1] + 1)
        for tenths in range(1, most[2] + 1)
    ]
    told = Node(machine, [work]).solve(table, [here.loads[index]])
    rates, latencies = told.work_per_s[:, 0], told.p95_ms[:, 0]
    if work.requests is None:
        found = rates / alone_rate(machine, work, here.loads[index])
    elif goal is None:
        found = np.full(len(table), np.inf)
    else:
        found = np.array([goal.score(float(r), float(p)) for r, p in zip(rates, latencies, strict=True)])
    reach: Array = found.reshape(most)
    return reach


def _grant(here: Situation, core: int, way: int, cores: int, ways: int, tenths: int) -> Grant:
    sockets = here.machine.sockets
    cpus: CpuSet = here.machine.first_cores(int(cores), core)
    mask = ((1 << int(ways)) - 1) << way
    return Grant(cpus=cpus, masks=(mask,) * sockets, mba_pct=(10 * int(tenths),) * sockets)


def _grants(here: Situation, cores: Array, ways: Array, tenths: Array) -> list[Grant]:
    row, core, way = [], 0, 0
    for index in range(len(here.works)):
        row.append(_grant(here, core, way, int(cores[index]), int(ways[index]), int(tenths[index])))
        core, way = core + int(cores[index]), way + int(ways[index])
    return row


def _how(cores: Array, ways: Array, tenths: Array) -> str:
    return "parts: " + ", ".join(
        f"{name} {'/'.join(map(str, part))}"
        for name, part in (("cores", cores), ("ways", ways), ("tenths of bandwidth", tenths))
    )
