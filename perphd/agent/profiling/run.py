"""``perphd profile``: explore, train, validate, save. Reports progress to a ``ProgressListener``."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from perphd import __version__
from perphd.agent.profiling.explorer import (
    ExplorationGuard,
    ExplorationStep,
    Explorer,
    Pacing,
    ProbeOutcome,
    Stop,
    looks_ahead,
)
from perphd.agent.profiling.host import CPUS, MBW, MEMORY, QUOTA, WAYS, HostSubject, open_subject
from perphd.agent.profiling.progress import ProfileProgress, ReferencePoint, write_atomically
from perphd.config.discovery import Discovery
from perphd.config.file import Config
from perphd.config.opt_in import OptIn
from perphd.domain.errors import ConfigError, PerphError
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.host.cgroup.hierarchy import discover
from perphd.host.fs import KernelFs, RealFs
from perphd.host.lookup import Lookup
from perphd.predictor.ogbrt.trees import Floats
from perphd.predictor.profile.file import Profile, ProfileOrigin, to_text
from perphd.predictor.profile.lattice import Axis, Lattice
from perphd.predictor.profile.training import Engine
from perphd.predictor.profile.worker import train_apart

if TYPE_CHECKING:
    from perphd.sim.machine import Machine

SHARE: Final = 0.1
"""Default share of the lattice to measure. ``MOST_POINTS`` limits it, because each point takes seconds."""
MOST_POINTS: Final = 1000
LEAST_ROWS: Final = 40
"""Minimum number of points for a model of several knobs."""
LEAST_OF_ONE: Final = 20
"""Minimum number of points for a model of one knob."""
SPARE: Final = 1.25
"""Factor on the number of points that a model needs. The spare points replace those that turn out to be harmful."""
SIGNS: Final = {CPUS: 0, QUOTA: 1, MEMORY: 1, WAYS: 1, MBW: 1}
"""Monotonicity: more cores can reduce performance (threads that communicate); more of the other knobs never does."""
SHARE_NAMES: Final = {
    CPUS: "cpu_share",
    QUOTA: "cpu_share",
    MEMORY: "memory_share",
    WAYS: "llc_share",
    MBW: "mbw_share",
}
LOAD: Final = "load_share"
_LOAD_VARIES: Final = 0.1
_MOVED: Final = 0.05
"""A knob is informative if its relative values differ by more than this."""


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """The operator's options.

    ``points``: number of allocations to measure; None: ``SHARE`` of the lattice, but at least ``SPARE`` times what a
    model needs and at most ``MOST_POINTS``. ``out``: path of the profile; None: a file in the state directory.
    """

    points: int | None = None
    guard: ExplorationGuard | None = None
    pacing: Pacing = Pacing()
    fresh: bool = False
    seed: int = 0
    engine: Engine | None = None
    memory_floor_bytes: float | None = None
    out: Path | None = None


@dataclass(frozen=True, slots=True)
class ProfilingPlan:
    """The planned exploration, announced before any setting is changed.

    ``axes``: each knob with its range and number of steps; ``points`` of ``cells`` allocations, of which
    ``known`` are from an earlier run; ``takes_s``: duration if the application tolerates every allocation;
    ``left_out``: knobs that cannot be explored, with reasons.
    """

    axes: tuple[str, ...]
    cells: int
    points: int
    known: int
    takes_s: float
    left_out: tuple[str, ...]


class ProgressListener(Protocol):
    """Receives progress reports."""

    def begin(self, plan: ProfilingPlan) -> None:
        """Announce the planned exploration."""

    def step(self, step: ExplorationStep) -> None:
        """Report a completed point."""

    def say(self, text: str) -> None:
        """Report any other message."""


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """The outcome; ``profile`` is None if there are too few points for a model."""

    outcome: ProbeOutcome
    profile: Profile | None
    path: Path | None
    measured: int


def profile_path(state_dir: str, app: str) -> Path:
    """Path where the daemon looks for an LRA's profile at start."""
    return Path(state_dir) / "profiles" / f"{app}.json"


def progress_path(state_dir: str, app: str) -> Path:
    """Path of an unfinished exploration's progress."""
    return Path(state_dir) / "profiles" / f"{app}.progress.json"


