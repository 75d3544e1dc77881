"""perphctl predict and history: resource usage of earlier and future jobs. Works without the daemon."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from perphd.commands.base import Out, command
from perphd.commands.files import read_lines, state_dir, write_new
from perphd.commands.number import Number
from perphd.commands.pause import Duration
from perphd.commands.sizing import Bytes
from perphd.domain.errors import PerphError
from perphd.domain.job import HISTORY_FILE

if TYPE_CHECKING:
    from perphd.control.table import Part
    from perphd.forecast.history.features import JobDescription
    from perphd.forecast.history.store import JobHistory

F = TypeVar("F", bound=Callable[..., Any])
SHARES: Final = (0.1, 0.5, 0.9, 0.99)
_file = click.option(
    "--file",
    "path",
    metavar="FILE",
    help=f"The job history [default: {HISTORY_FILE} in the state directory].",
)


def _facts(function: F) -> F:
    """The options that describe a job."""
    for option in reversed(
        (
            click.option("--user", default="", help="User who runs the job."),
            click.option("--image", default="", help="Container image or systemd unit."),
            click.option("--name", default="", help="The job's name."),
            click.option(
                "--command", "words", default="", metavar="TEXT", help="The job's command line, quoted."
            ),
            click.option("--cores", type=Number(0, min_open=True), help="CPUs that the job requests."),
            click.option(
                "--memory", "memory_bytes", type=Bytes(), metavar="SIZE", help="Memory that the job requests."
            ),
            click.option(
                "--hour", type=click.IntRange(0, 23), help="Local hour at which the job starts, 0 to 23."
            ),
        )
    ):
        function = option(function)
    return function


def add_history_commands(cli: click.Group) -> None:
    """Add the commands to perphctl."""
    command(cli)(predict)

    @cli.group()
    def history() -> None:
        """Manage the history of jobs, on which predict is based."""

    command(history)(record)
    command(history, "export")(export)
    command(history, "import")(take)
    command(history)(merge)
    command(history)(clear)


@_facts
@_file
def predict(
    out: Out, user: str, image: str, name: str, words: str, cores: float | None, memory_bytes: int | None,
    hour: int | None, path: str | None,
) -> None:  # fmt: skip
    """Predict a job's use of resources from similar jobs.

    Shows for every known quantity: the estimate, the expert that made it (a feature of the job and an estimator) with
    its error on recent jobs, and the distribution among jobs with that feature.
    """
    from perphd.domain.wire import encode
    from perphd.forecast.histogram import quantiles
    from perphd.forecast.history.store import Quantity

    facts = _job(user, image, name, words, cores, memory_bytes, hour)
    with _open(out, path, there=True) as found:
        predictions = [each for each in (found.predict(facts, kind) for kind in Quantity) if each is not None]
    if not predictions:
        raise PerphError("no job with any of these features has been recorded")
    import numpy as np

    rows = [
        {
            "quantity": each.quantity.value,
            "estimate": each.estimate,
            "feature": each.feature,
            "estimator": each.estimator.value,
            "error": each.error if math.isfinite(each.error) else None,
            "samples": each.distribution.count,
            "least": each.distribution.least,
            "most": each.distribution.most,
            "quantiles": dict(
                zip(
                    (f"p{100 * share:g}" for share in SHARES),
                    quantiles(each.distribution, np.array(SHARES)).tolist(),
                    strict=True,
                )
            ),
        }
        for each in predictions
    ]
    out.show(encode({"predictions": rows}), lambda: _parts(rows))


@_facts
@click.option(
    "--run-time", "run_time_s", type=Duration(), metavar="TIME", help="Run time of the job: 90s, 2h."
)
@click.option("--cpu-time", "cpu_time_s", type=Duration(), metavar="TIME", help="CPU time that the job used.")
@click.option(
    "--peak-memory", "peak_bytes", type=Bytes(), metavar="SIZE", help="Peak of the job's memory use."
)
@click.option("--instructions", type=Number(0), help="Number of instructions that the job executed.")
@_file
def record(
    out: Out, user: str, image: str, name: str, words: str, cores: float | None, memory_bytes: int | None,
    hour: int | None, run_time_s: float | None, cpu_time_s: float | None, peak_bytes: int | None,
    instructions: float | None, path: str | None,
) -> None:  # fmt: skip
    """Record a job that has ended.

    For the epilogue of a batch system: describe the job as for predict, and give its use of resources.
    """
    from perphd.forecast.history.features import feature_values
    from perphd.forecast.history.store import Quantity

    facts = _job(user, image, name, words, cores, memory_bytes, hour)
    took = {
        Quantity.RUN_TIME_S: run_time_s,
        Quantity.CPU_TIME_S: cpu_time_s,
        Quantity.MEMORY_BYTES: peak_bytes,
        Quantity.INSTRUCTIONS: instructions,
    }
    outcome = {quantity: float(amount) for quantity, amount in took.items() if amount is not None}
    if not outcome:
        raise click.UsageError(
            "give at least one of --run-time, --cpu-time, --peak-memory and --instructions"
        )
    features = feature_values(facts)
    with _open(out, path) as found:
        found.complete(facts, outcome, time.time())
    out.say({"features": list(features)}, f"recorded under {len(features)} features")


@click.argument("target", metavar="FILE")
@_file
def export(out: Out, target: str, path: str | None) -> None:
    """Export the history to a file for import and merge."""
    with _open(out, path, there=True) as found:
        rows = _write(found, target)
    out.say({"file": target, "rows": rows}, f"written: {target}, {rows} rows")


@click.argument("sources", metavar="FILE...", nargs=-1, required=True)
@_file
def take(out: Out, sources: Sequence[str], path: str | None) -> None:
    """Add exports of other nodes to the history.

    Adding the same export twice changes nothing.
    """
    with _open(out, path) as found:
        rows = {source: found.merge(read_lines(source), source) for source in sources}
    out.say({"rows": rows}, *(_said(source, count) for source, count in rows.items()))


@click.argument("target", metavar="TARGET")
@click.argument("sources", metavar="FILE...", nargs=-1, required=True)
def merge(out: Out, target: str, sources: Sequence[str]) -> None:
    """Merge exports into a new one.

    The history of this node stays as it is.
    """
    from perphd.forecast.history.store import JobHistory

    with JobHistory(":memory:") as found:
        for source in sources:
            found.merge(read_lines(source), source)
        rows = _write(found, target)
    out.say({"file": target, "rows": rows}, f"written: {target}, {rows} rows")


@click.argument("prefix", metavar="[PREFIX]", default="")
@click.option("--all", "everything", is_flag=True, help="Delete the whole history.")
@_file
def clear(out: Out, prefix: str, everything: bool, path: str | None) -> None:
    """Delete features that begin with PREFIX.

    For example user=ada, and all pairs with it.
    """
    if bool(prefix) is everything:
        raise click.UsageError("give either a PREFIX or --all")
    with _open(out, path, there=True) as found:
        rows = found.clear(prefix)
    out.say({"rows": rows}, f"deleted: {rows} rows")


def _job(
    user: str,
    image: str,
    name: str,
    words: str,
    cores: float | None,
    memory_bytes: int | None,
    hour: int | None,
) -> JobDescription:
    from perphd.forecast.history.features import JobDescription, feature_values

    try:
        argv = tuple(shlex.split(words))
    except ValueError as exc:
        raise click.UsageError(f"--command {words!r}: {exc}") from exc
    facts = JobDescription(user, image, name, argv, cores, memory_bytes, hour)
    if not feature_values(facts):
        raise click.UsageError(
            "describe the job: --user, --image, --name, --command, --cores, --memory, --hour"
        )
    return facts


def _open(out: Out, path: str | None, *, there: bool = False) -> JobHistory:
    from perphd.forecast.history.store import JobHistory

    file = Path(path) if path is not None else state_dir(out) / HISTORY_FILE
    if there and not file.is_file():
        raise PerphError(
            f"{file}: there is no job history yet; with [forecast] enabled the daemon records runs of batch as they "
            "end, and perphctl history record or import adds others"
        )
    return JobHistory(file)


def _write(found: JobHistory, target: str) -> int:
    lines = list(found.exported())
    write_new(target, "".join(f"{line}\n" for line in lines))
    return len(lines) - 1


def _said(source: str, rows: int) -> str:
    return f"{source}: {rows} rows" if rows else f"{source}: imported before, nothing changed"


_TITLES: Final = {
    "enough_cores": "enough cores",
    "enough_ways": "enough ways",
    "enough_bytes_per_s": "enough memory bandwidth",
    "enough_disk_bytes_per_s": "enough disk bandwidth",
    "work_error_share": "error share of work",
}


_ESTIMATORS: Final = {
    "mean": "mean of all",
    "median": "median of the last 20",
    "rolling": "rolling average of",
    "last": "mean of the last 5",
}


def _title(quantity: str) -> str:
    return _TITLES.get(quantity) or quantity.rpartition("_")[0] or quantity


def _parts(rows: Sequence[dict[str, Any]]) -> list[Part]:
    from perphd.commands.render_sizing import wrapped
    from perphd.control.table import table

    heads = ("QUANTITY", "ESTIMATE", *(f"P{100 * share:g}" for share in SHARES), "MOST", "SAMPLES")
    cells = [
        (
            _title(row["quantity"]),
            *(
                _amount(row["quantity"], value)
                for value in (row["estimate"], *row["quantiles"].values(), row["most"])
            ),
            str(row["samples"]),
        )
        for row in rows
    ]
    said = [
        f"{_title(row['quantity'])}: by the {_ESTIMATORS[row['estimator']]} jobs with {row['feature']}, "
        + ("not tested yet" if row["error"] is None else f"recent error {row['error']:.0%}")
        for row in rows
    ]
    return [table("", heads, cells, right=range(1, len(heads))), wrapped(*said)]


def _amount(quantity: str, value: float) -> str:
    from perphd.domain.units import format_bytes

    if quantity.endswith(("_bytes", "_bytes_per_s")):
        return format_bytes(value).replace(" ", "") + ("/s" if quantity.endswith("_per_s") else "")
    return f"{value:.4g}s" if quantity.endswith("_s") else f"{value:.4g}"
