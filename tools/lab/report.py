"""The report: a Markdown page, JSON with everything, and a plot of the timelines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from tools.lab.analysis import OPEN_P95_RATIO, RECOVERED_SHARE, TOLERANCE_PCT, Row, in_force, rows
from tools.lab.batch import JOBS
from tools.lab.catalogue import job_of, load_of
from tools.lab.experiment import Timing
from tools.lab.goals import goals
from tools.lab.hindsight import WITHIN, comparisons
from tools.lab.machine import Machine, sentence
from tools.lab.paper import answers
from tools.lab.records import UNSETTLED_S, Run
from tools.lab.schemes import ALONE, SCHEMES, is_perphd
from tools.lab.stats import Spread

NOTHING = "–"


def show(value: Spread | None, digits: int = 2) -> str:
    """``median (low–high)``; the median alone for one repetition."""
    if value is None:
        return NOTHING
    text = f"{value.median:.{digits}f}"
    return text if value.count == 1 else f"{text} ({value.low:.{digits}f}–{value.high:.{digits}f})"


def write(folder: Path, runs: Sequence[Run], machine: Machine, timing: Timing, command: str) -> None:
    """Write report.md, results.json and, where matplotlib is installed, timeline.png."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "command": command,
        "machine": dataclasses.asdict(machine),
        "timing_s": dataclasses.asdict(timing),
        "rows": [dataclasses.asdict(row) for row in rows(runs)],
        "hindsight": [
            {
                **dataclasses.asdict(found),
                "met": found.met,
                "not_worse_than_native": found.not_worse_than_native,
            }
            for found in comparisons(runs)
        ],
        "goals": [{**dataclasses.asdict(goal), "met": goal.met} for goal in goals(runs)],
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    (folder / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    picture = None
    try:
        from tools.lab.plot import draw
    except ImportError:
        pass
    else:
        picture = "timeline.png"
        draw(runs, folder / picture)
    (folder / "report.md").write_text(markdown(runs, machine, timing, command, picture))


def markdown(
    runs: Sequence[Run], machine: Machine, timing: Timing, command: str, picture: str | None = None
) -> str:
    """The whole page."""
    parts = ["# perphd in the lab", f"`{command}` on a {sentence(machine)}.", summary(runs)]
    if picture is not None:
        parts.append(f"![rate, latency and batch work over time]({picture})")
    parts += ["## How it was measured", *_method(timing, machine)]
    for cell in dict.fromkeys(run.cell for run in runs):
        history = _history([run for run in runs if run.cell == cell])
        if history:
            parts += [f"## What perphd did: {cell}", "Seconds count from the antagonist's start.", *history]
    return "\n\n".join(parts) + "\n"


def summary(runs: Sequence[Run]) -> str:
    """Only the tables, and the goals with their results."""
    found = rows(runs)
    parts: list[str] = []
    for cell in dict.fromkeys(row.cell for row in found):
        of_cell = [row for row in found if row.cell == cell]
        load, job = load_of(cell), JOBS[job_of(cell)]
        units = f"Rates are {load.unit}/s; batch work is in {job.unit}/s"
        parts += [f"## {cell}", f"Load: {load.text}. Batch: {job.text}. {units}.", _absolute(of_cell)]
        mine = [run for run in runs if run.cell == cell]
        parts += [_relative(of_cell), _goals(mine), _allocated(mine), _conditions(of_cell)]
    parts += [_in_hindsight(runs), _beside_the_paper(runs)]
    return "\n\n".join(part for part in parts if part)


def _absolute(found: Sequence[Row]) -> str:
    lines = _header("scheme", "rate", "p50 ms", "p95 ms", "p99 ms", "batch", "recovery s", "time on target")
    for row in found:
        alone = row.scheme == ALONE
        recovery = show(row.recovery_s, 1)
        if row.recovered < row.repetitions:
            recovery = f"{recovery}, in {row.recovered} of {row.repetitions}" if row.recovered else "never"
        on_target = NOTHING if row.on_target is None else f"{100 * row.on_target.median:.0f} %"
        lines.append(
            _line(
                _name(row), show(row.rate, _digits(row.rate)), show(row.p50_ms), show(row.p95_ms), show(row.p99_ms),
                NOTHING if alone else show(row.batch, 1),
                NOTHING if alone or row.on_target is None else recovery, on_target,
            )
        )  # fmt: skip
    return "\n".join(lines)


def _relative(found: Sequence[Row]) -> str:
    names = ("rate / alone", "rate / native", "p95 / alone", "p95 / native", "batch / native")
    lines = _header("scheme", *names, f"after {UNSETTLED_S:g} s: {names[1]}", names[2], names[4])
    for row in found:
        if row.scheme != ALONE:
            whole, settled = row.whole, row.settled
            lines.append(
                _line(
                    _name(row), show(whole.rate_to_alone), show(whole.rate_to_native), show(whole.p95_to_alone),
                    show(whole.p95_to_native), show(whole.batch_to_native), show(settled.rate_to_native),
                    show(settled.p95_to_alone), show(settled.batch_to_native),
                )
            )  # fmt: skip
    return "\n".join(lines) if len(lines) > 2 else ""


def _goals(runs: Sequence[Run]) -> str:
    found = goals(runs)
    lines = _header("scheme", "goal", "wanted", "reached", "")
    words = {True: "met", False: "missed", None: "not measured"}
    for goal in found:
        wanted = f"{'at least' if goal.at_least else 'at most'} {goal.bound:g}"
        lines.append(_line(goal.scheme, goal.text, wanted, show(goal.reached), words[goal.met]))
    return "\n".join(lines) if found else ""


def _in_hindsight(runs: Sequence[Run]) -> str:
    """perphd's distance from the frontier of the static settings, and from no control."""
    lines = _header(
        "cell", "scheme", "figure", "of native's batch work", "figure / native's", "worse than native?",
        "/ best single setting", "/ best mix", f"within {100 * WITHIN:.0f} % of it?", "settings run",
    )  # fmt: skip
    words = {True: "met", False: "missed", None: "not measured"}
    worse = {True: "no", False: "yes", None: "not measured"}
    for found in comparisons(runs):
        lines.append(
            _line(
                found.cell, found.scheme, found.figure, show(found.batch_to_native), show(found.to_native),
                worse[found.not_worse_than_native], _named(found.single, found.single_name),
                _named(found.mixed, found.mixed_name), words[found.met], ", ".join(found.settings),
            )
        )  # fmt: skip
    if len(lines) == 2:
        return ""
    text = (
        "Each figure is perphd's divided by that of the best static setting known in hindsight, within one repetition: "
        "the best single setting that leaves batch at least as much work as perphd, and the best mix of two settings "
        "(or one and no batch) that take turns with exactly that work. A rate should be large, a p95 small. If perphd "
        "leaves batch more work than every setting does, the setting with the most counts."
    )
    return "\n\n".join(("## The best static setting known in hindsight", text, "\n".join(lines)))


def _named(value: Spread | None, name: str) -> str:
    return f"{show(value)}: {name}" if name else show(value)


def _beside_the_paper(runs: Sequence[Run]) -> str:
    lines = _header("figure", "perphd's relative to", "in the paper", "here", "batch work here / its", "")
    words = {True: "met", False: "missed", None: "not measured"}
    for answer in answers(runs):
        claim = answer.claim
        lines.append(
            _line(
                claim.text, claim.reference, f"{'at least' if claim.at_least else 'at most'} {claim.paper:g}",
                show(answer.ours), NOTHING if claim.reference == ALONE else show(answer.batch), words[answer.met],
            )
        )  # fmt: skip
    return "\n\n".join(("## Beside the Perph paper", "\n".join(lines))) if len(lines) > 2 else ""


def _allocated(runs: Sequence[Run]) -> str:
    """perphd's settings in force, with their share of the window."""
    lines = [
        f"- {scheme.name}, {group}: {text}: {100 * share:.0f} % of the time"
        for scheme in SCHEMES
        if scheme.daemon
        for group, text, share in in_force([run for run in runs if run.scheme == scheme.name])
    ]
    if not lines:
        return ""
    return "\n".join(["What perphd had in force:", "", *lines])


def _conditions(found: Sequence[Row]) -> str:
    """Possible disturbances of the measurement."""
    parts: list[str] = []
    if cores := [row.client_cores for row in found if row.client_cores is not None]:
        text = (
            f"The load generator used {min(c.low for c in cores):.2f}–{max(c.high for c in cores):.2f} CPUs"
        )
        if stalls := [row.client_stalled.high for row in found if row.client_stalled is not None]:
            text += f" and waited for one in at most {100 * max(stalls):.1f} % of the time"
        parts.append(text)
    if others := [row.other_cores for row in found if row.other_cores is not None]:
        parts.append(
            f"processes outside the lab used {min(o.low for o in others):.2f}–{max(o.high for o in others):.2f}"
        )
    return "; ".join(parts) + "." if parts else ""


def _history(runs: Sequence[Run]) -> list[str]:
    """perphd's actions in each repetition: observed settings, decisions, verdicts."""
    parts: list[str] = []
    for run in (run for run in runs if is_perphd(run.scheme)):
        events = [
            (at_s, f"{group} has " + ", ".join(f"{name} {value}" for name, value in knobs.items()))
            for at_s, group, knobs in run.settings
        ]
        events += [(note.at_s, note.text) for note in run.notes]
        lines = [f"{run.scheme}, repetition {run.repetition + 1}:", ""]
        lines += [f"- {at_s:+.1f}: {text}" for at_s, text in sorted(events)]
        if run.daemon_problem:
            lines.append(f"- {run.daemon_problem}")
        parts.append("\n".join(lines))
    return parts


def _method(timing: Timing, machine: Machine) -> list[str]:
    return [
        "The schemes, one after the other in every repetition, each repetition in another order:",
        "\n".join(f"- **{scheme.name}**: {scheme.text}." for scheme in SCHEMES),
        "A private server with its data in memory, whose commits do not wait for a disk, serves all runs of a load; "
        f"clients and rates are multiplied by {machine.scale}. A run is: the load "
        f"alone for {timing.warm:g} s, or longer if its clients must be compiled first (perphd is started then, "
        f"knowing nothing, and sees the load alone for another {timing.learn:g} s), then the antagonist starts, and "
        f"with it the measured window of {timing.window:g} s. Loads with long events have twice these {timing.learn:g} "
        f"and {timing.window:g} s. “After {UNSETTLED_S:g} s” leaves out the window's beginning.",
        "Load generator, lab and daemon share a group with a high CPU weight on all CPUs, the same in every scheme. "
        "They stand for a remote client: neither database nor batch holds them up, and the CPU that they use is "
        f"missing to both alike. The lab as a whole has CPU shares of {machine.lab_shares} (default 1024) against "
        "the rest of the machine, so that stray processes disturb less.",
        "A run starts when the machine is quiet, if it becomes so in time, and is made again, whatever came out of it, "
        "when processes outside the lab used more than a fifth of a CPU during its window.",
        "Percentiles come from the load generators' own histograms, taken every second. Figures are medians over "
        "repetitions with (lowest–highest); "
        "ratios are taken within one repetition first. The same batch work takes 1 / (batch / "
        "native) times as long as natively: that is the makespan.",
        "Recovery is the time from the antagonist's start to the end of the first second that is on target and "
        "opens three seconds whose mean is. "
        f"The target of a closed loop is {100 * RECOVERED_SHARE:g} % of V*, V* being {100 - TOLERANCE_PCT:g} % "
        "(perphd-30: 70 %) of the "
        f"run-alone rate of the same repetition; of an open loop, a p95 of at most {OPEN_P95_RATIO:g} times "
        "run-alone's. A scheme that was never disturbed recovers in its first second.",
    ]


def _digits(value: Spread | None) -> int:
    """Number of digits after the point for a rate."""
    return 0 if value is None or value.median >= 20 else 2


def _name(row: Row) -> str:
    return f"**{row.scheme}**" if is_perphd(row.scheme) else row.scheme


def _header(*names: str) -> list[str]:
    return [_line(*names), _line(*("---" for _ in names))]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