def find_lra(config: Config, app: str, fs: KernelFs | None = None) -> WorkloadSpec:
    """Find the LRA of this name and its control group.

    The group is configured, or searched once if the LRA is declared by ``match`` or declares itself
    (``[opt_in]``). ``fs``: the kernel's files; None: those below ``host.root``, by default this machine's.

    Raises:
        ConfigError: no LRA has this name, or nothing is found for it.
    """
    lras = [*config.of_kind(Kind.LRA), *(spec for spec in config.matches if spec.kind is Kind.LRA)]
    source = ", ".join(config.sources)
    spec = next((spec for spec in lras if spec.name == app), None)
    if spec is not None and spec.cgroup:
        return spec
    names = [one.name for one in lras]
    is_one_of = app.startswith(tuple(f"{one.name}." for one in lras if one.match))
    fs = fs if fs is not None else RealFs(config.host.root)
    lookup = Lookup(fs, discover(fs))
    if spec is not None or is_one_of or config.opt_in.is_on:
        looked = Discovery(fs, lookup).look(config.matches, config.workloads, config.opt_in)
        found = looked.specs.get(app)
        if found is not None and found.kind is Kind.LRA:
            return found
        one_of = [name for name in looked.specs if spec is not None and looked.declared_as[name] == app]
        if spec is not None and one_of:
            problem = f"{app!r} matches several workloads ({spec.match}); name one of them"
            raise ConfigError(source, "lra", problem, ", ".join(one_of))
        if spec is not None:
            why = looked.problems.get(app, f"nothing matches {spec.match}")
            raise ConfigError(
                source, "lra", f"{app!r} is declared by match, and no such LRA was found: {why}"
            )
        names += [name for name in looked.specs if looked.specs[name].kind is Kind.LRA]
    own_unit = re.compile(rf"(?:^|/){re.escape(app)}\.")
    for remark in OptIn(fs, lookup).remarks(config.opt_in):
        if own_unit.search(remark):
            raise ConfigError(source, "lra", f"no LRA is named {app!r}: {remark}")
    raise ConfigError(source, "lra", f"no LRA is named {app!r}", ", ".join(names) or "none is declared")


async def profile_live(
    config: Config, spec: WorkloadSpec, options: ProfileOptions, teller: ProgressListener
) -> ProfileResult:
    """Explore an LRA of this host; see ``find_lra``.

    Raises:
        PerphError: a daemon holds the journal, the application is gone, or nothing can be set.
    """
    app = spec.name
    period = config.daemon.period_s

    async def step() -> float:
        await asyncio.sleep(period)
        return time.monotonic()

    subject = open_subject(config, spec, step, clock=time.monotonic)
    progress = progress_path(config.daemon.state_dir, app)
    out = options.out or profile_path(config.daemon.state_dir, app)
    return await _profile(subject, app, progress, out, options, teller, socket.gethostname())


async def profile_simulated(
    archetype: str,
    options: ProfileOptions,
    teller: ProgressListener,
    *,
    progress: Path | None = None,
    interrupt_after: int | None = None,
    machine: Machine | None = None,
) -> ProfileResult:
    """Explore one of the archetypes on a simulated host, in virtual time.

    ``progress``: file that stores results so far; ``interrupt_after``: end after this number of points, as
    Ctrl-C would; ``machine``: the simulated machine, by default the demo's.

    Raises:
        ConfigError: there is no such archetype.
    """
    # imported here so that a real daemon does not load the simulator
    from perphd.agent.simulated import simulate, simulated_sli

    spec = WorkloadSpec(
        archetype, Kind.LRA, f"/simulated/{archetype}", sli=SliSpec("simulated", (("workload", archetype),))
    )
    host = simulate(
        (spec,), machine=machine, seed=options.seed, resctrl=machine is None, kinds={archetype: archetype}
    )

    async def step() -> float:
        host.advance(host.now_s + 1.0)
        return host.now_s

    state = tempfile.mkdtemp(prefix="perphd-profile-")
    try:
        config = Config()
        config = replace(config, daemon=replace(config.daemon, state_dir=state))
        subject = open_subject(
            config, spec, step, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host)
        )
        return await _profile(
            subject, archetype, progress, options.out, options, teller, "simulated", interrupt_after
        )
    finally:
        shutil.rmtree(state, ignore_errors=True)


async def _profile(
    subject: HostSubject,
    app: str,
    progress_file: Path | None,
    out: Path | None,
    options: ProfileOptions,
    teller: ProgressListener,
    host: str,
    interrupt_after: int | None = None,
) -> ProfileResult:
    earlier = None
    if progress_file is not None and not options.fresh:
        earlier = ProfileProgress.load(progress_file, app)
    try:
        lattice, left_out = await subject.lattice(
            subject.actuators, options.memory_floor_bytes, earlier.lattice if earlier else None
        )
        if earlier is None:
            enough = max(round(SHARE * lattice.size), round(SPARE * least_rows(lattice)))
            count = options.points or min(enough, MOST_POINTS)
            points = lattice.sample(count, options.seed)
            progress = ProfileProgress(app, lattice, points, options.seed, progress_file)
        else:
            progress = earlier
        takes_s = looks_ahead(progress, options.pacing) * subject.look_s
        shown = tuple(_shown(axis) for axis in lattice.axes)
        teller.begin(
            ProfilingPlan(shown, lattice.size, len(progress.points), progress.done, takes_s, left_out)
        )

        def hear(step: ExplorationStep) -> None:
            teller.step(step)
            if interrupt_after is not None and step.done >= interrupt_after:
                explorer.interrupted = True

        explorer = Explorer(subject, progress, options.guard, options.pacing, hear)
        with _interruptible(lambda: setattr(explorer, "interrupted", True)):
            outcome = await explorer.run()
            await subject.look()  # a sample makes the agent apply the restored settings
    finally:
        await subject.close()
    measured, least = len(progress.measured), least_rows(lattice)
    if outcome.stop is Stop.INTERRUPTED or measured < least:
        if outcome.stop is not Stop.INTERRUPTED:
            teller.say(f"{measured} allocations were measured: too few for a model ({least} are needed)")
        return ProfileResult(outcome, None, None, measured)
    teller.say(f"training on {measured} samples")
    profile = await asyncio.to_thread(train_profile, progress, left_out, options, host)
    if out is not None:
        write_atomically(out, to_text(profile))
    if outcome.stop is Stop.DONE:
        progress.forget()
    return ProfileResult(outcome, profile, out, measured)


