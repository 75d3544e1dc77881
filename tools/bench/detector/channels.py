"""Detection of harm to LRAs without indicators, and its attribution, with program phases.

python -m tools.bench.detector.channels [--sections injections,laws,days] [--seeds 20] [--days 7] [--out FILE]

Injections: one resource is taken from an application with only counters and waiting, at many levels of harm. Laws:
streams of the channels alone, with phases, slowed down by a factor when neighbours arrive. Days: whole days of the
policy with phases, and of the channels alone, beside harmless neighbours that come and go. On an idle core: injections
about two minutes for twenty seeds, laws two, a day of channels alone five seconds each, of the policy two minutes.
"""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import Any, Final

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from perphd.admission.detector import channels  # noqa: E402
from perphd.admission.detector.channels import NOBODY, Channels  # noqa: E402
from perphd.admission.perph import PerphPolicy  # noqa: E402
from perphd.admission.settings import PolicySettings  # noqa: E402
from perphd.agent.learning import observations  # noqa: E402
from perphd.domain.decision import Action, Cause, Decision, Health  # noqa: E402
from perphd.domain.policy import Snapshot, WorkloadView  # noqa: E402
from perphd.domain.reading import Unavailable  # noqa: E402
from perphd.domain.sample import Sample  # noqa: E402
from perphd.predictor import Registry  # noqa: E402
from perphd.sim.node.archetypes import archetype  # noqa: E402
from perphd.sim.node.grant import Grant  # noqa: E402
from perphd.sim.node.model import Node  # noqa: E402
from perphd.sim.node.outcome import Outcome  # noqa: E402
from tools.bench.detector import injected  # noqa: E402
from tools.bench.detector.injected import Injection  # noqa: E402
from tools.bench.detector.sections import Lines, Sections, measure  # noqa: E402
from tools.bench.policies.driver import KNOBS, Seat  # noqa: E402
from tools.bench.policies.scene import Actor, Scenario  # noqa: E402
from tools.bench.policies.world import World, host_view  # noqa: E402

Floats = NDArray[np.float64]
STARTS_S: Final = injected.STARTS_S
ENDS_S: Final = STARTS_S + 40.0
SOON: Final = 10
"""Samples within which harm must be found and attributed."""
MISSED: Final = 0.85
"""Relative performance at which a tolerance of 10 % is missed by 5 points."""
SILENT: Final = Unavailable("it has no indicators")
INDICATORS: Final = (
    "work_rate_per_s", "load_per_s", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "work_events",
    "latency_events", "sli_window_s", "sli_resolution_s",
)  # fmt: skip
_NAMES: Final = tuple(Outcome.__slots__)
LOADS: Final = np.geomspace(0.05, 4.0, 96)
COVS: Final = (0.19, 0.4)
CORRELATION: Final = 0.74
"""Correlation of cycles per instruction between seconds, measured between stretches of 10^9 instructions."""


def without_indicators(sample: Sample) -> Sample:
    """The sample without the application's own indicators."""
    silent: dict[str, Any] = dict.fromkeys(INDICATORS, SILENT)
    return replace(sample, **silent)


