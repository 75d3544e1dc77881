"""The report: Markdown for reading in a checkout, HTML with plots in one file."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.policies import enough, floor, held, report_grids, report_html, scenarios
from tools.bench.policies.measure import Result
from tools.bench.policies.report_text import mean, number, over, pct, pct_with, present, scatter


@dataclass(frozen=True, slots=True)
class About:
    """Origin of the results. ``wall_s``, ``worker_s``, ``computed``: of this call alone; ``cut``: omitted parts;
    ``failed``: failed computations, with reasons.
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
    classic = [r for r in runs if r.family not in scenarios.LATER]
    others = [r for r in runs if r.family in scenarios.LATER]
    head = [
        *_head(about), *_headline(classic, "All scenarios"), *_headline(others, "Those that came later"),
        *_out_of_reach(runs), *_at_paces(runs),
    ]  # fmt: skip
    parts = [
        *head, *_quiet(runs), *report_grids.section(cells), *_families(runs), *_losses(runs), *enough.section(steps),
        *_knees(knees), *_agents(agents), *_scenarios(runs),
    ]  # fmt: skip
    text = "\n".join(parts) + "\n"
    (out / "report.md").write_text(text)
    (out / "headline.md").write_text("\n".join(_short(runs, cells, about)) + "\n")
    (out / "report.html").write_text(report_html.page(text, report_html.plots(runs, cells)))
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
        "over ORACLE's; *good batch*: the same without what was done while a target was missed; *one class*: that over",
        "the best setting in which all batch is one class (ORACLE may divide it); *settled*: both in the last half of",
        "each run, without samples of a search. *found*: runs in which all targets were met for three rounds, the",
        "median time until then. *spread*: standard deviation over seeds over the mean, of good batch. Means over",
        "scenarios of means over seeds; ±: half of the 95 % interval of that mean over seeds, from five seeds on.",
        floor.TOLD,
        "",
    ]


def _short(runs: Sequence[Result], cells: list[dict[str, Any]], about: About) -> list[str]:
    """The table for docs/benchmarks.md, with the command that makes it and the meaning of the columns."""
    classic = [r for r in runs if r.family not in scenarios.LATER]
    table = [line for line in _headline(classic, "") if line.startswith("|")]
    return [
        f"From `{about.command}` ({len({r.scenario for r in runs})} scenarios, {len(runs)} runs). {about.cut}",
        "*missed*: share of the time in which a target is missed although the optimum meets all; *batch*: batch's "
        "work over the optimum's; *good batch*: without what was done while a target was missed; *one class*: that "
        "over the best setting that treats all batch alike; *settled*: in the last half of each run. "
        + floor.TOLD,
        "",
        *table,
        "",
        *report_grids.reproduced(cells),
    ]


# -- the headline --------------------------------------------------------------------------------------


