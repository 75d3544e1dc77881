"""The report: Markdown for reading in a checkout, HTML with plots in one file."""

from __future__ import annotations

import base64
import html
import io
import math
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.bench.policies import enough
from tools.bench.policies.catalogue import ENTRANTS
from tools.bench.policies.measure import Result

PUBLISHED: Final = {
    ("fig7", "oracle"): "89 of 100 cells", ("fig7", "clite"): "85 of 100; 0.90 of ORACLE's load",
    ("fig7", "parties"): "73 of 100; 0.72", ("fig7", "heracles-literal"): "0 of 100",
    ("fig8", "oracle"): "69 of 100", ("fig8", "clite"): "68 of 100; 0.92", ("fig8", "parties"): "40 of 100; 0.45",
    ("fig12", "clite"): "0.90 (least 0.58)", ("fig12", "parties"): "0.573 (least 0.49)",
    ("fig7", "parties-literal"): "as PARTIES", ("fig8", "parties-literal"): "as PARTIES",
    ("fig12", "parties-literal"): "as PARTIES",
}  # fmt: skip
"""CLITE's paper (HPCA 2020), as read from its figures."""
TOLERANCE: Final = 0.15
"""How far a mean over the grid may be from the published one, in absolute terms, to count as reproduced."""


@dataclass(frozen=True, slots=True)
class About:
    """How the results came about. ``wall_s``, ``worker_s``, ``computed``: of this call alone; ``cut``: what was left
    out; ``failed``: what could not be computed, and why.
    """

    command: str
    wall_s: float = 0.0
    worker_s: float = 0.0
    jobs: int = 1
    computed: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    cut: str = ""


def write(
    out: Path, runs: Sequence[Result], cells: list[dict[str, Any]], knees: list[list[dict[str, Any]]],
    agents: list[dict[str, Any]], about: About, steps: Sequence[enough.Neighbour] = (),
) -> str:  # fmt: skip
    """Write report.md, report.html and headline.md (the README's table); returns the head of the Markdown."""
    head = [*_head(about), *_headline(runs)]
    parts = [
        *head, *_quiet(runs), *_grids(cells), *_families(runs), *_losses(runs), *enough.section(steps), *_knees(knees),
        *_agents(agents), *_scenarios(runs),
    ]  # fmt: skip
    text = "\n".join(parts) + "\n"
    (out / "report.md").write_text(text)
    (out / "headline.md").write_text("\n".join(_short(runs, cells, about)) + "\n")
    (out / "report.html").write_text(_html(text, _plots(runs, cells)))
    return "\n".join(head)


def _head(about: About) -> list[str]:
    return [
        "# Policies beside each other and beside the optimum",
        "",
        f"`{about.command}` on {os.cpu_count()} CPUs, Python {platform.python_version()}: {about.computed} results "
        f"computed in {about.wall_s:.0f} s by {about.jobs} processes ({about.worker_s:.0f} s of CPU); what was there "
        "already is not counted.",
        *([f"**{len(about.failed)} could not be computed** and are missing below."] if about.failed else []),
        *([f"Kept short: {about.cut}"] if about.cut else []),
        "",
        "Everything runs on the node model in virtual time; the truth of every figure is the model's, without noise.",
        "A target counts as missed if it is missed by more than 2 %. *missed*: share of the time in which a target is",
        "missed although ORACLE meets all; *depth*: by how much, on average, while it is missed. *batch*: batch's work",
        "over ORACLE's; *good batch*: the same without what was done while a target was missed; *settled*: both in the",
        "last half of each run. *found*: runs in which all targets were met for three rounds, the median time until",
        "then. *spread*: standard deviation over seeds over the mean, of good batch. Means over scenarios.",
        "",
    ]


def _short(runs: Sequence[Result], cells: list[dict[str, Any]], about: About) -> list[str]:
    """The table for the README, with the command that makes it and what the columns mean."""
    table = [line for line in _headline(runs) if line.startswith("|")]
    return [
        f"From `{about.command}` ({len({r.scenario for r in runs})} scenarios, {len(runs)} runs). {about.cut}",
        "*missed*: share of the time in which a target is missed although the optimum meets all; *batch*: batch's "
        "work over the optimum's; *good batch*: without what was done while a target was missed; *settled*: in the "
        "last half of each run.",
        "",
        *table,
        "",
        *_reproduced(cells),
    ]


