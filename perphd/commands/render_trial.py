"""A trial's report in words, tables and charts."""

from __future__ import annotations

import datetime
from typing import Final

from perphd.commands import html_page, svg
from perphd.control.numbers import duration, number
from perphd.control.render import trial_text
from perphd.control.table import Part, Styled, table, text
from perphd.domain.status import TrialStatus
from perphd.domain.workload import Mode
from perphd.trial.analysis import Analysis, MetricChange, TrialEffect
from perphd.trial.design import Metric, Signal
from perphd.trial.record import End, TrialRecord

_PLENTY: Final = 999.5


def verdict(record: TrialRecord, analysis: Analysis) -> str:
    """The result in one sentence."""
    if record.ending is not None and record.ending.how is End.HARM:
        return f"The trial was stopped, because enforcing harmed an application: {record.ending.text}."
    known = [effect for effect in analysis.effects if effect.change is not None]
    if not known:
        why = analysis.effects[0].missing if analysis.effects else "nothing was measured"
        return f"Nothing can be said yet: {why}."
    claimed = [effect for effect in known if effect.claimed]
    if not claimed:
        widest = max(max(abs(e.change.low_pct), abs(e.change.high_pct)) for e in known if e.change)
        return (
            "No effect was found: with perphd enforcing, neither the applications nor batch differed from observing "
            f"by more than chance (every change lies within {widest:.0f} %)."
        )
    said = [_says(effect) for effect in claimed]
    rest = len(known) - len(claimed)
    tail = f"; {rest} other {'metric' if rest == 1 else 'metrics'} did not change measurably" if rest else ""
    return f"With perphd enforcing, {_listed(said)}{tail}."


def facts(record: TrialRecord, analysis: Analysis) -> tuple[str, ...]:
    """The design and course of the trial, in sentences."""
    plan = record.plan
    began = _time(plan.began_unix_s)
    used, void = dict(analysis.used), dict(analysis.void)
    lines = [
        f"Trial {plan.trial}, begun {began} by {plan.by or 'perphd'}: {plan.blocks} blocks of {duration(plan.block_s)} "
        f"in random pairs (seed {plan.seed}), the first {duration(plan.washout_s)} of each left out.",
        f"Used: {used[Mode.OBSERVE]} observed and {used[Mode.ENFORCE]} enforced blocks; "
        f"not used: {void[Mode.OBSERVE]} and {void[Mode.ENFORCE]}.",
    ]
    if record.ending is None:
        lines.append(
            f"It still runs, until {_time(plan.ends_unix_s)}; the present block is in neither number yet."
        )
    else:
        by = f", by {record.ending.by}" if record.ending.by else ""
        lines.append(
            f"It ended {_time(record.ending.at_unix_s)} ({record.ending.how}): {record.ending.text}{by}."
        )
    if plan.left_out:
        lines.append(f"Never enforced, as configured: {', '.join(plan.left_out)}.")
    carried = [effect for effect in analysis.effects if effect.carried_over]
    if carried:
        names = ", ".join(effect.metric.name for effect in carried)
        lines.append(
            f"Carry-over was found in {names}: changes outlast the washout, so these effects are understated. "
            "Repeat the trial with a longer --washout and --block."
        )
    else:
        lines.append("No carry-over from one block to the next was found.")
    return tuple(lines)


def report_parts(record: TrialRecord, analysis: Analysis) -> list[Part]:
    """The output of ``perphctl trial report``."""
    return [
        text(Styled(verdict(record, analysis), "bold")),
        text(*facts(record, analysis)),
        *tables(record, analysis),
    ]


def tables(record: TrialRecord, analysis: Analysis) -> list[Part]:
    """The effects, and the events during the trial."""
    rows = []
    for effect in analysis.effects:
        change = effect.change
        rows.append(
            (
                effect.metric.name,
                effect.metric.source,
                number(effect.observe_mean),
                number(effect.enforce_mean),
                _pct(change.pct) if change else "-",
                f"{_pct(change.low_pct)} .. {_pct(change.high_pct)}" if change else "-",
                _found(effect),
                _carry(effect),
            )
        )
    heads = ("METRIC", "SOURCE", "OBSERVE", "ENFORCE", "CHANGE", "95 % INTERVAL", "VERDICT", "CARRY-OVER")
    parts: list[Part] = [table("Effects", heads, rows, right=(2, 3, 4, 5))]
    if record.notes:
        notes = [(_time(note.at_unix_s), note.text) for note in record.notes]
        parts.append(table("What happened", ("TIME", "WHAT"), notes))
    return parts