def _headline(runs: Sequence[Result], title: str) -> list[str]:
    judged = [r for r in runs if not math.isnan(r.of_oracle) and r.family != "quiet"]
    if not judged:
        return []
    lines = [
        f"## {title} in which the targets can be met ({len({r.scenario for r in judged})})",
        "",
        "| policy | missed | beyond late | depth | batch | good batch | one class | settled: missed "
        "| settled: batch | found | changes/min | spread | decision p50 ms |",
        "| --- |" + " ---: |" * 12,
    ]
    beyond = floor.beyond(judged)
    for policy in present(judged):
        mine = [r for r in judged if r.policy == policy]
        found = [r.first_ok_s for r in mine if not math.isnan(r.first_ok_s)]
        median = f"{statistics.median(found):.1f} s" if found else "-"
        cells = [
            policy,
            pct_with(over(mine, _missed), scatter(mine, _missed)),
            pct(over(mine, lambda r: beyond.get((r.scenario, r.policy, r.seed), math.nan))),
            pct_with(over(mine, _depth), scatter(mine, _depth)),
            pct(over(mine, lambda r: r.of_oracle)),
            pct_with(over(mine, _good), scatter(mine, _good)),
            pct(over(mine, lambda r: r.good_of_one_class)),
            pct_with(over(mine, _settled_missed), scatter(mine, _settled_missed)),
            pct_with(over(mine, _settled_batch), scatter(mine, _settled_batch)),
            f"{len(found)}/{len(mine)}, {median}",
            f"{over(mine, lambda r: r.churn):.1f}",
            pct(spread(mine)),
            f"{statistics.median(r.decide_ms for r in mine):.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _out_of_reach(runs: Sequence[Result]) -> list[str]:
    """Unreachable targets: nearness, batch's work, number of changes."""
    mine = [r for r in runs if not math.isnan(r.of_best_score)]
    if not mine:
        return []
    lines = [
        f"## Where no setting meets all targets ({len({r.scenario for r in mine})} scenarios, some only in part)",
        "",
        "*nearness*: the worst LRA's score over the best that any setting reaches, while none meets all; *batch*:",
        "its work over what it does alone, in the whole run; *changes*: knobs per minute.",
        "",
        "| policy | nearness | batch | changes/min | missed although it could be met |",
        "| --- |" + " ---: |" * 4,
    ]
    for policy in present(mine):
        some = [r for r in mine if r.policy == policy]
        lines.append(
            f"| {policy} | {pct_with(over(some, _near), scatter(some, _near))} | {pct(over(some, lambda r: r.batch))} "
            f"| {over(some, lambda r: r.churn):.1f} | {pct(over(some, _missed))} |"
        )
    return [*lines, ""]


def _at_paces(runs: Sequence[Result]) -> list[str]:
    """The same policies at other paces, beside their own."""
    bases = {r.policy.split("@")[0].split("+")[0] for r in runs if "@" in r.policy or "+" in r.policy}
    mine = [r for r in runs if r.policy.split("@")[0].split("+")[0] in bases]
    judged = [r for r in mine if not math.isnan(r.of_oracle) and r.family != "quiet"]
    if not judged or not bases:
        return []
    common = set.intersection(*({r.scenario for r in judged if r.policy == p} for p in present(judged)))
    lines = [
        f"## Paces and batch starts ({len(common)} scenarios that all of these ran)", "",
        "| policy | missed s a run | over perph's at its own pace | good batch |", "| --- |" + " ---: |" * 3,
    ]  # fmt: skip
    some = [r for r in judged if r.scenario in common]
    own = over([r for r in some if r.policy == "perph"], lambda r: r.excess_s)
    for policy in present(some):
        these = [r for r in some if r.policy == policy]
        missed_s = over(these, lambda r: r.excess_s)
        ratio = f"{missed_s / own:.1f}" if own and own > 0.0 else "-"
        lines.append(
            f"| {policy} | {missed_s:.2f} | {ratio} | {pct_with(over(these, _good), scatter(these, _good))} |"
        )
    return [*lines, ""]


def _near(run: Result) -> float:
    return run.of_best_score


def _missed(run: Result) -> float:
    return run.excess_s / max(run.seconds, 1e-9)


def _depth(run: Result) -> float:
    return run.depth


def _settled_missed(run: Result) -> float:
    return run.steady_violation_share


def _settled_batch(run: Result) -> float:
    return run.steady_of_oracle


def _good(run: Result) -> float:
    return run.good_of_oracle


def spread(runs: Sequence[Result]) -> float:
    """Coefficient of variation of good batch work over seeds; mean over scenarios."""
    found = []
    for scenario in {r.scenario for r in runs}:
        values = [r.good_of_oracle for r in runs if r.scenario == scenario]
        if len(values) > 1 and statistics.fmean(values) > 1e-6:
            found.append(statistics.stdev(values) / statistics.fmean(values))
    return mean(found)


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
        for policy in present(mine):
            some = [r for r in mine if r.policy == policy]
            lines.append(
                f"| {policy} | {over(some, lambda r: r.violation_s):.1f} of {over(some, lambda r: r.seconds):.0f} "
                f"| {pct(over(some, _depth))} | {pct(over(some, lambda r: r.of_oracle))} | {pct(over(some, _good))} "
                f"| {pct(over(some, lambda r: r.steady_violation_share))} "
                f"| {pct(over(some, lambda r: r.steady_of_oracle))} | {pct(over(some, lambda r: r.work))} "
                f"| {number(over(some, lambda r: r.makespan_s), 0)} | {over(some, lambda r: r.churn):.1f} |"
            )
        lines.append("")
    return lines


def _scenarios(runs: Sequence[Result]) -> list[str]:
    names = present(runs)
    lines = [
        "## Every scenario", "",
        "Seconds in which a target was missed / good batch work over ORACLE's (- where no setting meets the targets).",
        "", "| scenario | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names),
    ]  # fmt: skip
    for scenario in dict.fromkeys(r.scenario for r in runs):
        row = [scenario]
        for policy in names:
            some = [r for r in runs if r.scenario == scenario and r.policy == policy]
            good = mean(r.good_of_oracle for r in some)
            row.append(f"{mean(r.violation_s for r in some):.0f} / {pct(good)}" if some else "")
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
    for policy in present(mine):
        some = [r for r in mine if r.policy == policy]
        days = mean(r.seconds for r in some) / 86_400.0
        lines.append(
            f"| {policy} | {mean(r.actions for r in some) / days:.0f} "
            f"| {mean(r.churn * r.seconds / 60.0 for r in some) / days:.0f} "
            f"| {mean(r.violation_s for r in some) / days:.0f} |"
        )
    return [*lines, ""]


# -- where perph loses, knees, the whole agent --------------------------------------------------------------


def _losses(runs: Sequence[Result], name: str = "perph", shown: int = 12) -> list[str]:
    """The scenarios with the largest advantage of another policy over perph."""
    rows = []
    for scenario in dict.fromkeys(r.scenario for r in runs):
        mine = [r for r in runs if r.scenario == scenario and r.policy == name]
        if not mine or all(math.isnan(r.good_of_oracle) for r in mine):
            continue
        others = {}
        for policy in present(runs):
            some = [r for r in runs if r.scenario == scenario and r.policy == policy]
            if some and policy not in (name, "none", held.NAME, held.LATE, held.CLAIRVOYANT):
                others[policy] = mean(r.good_of_oracle for r in some)
        if not others:
            continue
        best = max(others, key=lambda p: others[p])
        gap = others[best] - mean(r.good_of_oracle for r in mine)
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
            f"| {scenario} | {best} | {pct(value)} | {pct(mean(r.good_of_oracle for r in mine))} "
            f"| {mean(r.violation_s for r in mine):.0f} of {mean(r.seconds for r in mine):.0f} "
            f"| {pct(mean(r.steady_of_oracle for r in mine))} "
            f"| {pct(mean(r.steady_violation_share for r in mine))} |"
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
            f"| {pct(item['work'])} | {pct(item['batch'])} | {item['speed']:.0f} |"
        )
    return [*lines, ""]
