"""Runs the daemon's trials: starts them, feeds them with samples, and stores their records across restarts."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perphd import __version__
from perphd.config.file import Config
from perphd.domain.control import Actor, Pause
from perphd.domain.errors import ConfigError
from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.sample import Quality, Sample, reach_s
from perphd.domain.signals import performance
from perphd.domain.status import TrialStatus
from perphd.domain.wire import WireError, from_json, to_json
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.state_files import StateFiles
from perphd.trial.design import DesignRefused, Metric, Plan, Request, Signal, schedule
from perphd.trial.guard import LraReading
from perphd.trial.record import End, TrialRecord
from perphd.trial.running import Readings, Running

log = logging.getLogger("perphd")

FOLDER: Final = "trials"
"""Subdirectory of the state directory: one file per trial, named after its start."""
KEPT: Final = 20
_SEED_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Population:
    """The candidates of a trial: workloads with their newest samples, and their own modes.

    ``configured``: see ``configured_modes``.
    """

    specs: tuple[WorkloadSpec, ...]
    samples: Mapping[str, Sample]
    left_out: tuple[str, ...]
    policy: str
    configured: str = ""


def configured_modes(config: Config) -> str:
    """The modes in the configuration file, in words."""
    each = [*config.workloads, *config.matches]
    own = [f"{spec.name} {spec.mode}" for spec in each if spec.mode is not None]
    return ", ".join([f"daemon {config.daemon.mode}", *own])


class Trials:
    """The running trial, if any, and the records of earlier ones.

    Args:
        state_dir: directory in which records are stored.
        wall_clock: seconds since the epoch, because a trial outlives the daemon's monotonic clock.
        configured: the modes in the configuration file; a trial that began under other modes is not
            continued.
    """

    def __init__(self, state_dir: Path, wall_clock: Callable[[], float], configured: str = "") -> None:
        self._folder, self._wall_clock = state_dir / FOLDER, wall_clock
        self._writer = StateFiles("trials")
        self._running: Running | None = None
        self._last: TrialRecord | None = None
        self._problem = ""
        self._unsaved = False
        self._starting: str | None = None
        """None unless a trial is being stored; then the reason why it must not begin, or an empty text."""
        self._news = ""
        self._resume(configured)

    @property
    def mode(self) -> Mode | None:
        """The mode of the present block; None without a running trial."""
        return None if self._running is None else self._running.mode

    @property
    def problem(self) -> str:
        """Reason why the record of the last trial cannot be read or stored; empty if it can."""
        return self._problem

    @property
    def record(self) -> TrialRecord | None:
        """The running trial, else the last one."""
        return self._last if self._running is None else self._running.record

    def names_lra(self, name: str) -> bool:
        """True if the running trial measures an LRA of this name."""
        return self._running is not None and name in self._running.plan.lras

    def status(self) -> TrialStatus | None:
        """A summary of the running trial."""
        running = self._running
        if running is None or running.mode is None:
            return None
        plan = running.plan
        return TrialStatus(
            plan.trial, running.number, plan.blocks, running.mode, plan.ends_unix_s, running.void
        )

    async def start(
        self, request: Request, people: Population, pauses: Sequence[Pause], by: str
    ) -> TrialRecord:
        """Start a trial with a block in observe. Waits until it is stored, so callers hold no lock.

        Raises:
            ConfigError: it cannot start, and nothing has changed; or something ended it while it was being stored.
        """
        now_s = self._wall_clock()
        if self._running is not None:
            raise _refused(
                "trial", f"trial {self._running.plan.trial} is running", "perphctl trial stop ends it"
            )
        if self._starting is not None:
            raise _refused("trial", "another trial is just being started", "perphctl trial shows it")
        if pauses:
            raise _refused("pause", f"perphd is paused by {pauses[0].by}", "perphctl resume ends a pause")
        metrics = _metrics(people)
        seed = request.seed if request.seed is not None else int.from_bytes(os.urandom(_SEED_BYTES), "big")
        name = datetime.datetime.fromtimestamp(now_s, datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        plan = Plan(
            name, now_s, request.block_s, request.washout, seed, schedule(request.pairs, seed), metrics,
            people.left_out, request.bound_pct, people.policy, __version__, by, people.configured,
        )  # fmt: skip
        record = TrialRecord(plan)
        self._starting = ""
        try:
            await asyncio.wrap_future(self._keep(record))
            await asyncio.to_thread(self._prune)
        finally:
            why, self._starting = self._starting, None
        self._running = Running(record, now_s)
        if why:
            self.end(End.CHANGED, why)
            raise _refused("trial", f"it ended at once: {why}", "perphctl trial start tries again")
        return record

    def end(self, how: End, text: str, by: str = "") -> TrialRecord | None:
        """End the running trial; None if there is none. The end takes effect even if it cannot be stored."""
        running = self._running
        if running is None:
            if self._starting is not None:
                self._starting = text
            return None
        running.end(self._wall_clock(), how, text, by)
        return self._finish(running)

    def interrupt(self, why: str) -> None:
        """Invalidate the present block."""
        if self._running is not None and self._running.interrupt(self._wall_clock(), why):
            self._save(self._running.record)

    def look(self, pauses: Sequence[Pause]) -> str:
        """Check the time and the pauses. Returns a sentence if a block or the trial ended, else an empty text."""
        running = self._running
        if running is None:
            news, self._news = self._news, ""
            return news
        if self._unsaved:
            self._save(running.record)
        moved = running.look(self._wall_clock())
        if running.mode is None:
            return _ended(self._finish(running))
        if pauses:
            pause = pauses[0]
            about = pause.workload or "all workloads"
            self.interrupt(f"{about} paused by {pause.by}")
        if not moved:
            return ""
        self._save(running.record)
        plan = running.plan
        return f"trial {plan.trial}: block {running.number} of {plan.blocks}, {running.mode}"

    def take(self, specs: Sequence[WorkloadSpec], samples: Mapping[str, Sample]) -> str:
        """Process the samples of one tick. Returns a sentence if a guard rail ended the trial, else an empty text."""
        running = self._running
        if running is None:
            return ""
        now_s = self._wall_clock()
        running.take(now_s, _readings(running.plan, specs, samples))
        return "" if running.mode is not None else _ended(self._finish(running))

    def close(self) -> None:
        """Wait until everything is stored."""
        self._writer.close()

    def _finish(self, running: Running) -> TrialRecord:
        self._last, self._running = running.record, None
        self._save(running.record)
        return running.record

    def _resume(self, configured: str) -> None:
        files = self._files()
        if not files:
            return
        try:
            record = from_json(files[-1].read_text(encoding="utf-8"), TrialRecord)
        except (OSError, ValueError, WireError) as exc:
            self._problem = f"{files[-1]}: cannot be read ({exc}): a trial that was running is not continued"
            return
        self._last = record
        if record.ending is None:
            running = Running(record, self._wall_clock())
            if running.mode is None:
                self._finish(running)
                return
            if record.plan.configured not in ("", configured):
                text = (
                    f"interrupted: the modes in the configuration changed while perphd was stopped "
                    f"(were: {record.plan.configured}; are: {configured})"
                )
                running.end(self._wall_clock(), End.CHANGED, text, "")
                self._news = _ended(self._finish(running))
                log.warning("%s", self._news)
                return
            self._running = running
            running.note(self._wall_clock(), "perphd was restarted; the trial continues")
            self._save(running.record)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.json"))

    def _prune(self) -> None:
        for old in self._files()[:-KEPT]:
            try:
                old.unlink()
            except OSError as exc:
                log.warning("%s: cannot be removed: %s", old, exc.strerror)

    def _keep(self, record: TrialRecord) -> Future[None]:
        return self._writer.replace(self._folder / f"{record.plan.trial}.json", to_json(record) + "\n")

    def _save(self, record: TrialRecord) -> None:
        """Store the record without waiting for the disk. On failure, the trial continues and the next tick
        retries.
        """
        self._unsaved = False

        def stored(done: Future[None]) -> None:
            exc = done.exception()
            self._unsaved = self._unsaved or exc is not None
            self._problem = "" if exc is None else f"the record of trial {record.plan.trial}: {exc}"

        self._keep(record).add_done_callback(stored)


def population_refusal(people: Population) -> ConfigError | None:
    """Reason why these workloads cannot take part in a trial; None if they can."""
    lras = [spec for spec in people.specs if spec.kind is Kind.LRA]
    batch = [spec for spec in people.specs if spec.kind is Kind.BATCH]
    if not lras or not batch:
        kind = "LRA" if not lras else "batch workload"
        return _refused("workloads", f"no {kind} is known", "at least one LRA and one batch workload")
    for kind, some in (("LRA", lras), ("batch workload", batch)):
        if all(spec.name in people.left_out for spec in some):
            return _refused(
                "mode", f"every {kind} has its own mode observe: nothing would be enforced",
                "a workload without its own mode, or with mode enforce",
            )  # fmt: skip
    return None


def _metrics(people: Population) -> tuple[Metric, ...]:
    """The metrics of a trial, from the sources that deliver at present.

    Raises:
        ConfigError: these workloads cannot take part in a trial, or no LRA is measured yet.
    """
    if (refusal := population_refusal(people)) is not None:
        raise refusal
    metrics: list[Metric] = []
    for spec in people.specs:
        sample = people.samples.get(spec.name)
        if spec.kind is not Kind.LRA or sample is None or sample.has(Quality.GONE):
            continue
        perf = performance(sample, spec.objective.latency_percentile)
        if available(perf.delay):
            metrics.append(Metric(Signal.DELAY, spec.name, perf.delay_source))
        if available(perf.work):
            metrics.append(Metric(Signal.WORK, spec.name, perf.work_source))
    if not metrics:
        raise _refused("workloads", "no LRA is measured yet", "perphctl status shows what is missing")
    return (*metrics, Metric(Signal.BATCH, "", "cpu"))


def _readings(plan: Plan, specs: Sequence[WorkloadSpec], samples: Mapping[str, Sample]) -> Readings:
    sources = {(metric.workload, metric.signal): metric.source for metric in plan.metrics}
    lras: dict[str, LraReading] = {}
    seconds = reach = 0.0
    batch: Reading = 0.0
    for spec in specs:
        sample = samples.get(spec.name)
        if sample is None or sample.has(Quality.GONE):
            continue
        if not sample.has(Quality.FIRST, Quality.RESTARTED):
            seconds = max(seconds, sample.interval_s)
        if spec.kind is Kind.BATCH:
            used = sample.cpu_usage_cores
            batch = batch + used if available(batch) and available(used) else NOT_MEASURED
            continue
        if spec.name not in plan.lras or sample.has(Quality.FIRST, Quality.RESTARTED, Quality.BETWEEN):
            continue
        reach = max(reach, reach_s(sample))
        perf = performance(sample, spec.objective.latency_percentile)
        lras[spec.name] = LraReading(
            perf.delay if perf.delay_source == sources.get((spec.name, Signal.DELAY)) else NOT_MEASURED,
            perf.work if perf.work_source == sources.get((spec.name, Signal.WORK)) else NOT_MEASURED,
            perf.in_flight,
        )
    return Readings(seconds, max(seconds, reach), lras, batch)


def _ended(record: TrialRecord) -> str:
    assert record.ending is not None
    return f"trial {record.plan.trial} ended ({record.ending.how}): {record.ending.text}"


def request_of(values: Mapping[str, float | None]) -> Request:
    """A validated request from the API's values.

    Raises:
        ConfigError: a value is out of bounds.
    """
    given = {key: value for key, value in values.items() if value is not None}
    for key, value in given.items():
        if not abs(value) <= sys.float_info.max:
            raise _refused(key, "the number is too large", "a smaller number")
    if "seed" in given:
        if given["seed"] != int(given["seed"]):
            raise _refused("seed", f"{given['seed']:g} is not a whole number", "0 to 4294967295")
        given["seed"] = int(given["seed"])
    try:
        return Request(**given)  # type: ignore[arg-type]
    except DesignRefused as exc:
        raise _refused(exc.key, str(exc), exc.allowed) from exc


def by_text(by: Actor | None) -> str:
    """The requester, in words."""
    return "" if by is None else str(by)


def _refused(key: str, problem: str, allowed: str) -> ConfigError:
    return ConfigError("request", key, problem, allowed)