def status_parts(record: TrialRecord, running: TrialStatus | None) -> list[Part]:
    """The output of ``perphctl trial status``."""
    if running is None:
        ending = record.ending
        assert ending is not None
        return [
            text(
                f"No trial runs. The last, {record.plan.trial}, ended {_time(ending.at_unix_s)} ({ending.how}): "
                f"{ending.text}"
            )
        ]
    plan = record.plan
    return [
        text(
            Styled(trial_text(running), "bold"),
            f"seed {plan.seed}; washout {duration(plan.washout_s)}; ends at once if an LRA is harmed by more than "
            f"{plan.bound_pct:g} %",
            f"measured: {', '.join(metric.name for metric in plan.metrics)}",
        )
    ]


def html(record: TrialRecord, analysis: Analysis) -> str:
    """The report as one HTML file."""
    rows = [
        svg.Interval(
            effect.metric.name, effect.change.pct, effect.change.low_pct, effect.change.high_pct,
            effect.is_better if effect.claimed else None,
            f"{_pct(effect.change.pct)} ({_pct(effect.change.low_pct)} .. {_pct(effect.change.high_pct)})",
        )
        for effect in analysis.effects
        if effect.change is not None
    ]  # fmt: skip
    blocks = [
        html_page.paragraphs(facts(record, analysis)),
        html_page.heading("Change from observe to enforce, with 95 % intervals"),
        svg.intervals(rows, "%"),
        html_page.tables(tables(record, analysis)),
    ]
    for metric in record.plan.metrics:
        blocks += [html_page.heading(_title(metric)), _chart(record, metric)]
    return html_page.page(f"perphd trial {record.plan.trial}", verdict(record, analysis), blocks)


def _chart(record: TrialRecord, metric: Metric) -> str:
    plan = record.plan
    points: dict[Mode, list[tuple[float, float | None]]] = {mode: [] for mode in Mode}
    for block in record.blocks:
        mean = next((m.mean for m in block.means if m.metric == metric.name), None)
        if mean is not None and not block.void and block.number:
            points[block.mode].append(((block.number + 0.5) * plan.block_s / 3600.0, mean))
    series = [svg.Points(mode.value, mode.value, points[mode], joined=False) for mode in Mode]
    return svg.lines(series, "hours since the start", f"mean of each block ({metric.source})")


def _says(effect: TrialEffect) -> str:
    change = effect.change
    assert change is not None
    what = {
        Signal.DELAY: f"{effect.metric.workload}'s {_delay_name(effect.metric.source)}",
        Signal.WORK: f"{effect.metric.workload}'s work",
        Signal.BATCH: "the CPU time of batch",
    }[effect.metric.signal]
    verb = "fell" if change.pct < 0 else "rose"
    low, high = sorted((abs(change.low_pct), abs(change.high_pct)))
    return f"{what} {verb} by {_size(abs(change.pct))} % ({_size(low)} to {_size(high)} %)"


def _delay_name(source: str) -> str:
    if source.startswith("latency_"):
        return f"{source.split('_')[1]} latency"
    return "waiting for a CPU"


def _title(metric: Metric) -> str:
    return "Batch: CPU time, cores" if metric.signal is Signal.BATCH else metric.name


def _found(effect: TrialEffect) -> str:
    if effect.change is None:
        return effect.missing
    if not effect.claimed:
        return "no effect found"
    return "better" if effect.is_better else "worse"


def _carry(effect: TrialEffect) -> str:
    carry = effect.carry_over
    if carry is None:
        return "-"
    word = "found" if effect.carried_over else "none found"
    return f"{word} ({_range(carry)})"


def _range(change: MetricChange) -> str:
    return f"{_pct(change.low_pct)} .. {_pct(change.high_pct)}"


def _pct(value: float) -> str:
    return f"{value:+.1f} %" if abs(value) < _PLENTY else f"{value:+.0f} %"


def _size(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, and {words[-1]}"


def _time(unix_s: float) -> str:
    return f"{datetime.datetime.fromtimestamp(unix_s).astimezone():%Y-%m-%d %H:%M}"
