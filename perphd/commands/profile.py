"""``perphd profile``: explores an application's allocations, and saves the result as a warm start."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from perphd.commands.number import Number
from perphd.config.file import DEFAULT_PATH
from perphd.domain.errors import PerphError
from perphd.domain.extras import how_to_get

if TYPE_CHECKING:
    from perphd.agent.profiling.run import ProfilingPlan

_EXIT_FAILED = 1
_TELLING = 5
"""Number of allocations after which the remaining time is estimated from the measured pace, not from the plan."""
_EVERY_S = 10.0
"""Seconds between two lines of progress without a terminal."""


@click.command()
@click.argument("app")
@click.option("--config", "config_path", default=DEFAULT_PATH, show_default=True, help="Configuration file.")
@click.option("--simulated", is_flag=True, help="Run the archetype APP of profiles/ on a simulated host.")
@click.option(
    "--points",
    type=click.IntRange(20, 20_000),
    help="Number of allocations to measure [default: 10 % of all, at least 25 (one knob) or 50, at most 1000].",
)
@click.option(
    "--settle",
    type=click.IntRange(0, 600),
    default=4,
    show_default=True,
    help="Periods skipped after each change, while the application settles.",
)
@click.option(
    "--measure",
    type=click.IntRange(1, 600),
    default=3,
    show_default=True,
    help="Periods measured for each allocation.",
)
@click.option(
    "--max-loss",
    type=Number(1, 99),
    default=30.0,
    show_default=True,
    help="Loss of work, in per cent, at which an allocation is ended.",
)
@click.option(
    "--max-delay",
    type=Number(1.1, 1000),
    default=3.0,
    show_default=True,
    help="Growth of delay, as a factor, at which an allocation is ended.",
)
@click.option(
    "--when-it-suffers",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What to do when APP suffers: end, or continue with less tight allocations.",
)
@click.option("--fresh", is_flag=True, help="Start again instead of continuing an earlier run.")
@click.option(
    "--engine",
    type=click.Choice(["lightgbm", "numpy"]),
    help="Training library [default: lightgbm if installed].",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of the choice of allocations and of training.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False), help="File to save to [default: in the state directory]."
)
def profile(app: str, config_path: str, simulated: bool, out: str | None, **asked: Any) -> None:
    """Explore how APP performs with fewer resources, and save a warm start for its model.

    Lowers its CPUs, memory, cache ways and bandwidth from generous to tight, as far as this host can set each. Restores
    everything as soon as APP suffers, at the end, and after Ctrl-C. A later run continues one that ended early. The
    daemon must not run meanwhile; after a crash "perphd restore" restores everything.
    """
    from perphd.agent.profiling.explorer import ExplorationGuard, Pacing, Stop
    from perphd.agent.profiling.run import ProfileOptions, find_lra, profile_live, profile_simulated
    from perphd.config.file import load
    from perphd.predictor.profile.training import NO_LIGHTGBM, best_engine

    teller = _teller(app)
    pacing = Pacing(asked["settle"], asked["measure"], skip=asked["when_it_suffers"] == "skip")
    engine = asked["engine"] or best_engine()
    if asked["engine"] is None and engine == "numpy":
        teller.say(NO_LIGHTGBM)
    elif asked["engine"] == "lightgbm" and best_engine() == "numpy":
        raise click.UsageError(f"lightgbm is not installed: {how_to_get('worker')}")
    try:
        guard = None
        config = None if simulated else load(config_path)
        spec = None if config is None else find_lra(config, app)
        if spec is not None:
            guard = ExplorationGuard(spec.objective, asked["max_loss"], asked["max_delay"])
        options = ProfileOptions(
            points=asked["points"],
            guard=guard,
            pacing=pacing,
            fresh=asked["fresh"],
            seed=asked["seed"],
            engine=engine,
            out=Path(out) if out else Path(f"{app}.profile.json") if simulated else None,
        )
        if config is None or spec is None:
            result = asyncio.run(profile_simulated(app, options, teller))
        else:
            result = asyncio.run(profile_live(config, spec, options, teller))
    except PerphError as exc:
        _refuse(exc)
    finally:
        teller.close()
    if result.outcome.stop is Stop.SUFFERED:
        click.echo(
            f"{app} suffered ({result.outcome.reason}): everything was restored at once, and the exploration ended."
        )
        click.echo("The same command continues, and skips allocations as tight as this one.")
    elif result.outcome.stop is Stop.INTERRUPTED:
        click.echo(
            f"interrupted: {result.measured} allocations are measured; the same command continues from there"
        )
        raise SystemExit(130)
    if result.profile is None:
        raise SystemExit(_EXIT_FAILED)
    metrics = result.profile.metrics
    click.echo(
        f"{app}: {metrics.rows} samples, {result.profile.origin.engine}, {result.profile.origin.rounds} trees; "
        f"held out (10-fold): R2 {metrics.r2:.4f}, mean error {metrics.mape:.1%}"
    )
    if metrics.refusal:
        click.echo(f"not signed off: {metrics.refusal}. It is saved, but not used as a warm start")
    click.echo(f"saved: {result.path}")


class _Lines:
    """Progress as plain lines, for logs and pipes."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._began_s = self._told_s = time.monotonic()
        self._known, self._each_s = 0, 0.0

    def begin(self, plan: ProfilingPlan) -> None:
        for axis in plan.axes:
            self.say(f"explored: {axis}")
        for why in plan.left_out:
            self.say(f"not explored: {why}")
        again = f", {plan.known} of them known from an earlier run" if plan.known else ""
        minutes = math.ceil(plan.takes_s / 60.0)
        self.say(
            f"{plan.points} of {plan.cells} allocations{again}: about {minutes} min if {self._app} tolerates them all"
        )
        self._each_s = plan.takes_s / max(plan.points - plan.known, 1)
        self._known, self._began_s = plan.known, time.monotonic()

    def step(self, step: Any) -> None:
        self._complain(step)
        now_s = time.monotonic()
        if now_s - self._told_s >= _EVERY_S or step.done == step.total:
            self._told_s = now_s
            done = step.done - self._known
            each_s = (now_s - self._began_s) / done if done >= _TELLING else self._each_s
            left_s = each_s * (step.total - step.done)
            self.say(f"{step.done} of {step.total}, about {left_s / 60:.0f} min left")

    def _complain(self, step: Any) -> None:
        if step.complaint:
            again = "; this allocation is tried once more" if step.again else ""
            self.say(f"{self._app} suffers: {step.complaint}; all settings are restored{again}")

    def say(self, text: str) -> None:
        click.echo(text)
        sys.stdout.flush()

    def close(self) -> None:
        pass


class _Bar(_Lines):
    """Progress as a bar with the time left."""

    def __init__(self, app: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__(app)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[work]}"),
        )
        self._task: Any = None

    def begin(self, plan: ProfilingPlan) -> None:
        super().begin(plan)
        self._task = self._bar.add_task("exploring", total=plan.points, completed=plan.known, work="")
        self._bar.start()

    def step(self, step: Any) -> None:
        self._complain(step)
        work = "" if step.work is None else f"work {step.work:.0%}"
        self._bar.update(self._task, completed=step.done, work=work)

    def say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False)

    def close(self) -> None:
        self._bar.stop()


def _teller(app: str) -> _Lines:
    return _Bar(app) if sys.stdout.isatty() else _Lines(app)


def _refuse(error: PerphError) -> NoReturn:
    click.echo(f"perphd: {error}", err=True)
    raise SystemExit(_EXIT_FAILED)
