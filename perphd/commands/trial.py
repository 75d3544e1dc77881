"""perphctl trial: a randomised experiment that measures the effect of perphd on this host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perphd.commands.base import Out, command
from perphd.commands.number import Number
from perphd.commands.pause import Duration
from perphd.control.client import NotPermitted, Refused
from perphd.domain.errors import PerphError

if TYPE_CHECKING:
    from perphd.trial.record import TrialRecord


def add_trial_commands(cli: click.Group) -> None:
    """Add the group to perphctl."""
    cli.add_command(trial)


@click.group()
def trial() -> None:
    """Measure the effect of perphd on this host.

    perphd alternates between observing and enforcing in random order. The report compares both, with confidence
    intervals.
    """


@command(trial)
@click.option("--hours", type=Number(), required=True, help="Duration in hours; 24 covers a day of load.")
@click.option(
    "--block", "block_s", type=Duration(), default="10m", show_default=True, metavar="TIME",
    help="Length of a block, for example 15m.",
)  # fmt: skip
@click.option(
    "--washout", "washout_s", type=Duration(), metavar="TIME",
    help="Time skipped at the start of each block [default: a quarter of it, at most 2m].",
)  # fmt: skip
@click.option(
    "--bound",
    "bound_pct",
    type=Number(),
    metavar="PERCENT",
    help="Excess over the target, in per cent, that ends the trial [default: 25].",
)
@click.option("--seed", type=int, help="Seed of the random order [default: random, and recorded].")
def start(
    out: Out, hours: float, block_s: float, washout_s: float | None, bound_pct: float | None, seed: int | None
) -> None:
    """Begin a trial: perphd enforces in half of the blocks.

    Workloads whose own mode is observe do not take part. The trial ends after its last block, as soon as an application
    is harmed, and when the mode, the workloads or the policy are changed. Afterwards the earlier modes apply again. It
    continues after a restart of perphd, unless the configured modes have changed.
    """
    from perphd.control.numbers import duration
    from perphd.domain.wire import decode
    from perphd.trial.design import DEFAULT_BOUND_PCT, DesignRefused, Request
    from perphd.trial.record import TrialRecord

    body = {"hours": hours, "block_s": block_s, "washout_s": washout_s, "seed": seed}
    if bound_pct is not None:
        body["bound_pct"] = bound_pct
    try:
        Request(hours, block_s, washout_s, DEFAULT_BOUND_PCT if bound_pct is None else bound_pct, seed)
    except DesignRefused as exc:
        option = "--" + exc.key.removesuffix("_s").removesuffix("_pct")
        raise click.UsageError(f"{option}: {exc}; allowed: {exc.allowed}") from exc
    answer = out.client.send("POST", "trial", body)
    plan = decode(TrialRecord, answer["record"], "record").plan
    sentences = [
        f"Trial {plan.trial} has begun: {plan.blocks} blocks of {duration(plan.block_s)}, seed {plan.seed}.",
        f"Measured, as fixed now: {', '.join(metric.name for metric in plan.metrics)}.",
        f"It ends at once if an LRA is harmed by more than {plan.bound_pct:g} %. See perphctl trial status.",
    ]
    if plan.left_out:
        sentences.append(f"Never enforced, as configured: {', '.join(plan.left_out)}.")
    out.say(answer, *sentences)


@command(trial)
def stop(out: Out) -> None:
    """End the running trial and return to the earlier modes."""
    answer = out.client.send("DELETE", "trial", None)
    out.say(
        answer,
        f"Trial {answer['record']['plan']['trial']} was stopped; perphctl trial report shows its result",
    )


@command(trial)
def status(out: Out) -> None:
    """Show the running trial, or how the last one ended."""
    from perphd.commands.render_trial import status_parts
    from perphd.domain.status import TrialStatus
    from perphd.domain.wire import decode

    data = out.client.get("trial")
    record = _record(data)
    running = None if data["running"] is None else decode(TrialStatus, data["running"], "running")
    out.show(data, lambda: status_parts(record, running))


@command(trial)
@click.option(
    "--file",
    "path",
    metavar="RECORD",
    help="Read this record (STATE_DIR/trials/*.json) instead of asking the daemon.",
)
@click.option(
    "--html", "html_path", metavar="FILE", help="Also write the report with charts to this HTML file."
)
def report(out: Out, path: str | None, html_path: str | None) -> None:
    """Report the results of a trial.

    Shows a summary in one sentence; the effect on every LRA's delay and work and on batch, with 95 % intervals; and the
    carry-over. While the trial runs, the report covers the blocks so far.
    """
    from perphd.commands.render_trial import facts, html, report_parts, verdict
    from perphd.domain.wire import encode
    from perphd.trial.analysis import analyse

    record = _record(out.client.get("trial")) if path is None else _read(path)
    analysis = analyse(record)
    data = {
        "verdict": verdict(record, analysis),
        "facts": list(facts(record, analysis)),
        "analysis": encode(analysis),
        "record": encode(record),
    }
    if html_path is not None:
        write_text(html_path, html(record, analysis))
        out.say(data, data["verdict"], f"{html_path}: written")
        return
    out.show(data, lambda: report_parts(record, analysis))


def write_text(path: str, text: str) -> None:
    """Write a file; it replaces an old one only when it is complete.

    Raises:
        PerphError: it cannot be written; the old one is unchanged.
    """
    part = f"{path}.part"
    try:
        Path(part).write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as exc:
        raise PerphError(f"{path}: cannot be written: {exc.strerror or exc}") from exc


def _record(data: Any) -> TrialRecord:
    from perphd.domain.wire import decode
    from perphd.trial.record import TrialRecord

    if data["record"] is None:
        text = "there was no trial yet: perphctl trial start --hours 24 begins one"
        raise Refused(404, {"code": "not-found", "message": text})
    return decode(TrialRecord, data["record"], "record")


def _read(path: str) -> TrialRecord:
    from perphd.domain.wire import WireError, from_json
    from perphd.trial.record import TrialRecord

    try:
        return from_json(Path(path).read_text(encoding="utf-8"), TrialRecord)
    except PermissionError as exc:
        raise NotPermitted(f"{path}: this user may not read it") from exc
    except OSError as exc:
        raise PerphError(f"{path}: cannot be read: {exc.strerror or exc}") from exc
    except UnicodeError as exc:
        raise PerphError(f"{path}: is not the record of a trial: it is not UTF-8") from exc
    except WireError as exc:
        raise PerphError(f"{path}: is not the record of a trial: {exc}") from exc
