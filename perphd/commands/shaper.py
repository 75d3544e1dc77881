"""perphctl shaper and memfit: present sizing by the daemon, and searches for memory limits."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from perphd.commands.base import Out, command
from perphd.commands.number import Number
from perphd.control.client import Refused
from perphd.control.table import Part, table, text
from perphd.domain.errors import PerphError
from perphd.domain.reading import Reading, Unavailable
from perphd.domain.units import format_bytes

if TYPE_CHECKING:
    from perphd.sizing.memory_fit import FitView

_OUTSIDE: Final = {"keep": "KEEP", "drop": "DROP"}


def add_shaper_commands(cli: click.Group) -> None:
    """Add the commands to the group."""

    @command(cli)
    def shaper(out: Out) -> None:
        """Show the targets of the resource shaper.

        For every workload with reserved_memory: reservation, use, target and reason. Also shows the memory that could
        be lent now, and the proposals of the last plan. In the mode observe none of it is applied.
        """
        data = out.client.get("shaper")
        out.show(data, lambda: _shaper_parts(data))

    @cli.group()
    def memfit() -> None:
        """Search for the minimum of memory that a workload needs."""

    @command(memfit)
    @click.argument("workload")
    @click.option("--samples", type=click.IntRange(10, 3600), help="Samples per epoch [default: 60].")
    @click.option(
        "--delta", type=Number(0.01, 0.2), help="Share by which a limit is lowered [default: 0.05]."
    )
    def start(out: Out, workload: str, samples: int | None, delta: float | None) -> None:
        """Begin to lower a workload's memory.high.

        The search returns to the last good limit as soon as memory slows the workload. The result takes effect only
        with memfit apply.
        """
        given = {"samples": samples, "step": delta}
        body = {key: value for key, value in given.items() if value is not None}
        data = out.client.send("PUT", f"memfit/{workload}", body)
        out.say(data, f"{workload}: the search has begun; perphctl memfit status shows its progress")

    @command(memfit)
    @click.argument("workload", required=False)
    def status(out: Out, workload: str | None) -> None:
        """Show all searches, or the one of a workload."""
        data = out.client.get("memfit")
        if workload is not None:
            names = [str(each["workload"]) for each in data["searches"]]
            if workload not in names:
                text = f"no search was started for {workload}"
                raise Refused(404, {"code": "not-found", "message": text, "allowed": ", ".join(names)})
            data = {"searches": [each for each in data["searches"] if each["workload"] == workload]}
        out.show(data, lambda: _fit_parts(data))

    @command(memfit)
    @click.argument("workload")
    def apply(out: Out, workload: str) -> None:
        """Keep the limit of a finished search in force.

        It stays until the daemon stops, or until memfit stop.
        """
        data = out.client.send("POST", f"memfit/{workload}/apply", {})
        limit = format_bytes(data["memory_high_bytes"])
        out.say(data, f"{workload}: memory.high is {limit} until perphctl memfit stop {workload}")

    @command(memfit)
    @click.argument("workload")
    def stop(out: Out, workload: str) -> None:
        """End a search, or remove its limit."""
        data = out.client.send("DELETE", f"memfit/{workload}")
        out.say(data, f"{workload}: stopped; memory.high is restored")

    @command(memfit)
    @click.option(
        "--footprint", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True,
        help="CSV file with a line BYTES,SAMPLES for each value.",
    )  # fmt: skip
    @click.option("--task-mean", type=Number(), required=True, help="Mean memory use of one task, in bytes.")
    @click.option(
        "--task-deviation",
        type=Number(),
        required=True,
        help="Standard deviation of a task's memory use, in bytes.",
    )
    @click.option(
        "--tasks", type=click.IntRange(1), required=True, help="Number of tasks that run at a time."
    )
    @click.option(
        "--outside", type=click.Choice(list(_OUTSIDE)), default="keep", show_default=True,
        help="Whether use outside all intervals counts; the publication does not specify it.",
    )  # fmt: skip
    def estimate(
        out: Out, footprint: Path, task_mean: float, task_deviation: float, tasks: int, outside: str
    ) -> None:
        """Estimate a reservation from a footprint, offline.

        Computes the published estimate (Xu 2019, equations 3.5 to 3.8) from a histogram of a container's use and a
        task's mean and deviation.
        """
        from perphd.sizing.memory_fit import OutsideWeight, estimate_bytes

        found = estimate_bytes(
            _footprint(footprint), task_mean, task_deviation, tasks, OutsideWeight[_OUTSIDE[outside]]
        )
        out.say({"estimate": found, "outside": outside}, f"{found:.3f}")


def _footprint(path: Path) -> dict[float, int]:
    """The histogram in a CSV file.

    Raises:
        PerphError: a line is not BYTES,SAMPLES, or the file has no such line.
    """
    found: dict[float, int] = {}
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            try:
                value, samples = float(row[0]), int(row[1])
                if len(row) != 2 or samples < 0 or not 0 <= value < 1e18:
                    raise ValueError
            except (ValueError, IndexError) as exc:
                if number == 1:
                    continue  # a header line
                raise PerphError(
                    f"{path}, line {number}: {','.join(row)!r} is not BYTES,SAMPLES (allowed: 4294967296,120)"
                ) from exc
            found[value] = found.get(value, 0) + samples
    if not sum(found.values()):
        raise PerphError(f"{path}: holds no samples (allowed: lines of BYTES,SAMPLES)")
    return found


def _shaper_parts(data: Any) -> Iterator[Part]:
    from perphd.domain.wire import decode
    from perphd.sizing.shaper_view import ShaperView

    view = decode(ShaperView, data)
    if view.mode == "off":
        yield text('The shaper is off. With shaper = "observe" in [sizing], it reports what it would do.')
        return
    yield text(
        f"mode {view.mode}, every {view.interval_s:g} s; capacity {_size(view.capacity_bytes)}, "
        f"free to lend {_size(view.reclaimable_bytes)}"
    )
    rows = [
        (
            each.workload,
            each.role if each.shaped else "advised",
            _size(each.reserved_bytes),
            _size(each.used_bytes),
            _size(each.target_bytes),
            each.model or "-",
            str(each.crashes),
            f"{each.makes_room_by}: {each.reason}" if each.makes_room_by else each.reason,
        )
        for each in view.workloads
    ]
    columns = ("WORKLOAD", "ROLE", "RESERVED", "USED", "TARGET", "BY", "CRASHES", "WHY")
    yield table("", columns, rows, right=(2, 3, 4, 6))
    if view.proposed:
        yield text("The last plan:", *(f"  {line}" for line in view.proposed))


def _fit_parts(data: Any) -> Iterator[Part]:
    from perphd.commands.render_sizing import wrapped
    from perphd.domain.wire import decode
    from perphd.sizing.memory_fit import FitView

    found = [decode(FitView, each) for each in data["searches"]]
    if not found:
        yield text("No search was started: perphctl memfit start WORKLOAD")
        return
    rows = [
        (
            each.workload,
            each.phase,
            str(each.epochs),
            _bytes(each.limit_bytes),
            _bytes(each.last_good_bytes),
            _bytes(each.first_bad_bytes),
            _bytes(each.recommended_bytes),
        )
        for each in found
    ]
    columns = ("WORKLOAD", "PHASE", "EPOCHS", "IN FORCE", "GOOD", "BAD", "RECOMMENDED")
    yield table("", columns, rows, right=range(2, 7))
    yield wrapped(*(f"{each.workload}: {_fit_sentence(each)}" for each in found))


def _fit_sentence(fit: FitView) -> str:
    """The state of a search with its reason and next step."""
    said = f"{fit.reason}; speed by {fit.witness}" if fit.witness else fit.reason
    if fit.phase != "converged":
        return f"{said}; {fit.samples} of {fit.epoch_samples} samples of this epoch"
    if fit.applied:
        return f"{said}; in force until perphctl memfit stop {fit.workload}"
    if fit.recommended_bytes is None:
        return said
    return f"{said}; perphctl memfit apply {fit.workload} keeps the recommended limit in force"


def _size(reading: Reading) -> str:
    return "-" if isinstance(reading, Unavailable) else format_bytes(reading).replace(" ", "")


def _bytes(count: float | None) -> str:
    return "-" if count is None else format_bytes(count).replace(" ", "")