def least_rows(lattice: Lattice) -> int:
    """Minimum number of measured allocations for a model of these knobs."""
    return LEAST_OF_ONE if len(lattice.axes) == 1 else LEAST_ROWS


def _shown(axis: Axis) -> str:
    low, high = axis.steps[0], axis.steps[-1]
    if axis.unit == "bytes":
        return f"{axis.name}: {low / 2**20:.0f} to {high / 2**20:.0f} MiB in {len(axis.steps)} steps"
    return f"{axis.name}: {low:g} to {high:g} {axis.unit} in {len(axis.steps)} steps"


def train_profile(
    progress: ProfileProgress, left_out: tuple[str, ...], options: ProfileOptions, host: str
) -> Profile:
    """A profile from the measurements.

    Raises:
        PerphError: training failed.
    """
    reference = progress.reference
    assert reference is not None
    features, scale, x, y = rows_of(progress, reference)
    moved = np.ptp(x, axis=0) > _MOVED
    left_out += tuple(
        f"{name}: could not be varied; the application has the whole of it"
        for name, there in zip(features, moved, strict=True)
        if not there
    )
    if not moved.any():
        raise PerphError(f"no knob of {progress.app} could be varied: there is nothing to learn from")
    features = [name for name, there in zip(features, moved, strict=True) if there]
    scale = tuple(value for value, there in zip(scale, moved, strict=True) if there)
    x = x[:, moved]
    signs = {SHARE_NAMES[axis]: sign for axis, sign in SIGNS.items()} | {LOAD: 0}
    monotone = [signs[name] for name in features]
    trained = train_apart(x, y, features, monotone, seed=options.seed, engine=options.engine)
    origin = ProfileOrigin(
        app=progress.app,
        hosts=(host,),
        perphd_version=__version__,
        made_at_unix_s=round(time.time(), 0),
        work_source=reference.work_source,
        engine=trained.engine,
        rounds=trained.rounds,
        seed=options.seed,
        grid_cells=progress.lattice.size,
        measured=len(y),
        not_explored=left_out,
        note=f"{len(progress.suffered)} allocations were harmful, {len(progress.pruned)} were skipped because of them"
        if progress.suffered
        else "",
    )
    low, high = tuple(x.min(axis=0).tolist()), tuple(x.max(axis=0).tolist())
    return Profile(origin, trained.metrics, tuple(features), scale, low, high, trained.trees, x, y)


def rows_of(
    progress: ProfileProgress, reference: ReferencePoint
) -> tuple[list[str], tuple[float, ...], Floats, Floats]:
    """Feature names, the value that counts as 1.0 for each, rows (n, F) relative to it, and log(work /
    reference).

    Relative features make a model meaningful on a host of another size: cores relative to undisturbed use,
    memory to present use, ways and bandwidth to their totals, load to the load of the reference.
    """
    axes = progress.lattice.axes
    tops = {axis.name: axis.steps[-1] for axis in axes}
    scale = [
        reference.cpu_cores or tops[axis.name] if axis.name in (CPUS, QUOTA) else tops[axis.name]
        for axis in axes
    ]
    names = [SHARE_NAMES[axis.name] for axis in axes]
    measured = list(progress.measured.values())
    x = np.array([item.values for item in measured]) / np.array(scale)
    loads = [item.load for item in measured]
    if reference.load and all(load is not None for load in loads):
        known = np.array([load or 0.0 for load in loads])
        if known.max() - known.min() > _LOAD_VARIES * reference.load:
            x = np.column_stack([x, known / reference.load])
            names.append(LOAD)
            scale.append(reference.load)
    y = np.log(np.array([item.work / item.reference for item in measured]))
    return names, tuple(float(v) for v in scale), np.asarray(x, dtype=np.float64), y


@contextmanager
def _interruptible(interrupt: Callable[[], Any]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the run after the current point, with everything restored."""
    loop = asyncio.get_running_loop()
    numbers: list[signal.Signals] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, interrupt)
            numbers.append(number)
        except (ValueError, RuntimeError, NotImplementedError):  # not the main thread
            break
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