# -- the headline --------------------------------------------------------------------------------------


def _headline(runs: Sequence[Result]) -> list[str]:
    judged = [r for r in runs if not math.isnan(r.of_oracle) and r.family != "quiet"]
    if not judged:
        return []
    lines = [
        f"## All scenarios in which the targets can be met ({len({r.scenario for r in judged})})",
        "",
        "| policy | missed | depth | batch | good batch | settled: missed | settled: batch | found "
        "| changes/min | spread | decision p50 ms |",
        "| --- |" + " ---: |" * 10,
    ]
    for policy in _policies(judged):
        mine = [r for r in judged if r.policy == policy]
        found = [r.first_ok_s for r in mine if not math.isnan(r.first_ok_s)]
        median = f"{statistics.median(found):.1f} s" if found else "-"
        cells = [
            policy,
            _pct(_mean(r.excess_s / max(r.seconds, 1e-9) for r in mine)),
            _pct(_mean(r.depth for r in mine)),
            _pct(_mean(r.of_oracle for r in mine)),
            _pct(_mean(r.good_of_oracle for r in mine)),
            _pct(_mean(r.steady_violation_share for r in mine)),
            _pct(_mean(r.steady_of_oracle for r in mine)),
            f"{len(found)}/{len(mine)}, {median}",
            f"{_mean(r.churn for r in mine):.1f}",
            _pct(spread(mine)),
            f"{statistics.median(r.decide_ms for r in mine):.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def spread(runs: Sequence[Result]) -> float:
    """Standard deviation over seeds over the mean, of good batch work; mean over scenarios."""
    found = []
    for scenario in {r.scenario for r in runs}:
        values = [r.good_of_oracle for r in runs if r.scenario == scenario]
        if len(values) > 1 and statistics.fmean(values) > 1e-6:
            found.append(statistics.stdev(values) / statistics.fmean(values))
    return _mean(found)


def _families(runs: Sequence[Result]) -> list[str]:
    lines: list[str] = []
    families = list(dict.fromkeys(r.family for r in runs if r.family != "quiet"))
    for family in families:
        mine = [r for r in runs if r.family == family]
        lines += [
            f"## {family}", "",
            "| policy | missed, s of | depth | batch | good batch | settled missed | settled batch | LRAs' work "
            "| makespan s | changes/min |",
            "| --- |" + " ---: |" * 9,
        ]  # fmt: skip
        for policy in _policies(mine):
            some = [r for r in mine if r.policy == policy]
            lines.append(
                f"| {policy} | {_mean(r.violation_s for r in some):.1f} of {_mean(r.seconds for r in some):.0f} "
                f"| {_pct(_mean(r.depth for r in some))} | {_pct(_mean(r.of_oracle for r in some))} "
                f"| {_pct(_mean(r.good_of_oracle for r in some))} "
                f"| {_pct(_mean(r.steady_violation_share for r in some))} "
                f"| {_pct(_mean(r.steady_of_oracle for r in some))} | {_pct(_mean(r.work for r in some))} "
                f"| {_number(_mean(r.makespan_s for r in some), 0)} | {_mean(r.churn for r in some):.1f} |"
            )
        lines.append("")
    return lines


def _scenarios(runs: Sequence[Result]) -> list[str]:
    policies = _policies(runs)
    lines = [
        "## Every scenario", "",
        "Seconds in which a target was missed / good batch work over ORACLE's (- where no setting meets the targets).",
        "", "| scenario | " + " | ".join(policies) + " |", "| --- |" + " ---: |" * len(policies),
    ]  # fmt: skip
    for scenario in dict.fromkeys(r.scenario for r in runs):
        row = [scenario]
        for policy in policies:
            some = [r for r in runs if r.scenario == scenario and r.policy == policy]
            good = _mean(r.good_of_oracle for r in some)
            row.append(f"{_mean(r.violation_s for r in some):.0f} / {_pct(good)}" if some else "")
        lines.append("| " + " | ".join(row) + " |")
    return [*lines, ""]


def _quiet(runs: Sequence[Result]) -> list[str]:
    mine = [r for r in runs if r.family == "quiet"]
    if not mine:
        return []
    lines = [
        "## A day without an antagonist", "",
        "Whatever is changed is a false action; the rounds in which a policy sets itself up are counted, too.",
        "",
        "| policy | rounds with a change per day | knobs per day | missed s per day |",
        "| --- | ---: | ---: | ---: |",
    ]  # fmt: skip
    for policy in _policies(mine):
        some = [r for r in mine if r.policy == policy]
        days = _mean(r.seconds for r in some) / 86_400.0
        lines.append(
            f"| {policy} | {_mean(r.actions for r in some) / days:.0f} "
            f"| {_mean(r.churn * r.seconds / 60.0 for r in some) / days:.0f} "
            f"| {_mean(r.violation_s for r in some) / days:.0f} |"
        )
    return [*lines, ""]


# -- CLITE's grids ---------------------------------------------------------------------------------------


def grid_summary(cells: Sequence[dict[str, Any]], grid: str, policy: str) -> dict[str, float]:
    """``feasible``: cells with a value, of those where ORACLE has one; ``mean``, ``least``: value over ORACLE's."""
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
        "mean": _mean(ratios),
        "mean_where_met": _mean(r for r in ratios if r > 0),
        "least": min((r for r in ratios if r > 0), default=math.nan),
    }


