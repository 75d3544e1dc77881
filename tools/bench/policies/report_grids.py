"""The part of the report about CLITE's grids, compared with the published results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from tools.bench.policies.report_text import mean, number

PUBLISHED: Final = {
    ("fig7", "clite"): 0.90, ("fig7", "parties"): 0.72, ("fig7", "heracles-literal"): 0.0,
    ("fig8", "clite"): 0.92, ("fig8", "parties"): 0.45,
    ("fig12", "clite"): 0.90, ("fig12", "parties"): 0.573,
}  # fmt: skip
"""CLITE's paper (HPCA 2020), read from its figures: means of value over ORACLE's, PARTIES as compared there."""
TOLERANCE: Final = 0.15
"""Greatest absolute distance of a mean over the grid from the published one to count as reproduced."""
PARTIES: Final = (("parties", "by its own rules"), ("parties-until-met", "until all targets are met"))
"""Two interpretations of PARTIES in CLITE's comparison: as published by its authors, and as described by CLITE's."""


def grid_summary(cells: Sequence[dict[str, Any]], grid: str, policy: str) -> dict[str, float]:
    """``feasible``: share of the cells with a value among those where ORACLE has one; ``mean``, ``least``: value over
    ORACLE's.
    """
    mine = [c for c in cells if c["grid"] == grid and c["policy"] == policy]
    open_cells = [c for c in mine if (c["reference"] or 0.0) > 0]
    ratios = []
    for cell in open_cells:
        value = cell["value"] or 0.0
        if grid == "fig12":
            ratios.append(1.0 if policy == "oracle" else value)
        else:
            ratios.append(value / cell["reference"])
    return {
        "cells": float(len(mine)),
        "open": float(len(open_cells)),
        "feasible": float(sum(r > 0 for r in ratios)),
        "mean": mean(ratios),
        "mean_where_met": mean(r for r in ratios if r > 0),
        "least": min((r for r in ratios if r > 0), default=math.nan),
    }


def section(cells: list[dict[str, Any]]) -> list[str]:
    """The grids in the report."""
    if not cells:
        return []
    lines = [
        "## CLITE's grids",
        "",
        "On the model of CLITE's machine; ORACLE in CLITE's space (every core, way and tenth of bandwidth is "
        "somebody's, at least one each). fig7, fig8: memcached's greatest load beside img-dnn and masstree at every "
        "load; *mean* is over ORACLE's, an unmet cell counting 0. fig12: the streamer's work over ORACLE's. Targets: "
        "the latency at the knee and a tenth, in every cell of every grid (tools/bench/policies/grids.py says why); no "
        "figure is tuned for a cell or a grid. CLITE and PARTIES look for two seconds at a configuration, as there. "
        "parties adds units while slack is below 5 %, its authors' rule; parties-until-met is PARTIES as CLITE's "
        "authors describe what they compared with: units are added until all targets are met, the rest is batch's; in "
        "parties-literal, by its authors' rule, moreover only the application with the most slack gives, and nobody "
        "does any more once that one is down to one unit of everything.",
        "",
        "| grid | policy | cells met | of those ORACLE meets | mean | mean where met | least where met | published |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for grid in dict.fromkeys(c["grid"] for c in cells):
        for policy in dict.fromkeys(c["policy"] for c in cells if c["grid"] == grid):
            s = grid_summary(cells, grid, policy)
            published = PUBLISHED.get((grid, policy.removesuffix("-until-met")))
            lines.append(
                f"| {grid} | {policy} | {s['feasible']:.0f} | {s['open']:.0f} of {s['cells']:.0f} "
                f"| {number(s['mean'], 2)} | {number(s['mean_where_met'], 2)} | {number(s['least'], 2)} "
                f"| {'' if published is None else f'{published:.2f}'} |"
            )
    return [*lines, "", *reproduced(cells), ""]


def reproduced(cells: list[dict[str, Any]]) -> list[str]:
    """Lines that state whether the published order and the published values were reproduced."""
    lines = []
    for grid in dict.fromkeys(c["grid"] for c in cells):
        found = {p: grid_summary(cells, grid, p) for p in dict.fromkeys(c["policy"] for c in cells)}
        if any(
            not found.get(p, {}).get("cells") for p in ("oracle", "clite", "heracles-literal", *dict(PARTIES))
        ):
            continue
        ratios = {policy: one["mean"] for policy, one in found.items()}
        for policy, reading in PARTIES:
            found_order = [ratios[p] for p in ("oracle", "clite", policy, "heracles-literal")]
            best, second, third, last = found_order
            holds = best >= second > third > last
            lines.append(
                f"- {grid}: ORACLE >= CLITE > PARTIES > Heracles {'holds' if holds else '**does not hold**'} in the "
                f"mean over the cells with PARTIES {reading} ({', '.join(f'{ratio:.2f}' for ratio in found_order)})."
            )
        sizes = (("clite", "clite", ""), *(("parties", p, f", {reading},") for p, reading in PARTIES))
        for name, policy, reading in (*sizes, ("heracles-literal", "heracles-literal", "")):
            published = PUBLISHED.get((grid, name))
            if published is None:
                continue
            within = "within" if abs(ratios[policy] - published) <= TOLERANCE else "**not within**"
            lines.append(
                f"- {grid}: {name}{reading} {ratios[policy]:.2f} of ORACLE, published {published:.2f}: "
                f"{within} {TOLERANCE:g}."
            )
    return lines
