"""perphctl run, jobs, job, logs, cancel, wait: the node's batch queue."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from perphd.commands.base import EXIT_FAILED, Out, command
from perphd.commands.number import Number
from perphd.commands.pause import Duration
from perphd.control.client import Refused, Unreachable
from perphd.domain.errors import ParseError, PerphError
from perphd.domain.units import parse_size_bytes

if TYPE_CHECKING:
    from perphd.batch.view import JobRow

KEPT_VARIABLES: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ")
"""Variables passed to every job, with LC_*. Others need --env, because an environment may hold secrets."""
POLL_S: Final = 0.5
SILENCE_S: Final = 300.0
"""Seconds for which a waiting command asks a daemon that does not answer."""
ABSENT_S: Final = 60.0
"""Seconds for which a command waits for a daemon that answered before and is gone: longer than a package upgrade."""
_RANGE: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
MOST_NAMED: Final = 10_000
MOST_LINES: Final = 10
"""Maximum number of cancelled jobs to list; if there are more, they are only counted."""
SUBMIT_S: Final = 300.0
"""Time-out in seconds: storing ten thousand jobs takes minutes on a slow host, and a retry would submit them twice."""


def add_job_commands(cli: click.Group) -> None:
    """Add the commands of this module."""
    cli.add_command(event)
    command(cli)(
        run
    ).allow_interspersed_args = False  # all words after the command's first belong to the command
    for each in (jobs, job, logs, cancel, wait):
        command(cli)(each)


@click.option("--cores", type=Number(), help="CPUs that the job is expected to use [default: 1].")
@click.option("--memory", metavar="SIZE", help="Memory that the job needs; also its limit: 512M, 4G.")
@click.option(
    "--deadline", type=Duration(), metavar="TIME", help="Time within which the job should end: 30m, 2h ..."
)
@click.option("--best-effort", is_flag=True, help="No deadline (the default).")
@click.option(
    "--band", type=click.Choice(["copper", "silver"]), help="Copper gives way to other work, silver does not."
)
@click.option("--name", help="The job's name [default: the command].")
@click.option("--after", multiple=True, metavar="JOB", type=int, help="Start when this job is done.")
@click.option("--output", metavar="FILE", help="Append its output to FILE instead of the queue's log.")
@click.option(
    "--env", multiple=True, metavar="K=V", help="An environment variable; K alone passes its present value."
)
@click.option(
    "--retries", type=int, default=0, show_default=True, help="Maximum number of restarts after a failure."
)
@click.option("--array", type=int, metavar="N", help="Submit N jobs with PERPHD_ARRAY_INDEX 0 to N-1.")
@click.option("--elastic", metavar="MIN:MAX", help="Run the command as MIN to MAX workers.")
@click.option("--hints", is_flag=True, help="The job reads PERPHD_HINTS_FILE and backs off on request.")
@click.option("--number", "bare", is_flag=True, help="Print only the job's number, for scripts.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the job has ended, and exit with its status.")
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    out: Out,
    cores: float | None,
    memory: str | None,
    deadline: float | None,
    best_effort: bool,
    band: str | None,
    name: str | None,
    after: tuple[int, ...],
    output: str | None,
    env: tuple[str, ...],
    retries: int,
    array: int | None,
    elastic: str | None,
    hints: bool,
    bare: bool,
    waits: bool,
    words: tuple[str, ...],
) -> None:
    """Queue a command: it starts when the host has room.

    It runs as your user, in this directory, as a batch workload that gives way to the LRAs. Put -- before the command.
    Prints the job's number once the job is stored on disk.

    An elastic job runs its command as MIN workers that start together, and as up to MAX where the host has room for
    more; --cores and --memory apply to one worker.
    """
    if elastic is not None and array is not None:
        raise click.UsageError("--elastic and --array exclude each other")
    if best_effort and deadline is not None:
        raise click.UsageError("--best-effort and --deadline exclude each other")
    if bare and waits:
        raise click.UsageError("--number and --wait exclude each other")
    body: dict[str, Any] = {
        "command": list(words),
        "directory": os.getcwd(),
        "environment": _environment(env),
        "retries": retries,
        "after": list(after),
    }
    if memory is not None:
        try:
            body["memory_bytes"] = parse_size_bytes(memory)
        except ParseError as exc:
            raise click.UsageError(f"--memory: {exc}") from exc
    if elastic is not None:
        body["elastic"] = _workers(elastic)
    if output is not None:
        body["output"] = os.path.abspath(output)
    if hints:
        body["hints"] = True
    given = {"cores": cores, "deadline_in_s": deadline, "band": band, "name": name, "array": array}
    body |= {key: value for key, value in given.items() if value is not None}
    answer = out.client.send("POST", "jobs", body, timeout_s=SUBMIT_S)
    numbers = [int(number) for number in answer["jobs"]]
    if not waits:
        first, last = numbers[0], numbers[-1]
        if bare:
            line = f"{first}" if len(numbers) == 1 else f"{first}-{last}"
        else:
            what = f"job {first}" if len(numbers) == 1 else f"jobs {first} to {last}"
            line = f"queued {what} ({answer['name']}); perphctl job {first} shows when it starts, and why"
        out.say(answer, line)
        return
    _wait(out, numbers)


@click.option("--all", "everything", is_flag=True, help="Include jobs that have ended.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=500, show_default=True, help="Maximum number of rows."
)
@click.argument("number", metavar="[JOB]", type=int, required=False)
def jobs(out: Out, everything: bool, limit: int, number: int | None) -> None:
    """List jobs, or show one.

    Shows only the number, name and state of other users' jobs.
    """
    from perphd.batch.view import JobRow
    from perphd.commands.render_jobs import list_parts
    from perphd.domain.queue import QueueSummary
    from perphd.domain.wire import decode

    if number is not None:
        _show(out, number)
        return
    data = out.client.get("jobs", limit=limit, all=1 if everything else None)
    rows = decode(tuple[JobRow, ...], data["jobs"], "jobs")
    summary = decode(QueueSummary, data["queue"], "queue")
    out.show(data, lambda: list_parts(rows, summary, time.time(), everything))


@click.argument("number", metavar="JOB", type=int)
def job(out: Out, number: int) -> None:
    """Show one job: why it waits, and when it will end."""
    _show(out, number)


@click.option("--attempt", type=int, help="Output of this start [default: the last].")
@click.option("--follow", "-f", is_flag=True, help="Follow the output until the job has ended.")
@click.argument("number", metavar="JOB", type=int)
def logs(out: Out, number: int, attempt: int | None, follow: bool) -> None:
    """Print a job's output.

    The last 16 MiB are kept until the job is forgotten.
    """
    from perphd.batch.job import JobState

    offset, texts = 0, []
    while True:
        data = out.client.get(f"jobs/{number}/log", offset=offset, attempt=attempt)
        if out.as_json:
            texts.append(data["text"])
        else:
            sys.stdout.write(data["text"])
            sys.stdout.flush()
        moved, offset = data["until"] > offset, data["until"]
        if moved:
            continue
        if not follow or JobState(data["state"]).ended:
            break
        time.sleep(POLL_S)
    if out.as_json:
        out.say({"text": "".join(texts)})


@click.argument("numbers", metavar="JOB...", nargs=-1, required=True)
def cancel(out: Out, numbers: tuple[str, ...]) -> None:
    """Cancel jobs: numbers, or ranges such as 12-112.

    Ends the processes of running jobs at once.
    """
    named = [number for text in numbers for number in _numbers(text)]
    done, problems = [], []
    for number in named:
        try:
            out.client.send("DELETE", f"jobs/{number}")
        except PerphError as exc:
            if len(named) == 1:
                raise
            problems.append(str(exc))
        else:
            done.append(number)
    out.warn(problems)
    lines = [f"job {number} cancelled" for number in done]
    if len(done) > MOST_LINES:
        lines = [f"{len(done)} jobs cancelled, the first is {done[0]}, the last {done[-1]}"]
    out.say({"cancelled": done, "problems": problems}, *lines)
    if problems:
        raise SystemExit(EXIT_FAILED)


@click.argument("numbers", metavar="JOB...", nargs=-1, required=True)
def wait(out: Out, numbers: tuple[str, ...]) -> None:
    """Wait until jobs have ended.

    Exits with the status of the first job that failed, or with 1 if that job was cancelled or its status is unknown.
    Keeps waiting across a restart of the daemon.
    """
    _wait(out, [number for text in numbers for number in _numbers(text)])


@click.group()
def event() -> None:
    """Cut copper's share for a stated time.

    While an event lasts, fewer jobs of the batch queue start, and in the mode enforce, running jobs get less CPU time.
    """


@command(event)
@click.option(
    "--duration",
    "duration_s",
    type=Duration(),
    required=True,
    metavar="TIME",
    help="Duration, for example 60m.",
)
@click.option(
    "--copper-share",
    type=Number(),
    default=0.1,
    show_default=True,
    help="Share of its usual offer that copper gets, 0 to 1.",
)
@click.option(
    "--ramp",
    "ramp_s",
    type=Duration(),
    default="5m",
    show_default=True,
    metavar="TIME",
    help="Time over which copper's share grows back afterwards.",
)
@click.option("--reason", default="", metavar="TEXT", help="Shown in status and events.")
def begin(out: Out, duration_s: float, copper_share: float, ramp_s: float, reason: str) -> None:
    """Begin an event; it replaces any other.

    It survives restarts and ends by itself.
    """
    from perphd.commands.render_jobs import event_text
    from perphd.domain.queue import EventStatus
    from perphd.domain.wire import decode

    body = {"duration_s": duration_s, "copper_share": copper_share, "ramp_s": ramp_s, "reason": reason}
    answer = out.client.send("POST", "event", body)
    out.say(answer, event_text(decode(EventStatus, answer["event"], "event"), time.time()))


@command(event)
def end(out: Out) -> None:
    """End the event now: copper returns step by step."""
    out.say(out.client.send("DELETE", "event"), "The event has ended; copper returns step by step.")


@command(event)
def show(out: Out) -> None:
    """Show the event, and what copper may use."""
    from perphd.commands.render_jobs import event_parts
    from perphd.domain.queue import CopperOffer, EventStatus
    from perphd.domain.wire import decode

    data = out.client.get("event")
    now = None if data["event"] is None else decode(EventStatus, data["event"], "event")
    offer = None if data["offer"] is None else decode(CopperOffer, data["offer"], "offer")
    out.show(data, lambda: event_parts(now, offer, time.time()))


def _wait(out: Out, numbers: list[int]) -> None:
    from perphd.batch.job import JobState
    from perphd.commands.render_jobs import end_text
    from perphd.commands.wait_progress import waiting

    ended: list[JobRow] = []
    with waiting(len(numbers), not out.as_json) as tell:
        for number in numbers:
            row = _patient_row(out, number, answered=bool(ended))
            while not row.state.ended:
                tell(len(ended), row)
                time.sleep(POLL_S)
                row = _patient_row(out, number, answered=True)
            ended.append(row)
    from perphd.domain.wire import encode

    out.say({"jobs": encode(tuple(ended))}, *(end_text(row) for row in ended))
    for row in ended:
        if row.state is not JobState.DONE:
            status = row.detail.status if row.detail is not None else None
            raise SystemExit(status if status and 0 < status < 256 else EXIT_FAILED)


def _show(out: Out, number: int) -> None:
    from perphd.commands.render_jobs import job_parts

    data = out.client.get(f"jobs/{number}")
    row = _decoded(data)
    out.show(data, lambda: job_parts(row, time.time()))


def _row(out: Out, number: int) -> JobRow:
    return _decoded(out.client.get(f"jobs/{number}"))


def _patient_row(out: Out, number: int, *, answered: bool) -> JobRow:
    """The job; waits while the daemon is too busy to answer, or restarts after it has ``answered`` once.

    Jobs keep running meanwhile.
    """
    began_s = time.monotonic()
    while True:
        try:
            return _row(out, number)
        except (Unreachable, Refused) as exc:
            if isinstance(exc, Refused) and exc.code != "busy":
                raise
            absent = isinstance(exc, Unreachable) and not isinstance(exc.__cause__, TimeoutError)
            patience_s = SILENCE_S if not absent else ABSENT_S if answered else 0.0
            if time.monotonic() - began_s >= patience_s:
                raise
            time.sleep(POLL_S)


def _decoded(data: Any) -> JobRow:
    from perphd.batch.view import JobRow
    from perphd.domain.wire import decode

    return decode(JobRow, data["job"], "job")


def _workers(text: str) -> list[int]:
    found = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", text)
    if found is None:
        raise click.UsageError(f"--elastic {text!r} is not MIN:MAX, such as 2:8")
    least, most = int(found[1]), int(found[2])
    if not 1 <= least <= most:
        raise click.UsageError(f"--elastic {text!r}: MIN must be at least 1 and at most MAX, such as 2:8")
    return [least, most]


def _numbers(text: str) -> list[int]:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise click.UsageError(f"{text!r} is neither a job's number nor a range such as 12-112")
    first, last = int(found[1]), int(found[2] or found[1])
    if not first <= last < first + MOST_NAMED:
        raise click.UsageError(f"{text!r}: a range must ascend and name at most {MOST_NAMED} jobs")
    return list(range(first, last + 1))


def _environment(given: tuple[str, ...]) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name in KEPT_VARIABLES or name.startswith("LC_")
    }
    for text in given:
        name, found, value = text.partition("=")
        if not name:
            raise click.UsageError(
                f"--env {text!r} must be NAME=VALUE, or the NAME of a variable that is set here"
            )
        if not found and name not in os.environ:
            raise click.UsageError(f"--env {name}: the variable is not set here; give {name}=VALUE")
        kept[name] = value if found else os.environ[name]
    return kept