def _grids(cells: list[dict[str, Any]]) -> list[str]:
    if not cells:
        return []
    lines = [
        "## CLITE's grids",
        "",
        "On the model of CLITE's machine; ORACLE in CLITE's space (every core, way and tenth of bandwidth is "
        "somebody's, at least one each). fig7, fig8: memcached's greatest load beside img-dnn and masstree at every "
        "load; *mean* is over ORACLE's, an unmet cell counting 0. fig12: the streamer's work over ORACLE's. CLITE and "
        "PARTIES look for two seconds at a configuration, as there. No figure is tuned for a cell. The printed rule of "
        "PARTIES (parties-literal) lets only the application with the most slack give, and stops for good when that "
        "one is down to one unit of everything; parties passes it over. Targets: the latency at the knee and a tenth "
        "more in fig7 and fig8, a quarter more in fig12 (tools/bench/policies/grids.py says why).",
        "",
        "| grid | policy | cells met | of those ORACLE meets | mean | mean where met | least where met | published |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for grid in dict.fromkeys(c["grid"] for c in cells):
        for policy in dict.fromkeys(c["policy"] for c in cells if c["grid"] == grid):
            s = grid_summary(cells, grid, policy)
            lines.append(
                f"| {grid} | {policy} | {s['feasible']:.0f} | {s['open']:.0f} of {s['cells']:.0f} "
                f"| {_number(s['mean'], 2)} | {_number(s['mean_where_met'], 2)} | {_number(s['least'], 2)} "
                f"| {PUBLISHED.get((grid, policy), '')} |"
            )
    return [*lines, "", *_reproduced(cells), ""]


def _reproduced(cells: list[dict[str, Any]]) -> list[str]:
    lines = []
    for grid in dict.fromkeys(c["grid"] for c in cells):
        order = ("oracle", "clite", "parties", "parties-literal", "heracles-literal")
        found = {p: grid_summary(cells, grid, p) for p in order}
        if any(not found[p]["cells"] for p in order):
            continue
        values = [found[p]["mean"] for p in order]
        rest = "ORACLE >= CLITE > PARTIES (both readings) > Heracles"
        holds = values[0] >= values[1] and all(
            values[1] > found[p]["mean"] > values[-1] for p in ("parties", "parties-literal")
        )
        lines.append(
            f"- {grid}: {rest} {'holds' if holds else '**does not hold**'} in the mean over the cells "
            f"({', '.join(f'{p} {v:.2f}' for p, v in zip(order, values, strict=True))})."
        )
        if grid == "fig12":
            for policy, published in (("clite", 0.90), ("parties", 0.573), ("parties-literal", 0.573)):
                ratio = found[policy]["mean_where_met"]
                within = abs(ratio - published) <= TOLERANCE
                lines.append(
                    f"- {grid}: {policy} {ratio:.2f} of ORACLE where it meets the targets, published {published:.2f}: "
                    f"{'within' if within else '**not within**'} {TOLERANCE:g}."
                )
    return lines


# -- where perph loses, knees, the whole agent --------------------------------------------------------------


def _losses(runs: Sequence[Result], name: str = "perph", shown: int = 12) -> list[str]:
    """The scenarios in which somebody else did most better than perph."""
    rows = []
    for scenario in dict.fromkeys(r.scenario for r in runs):
        mine = [r for r in runs if r.scenario == scenario and r.policy == name]
        if not mine or all(math.isnan(r.good_of_oracle) for r in mine):
            continue
        others = {}
        for policy in _policies(runs):
            some = [r for r in runs if r.scenario == scenario and r.policy == policy]
            if some and policy not in (name, "none"):
                others[policy] = _mean(r.good_of_oracle for r in some)
        if not others:
            continue
        best = max(others, key=lambda p: others[p])
        gap = others[best] - _mean(r.good_of_oracle for r in mine)
        rows.append((gap, scenario, best, others[best], mine))
    rows.sort(key=lambda row: -row[0])
    lines = [
        f"## Where {name} loses most", "",
        f"| scenario | best other | its good batch | {name}'s | missed s | settled batch | settled missed |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for gap, scenario, best, value, mine in rows[:shown]:
        if gap <= 0:
            break
        lines.append(
            f"| {scenario} | {best} | {_pct(value)} | {_pct(_mean(r.good_of_oracle for r in mine))} "
            f"| {_mean(r.violation_s for r in mine):.0f} of {_mean(r.seconds for r in mine):.0f} "
            f"| {_pct(_mean(r.steady_of_oracle for r in mine))} "
            f"| {_pct(_mean(r.steady_violation_share for r in mine))} |"
        )
    won = sum(row[0] <= 0 for row in rows)
    return [*lines, "", f"{name} is best or equal in {won} of {len(rows)} scenarios.", ""] if rows else []


def _knees(knees: list[list[dict[str, Any]]]) -> list[str]:
    if not knees:
        return []
    lines = [
        "## Is what was chosen the knee?", "",
        "One dimension of batch's settings varied around the end of a run, noise-free: worst LRA's score (1 is the "
        "target) / batch's work. **Bold** is what was chosen.", "",
    ]  # fmt: skip
    for points in knees:
        if not points:
            continue
        lines += [f"{points[0]['scenario']}, {points[0]['policy']}:", ""]
        for dimension in dict.fromkeys(p["dimension"] for p in points):
            some = [p for p in points if p["dimension"] == dimension]
            texts = []
            for p in some:
                text = f"{p['value']}: {p['score']:.2f} / {p['batch']:.2f}"
                texts.append(f"**{text}**" if p["chosen"] else text)
            lines.append(f"- {dimension}: " + "; ".join(texts))
        lines.append("")
    return lines


def _agents(agents: list[dict[str, Any]]) -> list[str]:
    if not agents:
        return []
    lines = [
        "## The whole agent on simulated kernel trees", "",
        "*Virtual s per CPU s*: with physics, kernel trees, sampling, models, policy and enforcement, on one core.", "",
        "| scenario | policy | missed s | LRA's work | batch's work | virtual s per CPU s |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for item in agents:
        lines.append(
            f"| {item['scenario']} | {item['policy']} | {item['violation_s']:.0f} of {item['seconds']:.0f} "
            f"| {_pct(item['work'])} | {_pct(item['batch'])} | {item['speed']:.0f} |"
        )
    return [*lines, ""]


# -- plots and HTML ----------------------------------------------------------------------------------------


def _plots(runs: Sequence[Result], cells: list[dict[str, Any]]) -> list[str]:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    images: list[str] = []

    def keep(figure: Any) -> None:
        data = io.BytesIO()
        figure.tight_layout()
        figure.savefig(data, format="png", dpi=80)
        plt.close(figure)
        images.append(base64.b64encode(data.getvalue()).decode())

    judged = [r for r in runs if not math.isnan(r.of_oracle)]
    if judged:
        figure, axis = plt.subplots(figsize=(8, 5))
        for policy in _policies(judged):
            mine = [r for r in judged if r.policy == policy]
            missed = 100 * _mean(r.excess_s / max(r.seconds, 1e-9) for r in mine)
            done = 100 * _mean(r.of_oracle for r in mine)
            axis.scatter(missed, done, s=60)
            axis.annotate(policy, (missed, done), textcoords="offset points", xytext=(6, 4))
        axis.axhline(100, color="grey", linestyle=":")
        axis.set_xlabel("time with a missed target that could be met, %")
        axis.set_ylabel("batch's work over ORACLE's, %")
        axis.grid(alpha=0.3)
        keep(figure)
        families = list(dict.fromkeys(r.family for r in judged))
        figure, axis = plt.subplots(figsize=(10, 4.5))
        policies = _policies(judged)
        width = 0.8 / max(1, len(policies))
        for place, policy in enumerate(policies):
            values = [
                100 * _mean(r.good_of_oracle for r in judged if r.policy == policy and r.family == family)
                for family in families
            ]
            axis.bar([i + place * width for i in range(len(families))], values, width, label=policy)
        axis.set_xticks([i + 0.4 for i in range(len(families))], families)
        axis.set_ylabel("good batch work over ORACLE's, %")
        axis.legend(fontsize=7, ncol=5)
        axis.grid(alpha=0.3, axis="y")
        keep(figure)
    for grid in dict.fromkeys(c["grid"] for c in cells):
        policies = list(dict.fromkeys(c["policy"] for c in cells if c["grid"] == grid))
        figure, axes = plt.subplots(1, len(policies), figsize=(2.6 * len(policies), 3), squeeze=False)
        for axis, policy in zip(axes[0], policies, strict=True):
            some = [c for c in cells if c["grid"] == grid and c["policy"] == policy]
            rows, columns = sorted({c["row"] for c in some}), sorted({c["column"] for c in some})
            table = [[math.nan] * len(columns) for _ in rows]
            for c in some:
                table[rows.index(c["row"])][columns.index(c["column"])] = c["value"] or 0.0
            axis.imshow(table, vmin=0, vmax=1.0, origin="lower", cmap="viridis")
            axis.set_title(f"{grid} {policy}", fontsize=8)
            axis.set_xticks(range(len(columns)), [f"{v:.0%}" for v in columns], fontsize=6)
            axis.set_yticks(range(len(rows)), [f"{v:.0%}" for v in rows], fontsize=6)
        keep(figure)
    return images


def _html(text: str, images: Sequence[str]) -> str:
    """Just enough Markdown: headings, tables, lists, paragraphs."""
    body: list[str] = []
    table: list[str] = []
    shown = False
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            body.append(_table(table))
            table = []
        if line.startswith("#"):
            level = len(line) - len(line.lstrip("#"))
            if level == 2 and len(body) > 3 and not shown:
                body += [f'<img alt="plot" src="data:image/png;base64,{image}">' for image in images]
                shown = True
            body.append(f"<h{level}>{_inline(line.lstrip('# '))}</h{level}>")
        elif line.startswith("- "):
            body.append(f"<li>{_inline(line[2:])}</li>")
        elif line:
            body.append(f"<p>{_inline(line)}</p>")
    if not shown:
        body += [f'<img alt="plot" src="data:image/png;base64,{image}">' for image in images]
    style = (
        "body{font:14px sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
        "td,th{border:1px solid #ccc;padding:2px 8px;text-align:right}td:first-child{text-align:left}"
        "img{max-width:100%}"
    )
    return (
        "<!doctype html><html><head><meta charset='utf-8'><title>Policies</title>"
        f"<style>{style}</style></head><body>" + "\n".join(body) + "</body></html>\n"
    )


def _table(lines: Sequence[str]) -> str:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head, rest = rows[0], rows[2:]
    cells = "".join(f"<th>{_inline(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rest)
    return f"<table><tr>{cells}</tr>{body}</table>"


def _inline(text: str) -> str:
    text = html.escape(text)
    for mark, tag in (("**", "b"), ("`", "code"), ("*", "i")):
        pieces = text.split(mark)
        if len(pieces) % 2 == 1:
            text = "".join(
                piece if index % 2 == 0 else f"<{tag}>{piece}</{tag}>" for index, piece in enumerate(pieces)
            )
    return text


# -- small things ------------------------------------------------------------------------------------------


def _policies(runs: Sequence[Result]) -> list[str]:
    present = {r.policy for r in runs}
    return [name for name in ENTRANTS if name in present]


def _mean(values: Iterable[float]) -> float:
    found = [v for v in values if not math.isnan(v)]
    return statistics.fmean(found) if found else math.nan


def _pct(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.0f} %"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
