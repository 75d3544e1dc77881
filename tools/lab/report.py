"""The report: a Markdown page, JSON with everything, and a plot of the timelines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from tools.lab.analysis import OPEN_P95_RATIO, RECOVERED_SHARE, TOLERANCE_PCT, Row, rows
from tools.lab.batch import JOBS
from tools.lab.experiment import UNSETTLED_S, Run, Timing
from tools.lab.load import CLOSED_THREADS, LOADS, OPEN_RATE, OPEN_THREADS, SLAP_CHUNK, SLAP_CLIENTS
from tools.lab.machine import Machine, sentence
from tools.lab.mariadb import TABLE_ROWS, TABLES
from tools.lab.schemes import ALONE, NATIVE, PERPHD, SCHEMES
from tools.lab.stats import Spread

NOTHING = "–"


def show(value: Spread | None, digits: int = 2) -> str:
    """``median (low-high)``; the median alone for one repetition."""
    if value is None:
        return NOTHING
    text = f"{value.median:.{digits}f}"
    return text if value.count == 1 else f"{text} ({value.low:.{digits}f}–{value.high:.{digits}f})"


def write(folder: Path, runs: Sequence[Run], machine: Machine, timing: Timing, command: str) -> list[Path]:
    """Write report.md, results.json and, where matplotlib is installed, timeline.png. Returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / "report.md", folder / "results.json"
    written = [page, data]
    content = {
        "command": command,
        "machine": dataclasses.asdict(machine),
        "timing_s": dataclasses.asdict(timing),
        "rows": [dataclasses.asdict(row) for row in rows(runs)],
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    data.write_text(json.dumps(content, indent=1) + "\n")
    picture: Path | None = folder / "timeline.png"
    try:
        from tools.lab.plot import draw
    except ImportError:
        picture = None
    else:
        assert picture is not None
        draw(runs, picture)
        written.append(picture)
    page.write_text(markdown(runs, machine, timing, command, picture.name if picture else None))
    return written


def markdown(
    runs: Sequence[Run], machine: Machine, timing: Timing, command: str, picture: str | None = None
) -> str:
    """The whole page."""
    found = rows(runs)
    parts = ["# perphd in the lab", f"`{command}` on a {sentence(machine)}.", _method(timing, machine)]
    for cell in dict.fromkeys(row.cell for row in found):
        of_cell = [row for row in found if row.cell == cell]
        parts += [
            f"## {cell}",
            _about(cell),
            *_tables(of_cell),
            *_history([r for r in runs if r.cell == cell]),
        ]
    if picture is not None:
        parts.append(f"![throughput, latency and batch work over time]({picture})")
    return "\n\n".join(parts) + "\n"


def _about(cell: str) -> str:
    load, _, job = cell.partition("-")
    what = {
        "closed": f"sysbench oltp_read_write, closed loop: {CLOSED_THREADS} clients as fast as they can",
        "open": f"sysbench oltp_read_write, open loop: {OPEN_RATE} transactions/s arrive whatever happens "
        f"({OPEN_THREADS} connections); latency counts from arrival",
        "slap": f"mysqlslap, {SLAP_CLIENTS} clients, runs of {SLAP_CHUNK} range queries one after the other "
        "(it reports no latencies)",
    }[load]
    batch = {"pi4": "4 CPU-bound Monte-Carlo PI processes", "stream2": "2 memory-streaming processes"}[job]
    units = f"Rates are {LOADS[load].unit}/s; batch work is in {JOBS[job].unit} per second"
    return f"Load: {what}. Batch: {batch}. {units}."


def _tables(found: Sequence[Row]) -> list[str]:
    absolute = [
        "| scheme | rate 1/s | p50 ms | p95 ms | p99 ms | batch | recovery s | seconds on target |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    relative = [
        "| scheme | rate / alone | rate / native | p95 / alone | p95 / native | batch / native "
        "| settled: rate / native | p95 / alone | batch / native |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        reached = "" if row.recovered == row.repetitions else f" in {row.recovered} of {row.repetitions}"
        on_target = NOTHING if row.on_target is None else f"{100 * row.on_target.median:.0f} %"
        recovery = (show(row.recovery_s, 1) + reached) if row.scheme != ALONE else NOTHING
        name = f"**{row.scheme}**" if row.scheme == PERPHD else row.scheme
        batch = NOTHING if row.scheme == ALONE else show(row.batch, 1)
        absolute.append(
            f"| {name} | {show(row.tps, 0)} | {show(row.p50_ms)} | {show(row.p95_ms)} | {show(row.p99_ms)} "
            f"| {batch} | {recovery} | {on_target} |"
        )
        if row.scheme == ALONE:
            continue
        relative.append(
            f"| {name} | {show(row.tps_to_alone)} | {show(row.tps_to_native)} | {show(row.p95_to_alone)} "
            f"| {show(row.p95_to_native)} | {show(row.batch_to_native)} | {show(row.tps_to_native_settled)} "
            f"| {show(row.p95_to_alone_settled)} | {show(row.batch_to_native_settled)} |"
        )
    stalled = [row.client_stalled.median for row in found if row.client_stalled is not None]
    cores = [row.client_cores.median for row in found if row.client_cores is not None]
    client = ""
    if cores:
        client = f"The load generator used {min(cores):.2f} to {max(cores):.2f} CPUs"
        client += (
            f" and waited for one in {100 * max(stalled):.1f} % of the time at most." if stalled else "."
        )
    return ["\n".join(absolute), "\n".join(relative), client]


def _history(runs: Sequence[Run]) -> list[str]:
    """What perphd did in each repetition: settings as seen in the files, and its decisions."""
    parts: list[str] = []
    for run in (r for r in runs if r.scheme == PERPHD):
        lines = [
            f"What perphd did in repetition {run.repetition + 1} (seconds after the antagonist's start):",
            "",
        ]
        events = [
            (at_s, f"{group}: " + ", ".join(f"{name} {value}" for name, value in knobs.items()))
            for at_s, group, knobs in run.settings
        ]
        events += [(note.at_s, note.text) for note in run.decisions]
        lines += [f"- {at_s:+.1f} s: {text}" for at_s, text in sorted(events)]
        if run.daemon_problem:
            lines.append(f"- the daemon: {run.daemon_problem}")
        parts.append("\n".join(lines))
    return parts


def _method(timing: Timing, machine: Machine) -> str:
    schemes = "\n".join(f"- **{scheme.name}**: {scheme.text}" for scheme in SCHEMES)
    return f"""\
The schemes, run one after the other in every repetition, each repetition in another order:

{schemes}

How it is measured. A private MariaDB ({TABLES} tables of {TABLE_ROWS} rows, all in its buffer pool;
innodb_flush_log_at_trx_commit=0, so that a commit does not wait for the disk) serves all runs. Each run is: the load
alone for {timing.warm:g} s (with perphd: the daemon starts then and
sees the load alone for another {timing.learn:g} s, knowing nothing before), then the antagonist starts and the window of {timing.window:g} s begins;
"settled" leaves out its first {UNSETTLED_S:g} s. Load generator and daemon have a group of their own with a high CPU
weight on all CPUs, the same in every scheme: they stand for a remote client, so neither the database nor batch can hold
them up, and what they use is missing to both alike. The lab as a whole has CPU shares of {machine.lab_shares}
(default 1024), so that stray processes of the machine disturb less. Percentiles come from sysbench's own histogram of the window. Figures are medians over repetitions
with (lowest–highest); ratios are taken within one repetition.

Recovery is the time from the antagonist's start to the end of the first of three seconds in a row that meet the
target: closed loop: {100 * RECOVERED_SHARE:g} % of V*, which is {100 - TOLERANCE_PCT:g} % of the run-alone rate; open
loop: p95 at most {OPEN_P95_RATIO:g} times run-alone's. A scheme that was never disturbed recovers in its first second.
``{NATIVE}`` and ``{ALONE}`` are the references of the ratios."""