# -- injections -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """``performance``: as seen by its clients, relative to before; ``after``: samples to DEGRADED; ``named``: the cause
    reported in the last of the first ``SOON`` samples in which it was DEGRADED.
    """

    performance: float
    after: int | None
    named: Cause


def play(injection: Injection, seed: int, counted: bool) -> Found:
    """One injection, only observed. ``counted``: cache misses are counted."""
    machine = injection.machine
    world = World(Scenario("silent", "detector", "", machine, injection.actors, ENDS_S, step_s=0.5), seed)
    registry, policy, memory, tick = Registry(), PerphPolicy(), None, 0
    lra = next(a for a in injection.actors if a.is_lra)
    world.apply(injection.before)
    told: list[tuple[float, Decision]] = []
    truth: list[tuple[float, Outcome]] = []
    while world.now_s < ENDS_S - 1e-9:
        interval = world.advance(1.0)
        samples = {s.workload: without_indicators(s) for s in world.samples(interval)}
        if not counted:
            samples = {name: replace(s, llc_mpki=SILENT) for name, s in samples.items()}
        host = host_view(machine, world.busy_cores(interval))
        views = tuple(
            WorkloadView(
                a.spec, samples.get(a.name), registry.model(a.name) if a.is_lra else None, enforceable=KNOBS
            )
            for a in injection.actors
        )
        snapshot = Snapshot(tick, world.now_s, 1.0, host, views, memory)
        for name, seen in observations(snapshot, [], 0.05):
            registry.model(name).observe(seen)
        target = policy.decide(snapshot)
        memory, tick = target.memory, tick + 1
        told += [(world.now_s, d) for d in target.decisions]
        truth.append((world.now_s, interval.outcomes[lra.name]))
    requests = lra.work.requests
    assert requests is not None

    def fares(outcome: Outcome) -> float:
        return outcome.work_per_s if requests.closed else 1.0 / outcome.p50_ms

    usual = median(fares(o) for at_s, o in truth if 30.0 < at_s <= STARTS_S)
    harmed = median(fares(o) for at_s, o in truth if at_s > STARTS_S + SOON / 2)
    after = [d.verdict for at_s, d in told if at_s > STARTS_S]
    sick = [i for i, v in enumerate(after) if v.health is Health.DEGRADED]
    soon = [after[i].cause for i in sick if i < SOON]
    return Found(harmed / usual, sick[0] + 1 if sick else None, soon[-1] if soon else Cause.NONE)


def _scaled(lra: Actor, misses: float) -> Actor:
    code = lra.work.code
    return replace(lra, work=replace(lra.work, code=replace(code, mpki_swing=code.mpki_swing * misses)))


def llc(random: Random) -> Injection:
    """A cache thrasher of any size beside applications that need little or much cache."""
    made = injected.llc(random)
    lra, thrash = made.actors
    threads = random.choice((4, 6, 8))
    lra = _scaled(lra, math.exp(random.uniform(math.log(0.5), math.log(5.0))))
    if random.random() < 0.4:  # a counter of only demand loads: fewer and more expensive misses
        part = random.uniform(2.0, 4.0)
        code = lra.work.code
        dear = replace(
            code,
            miss_cycles=code.miss_cycles * part,
            mpki_swing=code.mpki_swing / part,
            mpki_floor=code.mpki_floor / part,
        )
        lra = replace(lra, work=replace(lra.work, code=dear))
    return replace(made, actors=(lra, replace(thrash, work=replace(thrash.work, threads=threads))))


def mbw(random: Random) -> Injection:
    """Streamers on few or many cores."""
    made = injected.mbw(random)
    lra, stream = made.actors
    threads = random.choice((4, 6, 8))
    lra = _scaled(lra, math.exp(random.uniform(math.log(0.7), math.log(5.0))))
    return replace(made, actors=(lra, replace(stream, work=replace(stream.work, threads=threads))))


def smt(random: Random) -> Injection:
    """Siblings that take a small or large share of a core."""
    made = injected.smt(random)
    lra, jobs = made.actors
    code = replace(lra.work.code, smt_speed=random.uniform(0.3, 0.92))
    return replace(made, actors=(replace(lra, work=replace(lra.work, code=code)), jobs))


def cpu(random: Random) -> Injection:
    """Compute jobs, from few to many."""
    made = injected.cpu(random)
    lra, jobs = made.actors
    return replace(
        made, actors=(lra, replace(jobs, work=replace(jobs.work, threads=random.choice((8, 12, 20, 40)))))
    )


def disk(random: Random) -> Injection:
    """Random reads with few or many in flight."""
    made = injected.disk(random)
    lra, fio = made.actors
    threads = random.choice((48, 96, 192, 384))
    return replace(made, actors=(lra, replace(fio, work=replace(fio.work, threads=threads))))


INJECTIONS: Final[dict[str, Callable[[Random], Injection]]] = {
    "CPU run-queue": cpu, "LLC": llc, "memory bandwidth": mbw, "SMT": smt, "disk": disk,
}  # fmt: skip


def of_injections(options: argparse.Namespace) -> Lines:
    """Found and named."""
    lines = [
        f"Missed: its clients see less than {MISSED:.0%} of its undisturbed work (closed loop) or 1/p50 (open loop). "
        f"Found and named: DEGRADED within {SOON} samples, with the right cause by then.",
        "",
        "| taken away | misses counted | harm, % of what a request took (range) | missed / runs | found in time "
        "| and rightly named | median samples | said otherwise |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    all_missed = all_right = 0
    for counted in (True, False):
        for name in options.only.split(","):
            make = INJECTIONS[name]
            made = [make(Random(f"silent {name}:{seed}")) for seed in range(options.seeds)]
            runs = [play(injection, seed, counted) for seed, injection in enumerate(made)]
            missed = [r for r in runs if r.performance < MISSED]
            found = [r for r in missed if r.after is not None and r.after <= SOON]
            right = sum(r.named is made[0].cause for r in found)
            other = Counter(str(r.named) for r in found if r.named is not made[0].cause)
            harm = sorted(100.0 / r.performance - 100.0 for r in missed)
            delay = f"{median(r.after for r in found if r.after):g}" if found else "-"
            if counted:
                all_missed, all_right = all_missed + len(missed), all_right + right
            told = ", ".join(f"{k} {v}" for k, v in other.items()) or "-"
            span = f"{harm[0]:.0f} to {harm[-1]:.0f}" if harm else "-"
            lines.append(
                f"| {name} | {'yes' if counted else 'no'} | {span} | {len(missed)} / {len(runs)} | {len(found)} "
                f"| {right} | {delay} | {told} |"
            )
            print(lines[-1], flush=True)
    share = all_right / max(all_missed, 1)
    return [
        *lines,
        "",
        f"With misses counted, found and rightly named in **{share:.0%}** of {all_missed}; wanted: 90 %.",
    ]


# -- streams --------------------------------------------------------------------------------------------


def phases(rng: np.random.Generator, kind: str, n: int, cov: float) -> Floats:
    """Log cycles per instruction of a program with phases: "noise", "ar", "levels" of whole minutes, "states"."""
    sd, y = math.sqrt(math.log(1.0 + cov * cov)), np.empty(n)
    if kind == "noise":
        return rng.normal(0.0, sd, n)
    if kind == "ar":
        value = 0.0
        for at, step in enumerate(rng.normal(0.0, sd * math.sqrt(1.0 - CORRELATION**2), n)):
            value = CORRELATION * value + step
            y[at] = value
        return y
    states, at = rng.normal(0.0, sd, 4), 0
    while at < n:
        length = 1 + int(rng.exponential(20.0)) if kind == "states" else 30 + int(rng.exponential(180.0))
        y[at : at + length] = states[rng.integers(4)] if kind == "states" else rng.normal(0.0, sd)
        at += length
    return y + rng.normal(0.0, 0.02, n)


def neighbours(rng: np.random.Generator, n: int, a_day: float) -> Floats:
    """CPU use of harmless neighbours that arrive this many times a day and are present half of the time."""
    use, at, half = np.full(n, 0.1), 0, 43_200.0 / a_day
    while at < n:
        at += 5 + int(rng.exponential(half))
        stays = 5 + int(rng.exponential(half))
        use[at : at + stays] = 6.0
        at += stays
    return use


def episodes(y: Floats, misses: Floats, use: Floats) -> tuple[list[int], Channels]:
    """Samples at which neighbours began to be blamed."""
    state, settings, found, before = Channels(), PolicySettings(), [], False
    for at, (log, more, cores) in enumerate(zip(y.tolist(), misses.tolist(), use.tolist(), strict=True)):
        cpi = math.exp(log)
        seen = Sample(
            "db",
            at + 1.0,
            1.0,
            cpu_usage_cores=4.0,
            run_delay_cores=0.2,
            cpi=cpi,
            llc_mpki=2.0 * math.exp(more),
        )
        beside = replace(NOBODY, cpu_cores=cores)
        state, slow = channels.step(state, seen, beside, settings, (10.0, 50.0), crowded=False)
        if slow is not None and not before:
            found.append(at)
        before = slow is not None
    return found, state


def of_laws(options: argparse.Namespace) -> Lines:
    """Detection delays on streams."""
    lines = [
        "Share of runs in which cycles per instruction times 1.15, 1.45, 2 at unchanged CPU use are found within 30, "
        "10, 5 samples after neighbours came, and the median delay; ten minutes were seen before.",
        "",
        "| phases | CoV | misses | x1.15 | x1.45 | x2 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    n, cases = (
        600,
        (
            ("noise", 0.02),
            ("noise", 0.05),
            ("ar", 0.05),
            *((k, c) for k in ("ar", "levels", "states") for c in COVS),
        ),
    )
    for kind, cov in cases:
        for more in (1.0, 15.0):
            row = []
            for ratio, within in ((1.15, 30), (1.45, 10), (2.0, 5)):
                delays = []
                for seed in range(options.seeds):
                    rng = np.random.default_rng(seed)
                    y, x = phases(rng, kind, n + 40, cov), rng.normal(0.0, 0.1, n + 40)
                    y[n:] += math.log(ratio)
                    x[n:] += math.log(more)
                    use = np.where(np.arange(n + 40) < n, 0.1, 6.0)
                    late = [at - n + 1 for at in episodes(y, x, use)[0] if at >= n]
                    delays.append(late[0] if late else math.inf)
                share = sum(d <= within for d in delays) / len(delays)
                row.append(f"{share:.0%}, {median(delays):g}")
            lines.append(f"| {kind} | {cov:g} | x{more:g} | {' | '.join(row)} |")
            print(lines[-1], flush=True)
    return lines


def of_days(options: argparse.Namespace) -> Lines:
    """False alarms of the channels on streams of whole days."""
    lines = [
        f"{options.days:g} days of phases beside neighbours that come and go and harm nobody. False: times a day that "
        "neighbours were blamed, per LRA.",
        "",
        "| phases | CoV | misses follow | onsets a day | false a day | on the first day |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    n = int(options.days * 86_400)
    for kind in ("ar", "levels", "states"):
        for cov in COVS:
            for follows in (False, True):
                for a_day in (12.0, 150.0):
                    rng = np.random.default_rng(1)
                    y = phases(rng, kind, n, cov)
                    x = rng.normal(0.0, 0.1, n) + (1.5 * y if follows else 0.0)
                    found, state = episodes(y, x, neighbours(rng, n, a_day))
                    first = sum(at < 86_400 for at in found)
                    lines.append(
                        f"| {kind} | {cov:g} | {'yes' if follows else 'no'} | {state.onsets / options.days:.0f} "
                        f"| {len(found) / options.days:.2f} | {first} |"
                    )
                    print(lines[-1], flush=True)
    return lines


# -- the whole policy -----------------------------------------------------------------------------------


class Phased(World):
    """An LRA whose instructions take longer by phases, and a job on other cores that comes and goes.

    Steady states are looked up regardless of the settings, because no action helps without harm.
    """

    def __init__(self, scenario: Scenario, seed: int, logs: Floats, use: Floats) -> None:
        works = [a.work for a in scenario.actors]
        apart = [Grant(cpus=injected._HOME), Grant(cpus=injected._AWAY)]
        solved = Node(scenario.machine, works).solve(
            [apart] * (2 * len(LOADS)),
            np.array([(load, on) for on in (0.01, 1.0) for load in LOADS]),
        )
        self._table = np.array(
            [
                [[getattr(solved.of(w, row), name) for name in _NAMES] for w in (0, 1)]
                for row in range(2 * len(LOADS))
            ]
        )
        self._logs, self._use = logs, use
        super().__init__(scenario, seed)

    def _step(self, dt_s: float) -> dict[str, tuple[Outcome, float]]:
        second = min(int(self.now_s), len(self._logs) - 1)
        on = self._use[second] > 1.0
        lra = self._lives[self.scenario.actors[0].name]
        need = math.exp(self._logs[second]) * lra.needed.step(self._random, dt_s)
        load = lra.asked.step(self._random, dt_s)
        at = float(np.interp(load * need, LOADS, np.arange(len(LOADS))))
        low = min(int(at), len(LOADS) - 2)
        base = len(LOADS) * on
        rows = (
            self._table[base + low] + (at - low) * (self._table[base + low + 1] - self._table[base + low])
        ).tolist()
        found = {}
        for index, actor in enumerate(self.scenario.actors):
            outcome = Outcome(*rows[index])
            if index == 0:
                rate = outcome.work_per_s / need
                outcome = replace(
                    outcome,
                    work_per_s=rate,
                    offered_per_s=outcome.offered_per_s / need,
                    service_s=outcome.service_s * need,
                    cpi=outcome.cpi * need,
                    mips=outcome.mips / need,
                )
            found[actor.name] = outcome, load
        return found


def of_policy(options: argparse.Namespace) -> Lines:
    """Days of the whole policy, enforcing."""
    lines = [
        "The whole policy, enforcing, on an LRA without indicators at a third of the host's capacity, with phases, "
        "beside one thread of compression on other cores that comes and goes twelve times a day, whatever is in force. "
        "It costs the LRA less than 2 %.",
        "",
        "| phases | CoV | days | actions a day | of them | DEGRADED, samples a day |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    machine = injected.MACHINE
    for kind, cov in (("ar", 0.19), ("levels", 0.19), ("ar", 0.4), ("levels", 0.4)):
        work = archetype("xapian").workload
        full = (work.requests.rate_per_s if work.requests is not None else None) or 1.0
        lra = Actor(work.asked(rate_per_s=full * 0.33))
        job = Actor(replace(archetype("batch-compress").named("job"), threads=1))
        n = int(options.days * 86_400)
        scenario = Scenario("phased", "detector", "", machine, (lra, job), float(n), step_s=1.0)
        rng = np.random.default_rng(2)
        world = Phased(scenario, 1, phases(rng, kind, n, cov), neighbours(rng, n, 12.0))
        seat = Seat(scenario, PerphPolicy(), 1.0, models=True)
        actions: Counter[str] = Counter()
        sick = 0
        while world.now_s < scenario.duration_s - 1e-9:
            interval = world.advance(1.0)
            samples = tuple(
                without_indicators(s) if s.workload == lra.name else s for s in world.samples(interval)
            )
            snapshot = seat.snapshot(samples, world.busy_cores(interval), world.now_s)
            target = seat.decide(snapshot)
            seat.note(target, world.now_s, world.apply(target.settings) > 0)
            for decision in target.decisions:
                sick += decision.verdict.health is Health.DEGRADED
                if decision.action is not Action.HOLD:
                    actions[str(decision.action)] += 1
                    if options.tell:
                        print(f"{world.now_s:.0f} {decision.action} {decision.reason}", flush=True)
        told = ", ".join(f"{name} {count}" for name, count in actions.items()) or "-"
        lines.append(
            f"| {kind} | {cov:g} | {options.days:g} | {actions.total() / options.days:.2f} | {told} "
            f"| {sick / options.days:.0f} |"
        )
        print(lines[-1], flush=True)
    return lines


SECTIONS: Final[Sections] = {
    "injections": ("Harm to LRAs without indicators", of_injections),
    "laws": ("Slower instructions among phases", of_laws),
    "days": ("Days of phases, the channels alone", of_days),
    "policy": ("Days of phases, the whole policy", of_policy),
}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.detector.channels", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--only", default=",".join(INJECTIONS), help="some of the injected resources, separated by commas"
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--tell", action="store_true", help="print every action of the policy")
    measure(parser, SECTIONS)


if __name__ == "__main__":
    main()
