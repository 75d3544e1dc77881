"""Anomaly detector: is this LRA below its target because a resource is contended?

Judges work and delay against the target at the present load. A drop in work counts only to the extent that longer
waiting explains it (Little's law); the rest is attributed to a lower load. The target, with its tolerance, sets the
effect size; all samples together decide significance, at one rate of false alarms (``significance``). Detection always
runs; only actions are gated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.admission.detector import cause as causes
from perphd.admission.detector import cusum, origin, scatter, significance, slowdown
from perphd.admission.detector.cause import UNKNOWN_SURROUNDINGS, Ledger, Surroundings
from perphd.admission.detector.channels import NOTHING_KNOWN, Channels, Tolerances
from perphd.admission.detector.cusum import Baseline
from perphd.admission.detector.gathering import NOTHING_GATHERED, Awaiting, Gathered
from perphd.admission.detector.scatter import Scatter
from perphd.admission.detector.significance import ASSUMED_DELAY, ASSUMED_WORK, UNKNOWN_NOISE_SD, Weighed
from perphd.admission.settings import PolicySettings
from perphd.domain.decision import AWAITED, TROUBLED, Cause, Evidence, Health, Verdict
from perphd.domain.policy import Band, ResPerfModel
from perphd.domain.quick import changer, replace
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.sample import SHORT_SHARE, Quality, Sample
from perphd.domain.signals import CPU_TIME_ONLY, Performance, contended_ratio, work_unit
from perphd.domain.workload import Objective

MILD_FACTOR = 3
"""Factor on the required duration of a shortfall that is below the effect size."""
LIKELY_SIGMA = 1.5
"""Sum of consecutive samples' shortfalls, in sigma, from which a shortfall is likely."""
LASTING_S: Final = 60.0
"""Seconds of uninterrupted samples below a stated objective that are a degradation, however much the LRA scatters.

An LRA at its objective is below it half the time. With a correlation of 0.8 between samples, a minute holds about seven
independent ones; at one standard deviation above the objective all of them are below once in five months.
"""
ALMOST_WHOLE = 0.9
"""Minimum share of a period that counts as a whole period, because ticks jitter."""
UNEXPLAINED_RATIO = 1.2
"""Ratio of work without waiting to actual work above which the load has fallen."""


@dataclass(frozen=True, slots=True)
class Target:
    """The LRA's present target.

    ``work``, ``delay``: target values. ``work_band``, ``delay_band``: references, None if unknown. ``tolerances_pct``:
    accepted loss of work and growth of delay. ``is_stated``: for work and delay, True if the operator stated the
    target, False if it follows from the reference.
    """

    work: Reading
    delay: Reading
    work_band: Band | None = None
    delay_band: Band | None = None
    tolerances_pct: Tolerances = (10.0, 50.0)
    is_stated: tuple[bool, bool] = (False, False)

    @property
    def known(self) -> bool:
        """True if work or delay can be judged."""
        return available(self.work) or available(self.delay)

    @property
    def has_reference(self) -> bool:
        """True if the LRA's undisturbed performance is known."""
        return self.work_band is not None or self.delay_band is not None

    @property
    def is_provisional(self) -> bool:
        """True if the reference was learned while undeclared work or the hypervisor filled the host."""
        return any(band is not None and band.provisional for band in (self.work_band, self.delay_band))

    @property
    def has_provisional_value(self) -> bool:
        """True if a target value follows from a provisional reference. Stated values do not."""
        values, bands = (self.work, self.delay), (self.work_band, self.delay_band)
        each = zip(values, bands, self.is_stated, strict=True)
        return any(b is not None and b.provisional and available(v) and not said for v, b, said in each)

    @property
    def reach(self) -> float:
        """Score of the LRA's undisturbed performance; infinite if unknown."""
        score = math.inf
        if available(self.work) and self.work > 0 and self.work_band is not None:
            score = self.work_band.value / self.work
        if available(self.delay) and self.delay_band is not None:
            score = min(score, self.delay / max(self.delay_band.value, 1e-9))
        return score


@dataclass(frozen=True, slots=True)
class DetectorState:
    """The detector's state between ticks.

    ``below``, ``severe``, ``above``: numbers of consecutive samples below target, below it by the effect size, on
    target. ``below_s``: time that ``below`` samples cover. ``short_sigma``: sum of the shortfalls below target, in
    units of one sample's scatter. ``extra``, ``cause``: extra time of these samples, and the cause inferred from it.
    ``work``, ``delay``: noise of both channels' shortfalls, and evidence of a shift. ``delays``: scatter of latency
    alone, scaled to samples of one second. ``margins``: distances of the references from the target, in log units.
    ``alert_share``: share of time shortly after batch arrives. ``gathered``: samples with too few events to judge yet.
    ``channels``: cycles, misses and waiting of an LRA without an indicator, and its phases.
    """

    health: Health = Health.UNKNOWN
    since_s: float = 0.0
    below: int = 0
    severe: int = 0
    above: int = 0
    short_sigma: float = 0.0
    scatter: Scatter = Scatter()
    delays: Scatter = Scatter()
    extra: Ledger = Ledger()
    cause: Cause = Cause.NONE
    work: Baseline = Baseline()
    delay: Baseline = Baseline()
    margins: tuple[float, float] = (ASSUMED_WORK, ASSUMED_DELAY)
    alert_share: float = significance.ALERT_SHARE
    gathered: Gathered = NOTHING_GATHERED
    channels: Channels = NOTHING_KNOWN
    below_s: float = 0.0


_with_channels = changer(DetectorState, "channels")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The detector's result for one sample.

    ``score``: the worse of work/target and target/delay; >= 1 meets the target. ``noise_sd``: scatter of one score, in
    log units, from the latest samples (else from the reference). ``confirmed``: evidence since perphd's last
    change suffices for degradation now; a verdict of DEGRADED may be older. ``hierarchy``: LLC, MBW or SMT if
    one of them makes instructions take clearly longer; else NONE. ``likely``: the latest samples make a shortfall
    likely, at a higher rate of false alarms; this suffices for an LRA with just enough protection. ``blatant``:
    this sample alone is too far below target for its scatter. ``clear``: this sample suffices to undo a
    reduction that was just made. ``slower``: cycles per instruction relative to the usual, for ``hierarchy``.
    """

    verdict: Verdict
    state: DetectorState
    score: Reading
    noise_sd: float = UNKNOWN_NOISE_SD
    confirmed: bool = False
    hierarchy: Cause = Cause.NONE
    blatant: bool = False
    slower: float = 1.0
    likely: bool = False
    clear: bool = False


def target_of(
    objective: Objective, model: ResPerfModel, perf: Performance, settings: PolicySettings
) -> Target:
    """The target under the present load: absolute objectives first, else tolerance below the reference."""
    work: Reading = Unavailable("the undisturbed reference is not known yet")
    delay: Reading = Unavailable("the undisturbed reference is not known yet")
    # With an absolute target, references only serve predictions, so half as many samples suffice.
    by_work = objective.min_work_rate_per_s is not None and perf.work_source == "sli"
    by_delay = objective.max_latency_ms is not None and perf.delay_source.startswith("latency")
    firm = settings.min_reference_samples
    enough = firm / (2.0 if by_work or by_delay else 1.0)
    work_band = _known(model.reference(f"work:{perf.work_source}", perf.load), enough)
    delay_band = _known(model.reference(f"delay:{perf.delay_source}", perf.load), enough)
    firm_work, firm_delay = _known(work_band, firm), _known(delay_band, firm)
    if by_work and objective.min_work_rate_per_s is not None:
        work = objective.min_work_rate_per_s
    elif firm_work is not None:
        work = firm_work.level(-1.0) * (1.0 - objective.tolerance_pct / 100.0)
    if by_delay and objective.max_latency_ms is not None:
        delay = objective.max_latency_ms
    elif firm_work is not None and not perf.delay_source.startswith("latency") and model.is_closed:
        # In a closed loop work rate x latency is constant, so the work rate suffices.
        delay = Unavailable("closed loop: the work rate also determines the delay")
    elif firm_delay is not None:
        delay = firm_delay.level(1.0) * (1.0 + objective.delay_tolerance_pct / 100.0)
    tolerances_pct = objective.tolerance_pct, objective.delay_tolerance_pct
    return Target(work, delay, work_band, delay_band, tolerances_pct, (by_work, by_delay))


def judge(
    state: DetectorState,
    sample: Sample,
    perf: Performance,
    target: Target,
    model: ResPerfModel,
    settings: PolicySettings,
    alert: bool = False,
    protected: bool = False,
    around: Surroundings = UNKNOWN_SURROUNDINGS,
    period_s: float | None = None,
    rising: bool = False,
    beside_batch: bool = False,
) -> Judgement:
    """Judge one sample. Pure. The result is UNKNOWN, with the reason as evidence, if the sample cannot be judged.

    ``alert``: batch has just arrived. In that case less evidence suffices, because a cause is at hand and a
    wrong action is soon reverted; an LRA without a reference needs no corroborating signal either.
    ``protected``: a protection is in force.
    ``period_s``: time between samples; a shorter sample scatters more and counts only if it is blatant. ``rising``: the
    load is clearly rising, which explains a low sample; the rise is likely to continue. ``beside_batch``:
    batch is active now; an LRA without a reference that misses its objective is then attributed to batch.
    """
    now_s = sample.at_s
    evidence: list[Evidence] = []
    seen = slowdown.look(
        state.channels, sample, perf, model, around, settings, target.tolerances_pct, evidence
    )
    state, counted, slow = _with_channels(state, seen.channels), seen.counted, seen.slow
    if _is_unfit(sample, perf) or not target.known or not available(perf.work):
        reason = _why_unknown(sample, perf, target)
        # A gap is likely exactly when the LRA suffers, so keep the evidence. A new or missing cgroup starts over.
        anew = sample.has(Quality.GONE, Quality.RESTARTED)
        gap = sample.has(Quality.SLI_MISSING, Quality.LATE) and not anew
        return _unknown(state if gap else rearm(state), now_s, reason, keep_health=gap)

    witnesses, cause = _witnesses(sample, perf, target, model, settings, counted, evidence)
    # Without a reference from a time without batch, suspect batch, and do so at once if it has just arrived.
    suspected = beside_batch and not target.has_reference
    accused = alert and not target.has_reference
    stalled = "memory_some_pct" in witnesses or "io_some_pct" in witnesses
    in_flight = model.reference("in_flight", perf.load)
    in_flight_ratio = perf.in_flight_ratio(in_flight.value if in_flight is not None else None)
    work_score = _work_score(
        perf, target, in_flight_ratio, model.is_closed, stalled, evidence, slow is not None
    )
    delay_score = _delay_score(perf, target, evidence)
    score = min(work_score, delay_score, seen.score)
    below = score < 1.0 and (bool(witnesses) or accused or suspected or seen.score < 1.0)
    extra = state.extra.blend(causes.ledger(sample, perf, model)) if below else Ledger()
    if below:
        cause = origin.found_cause(extra, counted[0], cause, sample, perf, model, around, settings, evidence)
        if extra.is_known and cause in (Cause.REMOTE, Cause.UNKNOWN) and counted[0] is Cause.NONE:
            shared = causes.unacquitted(sample, perf, model, around, settings, evidence)
            if shared is not Cause.NONE:
                cause, counted = shared, (shared, max(_delay_ratio(perf, target) or 1.0, 1.0) - 1.0)
    else:
        cause = state.cause  # the degradation is not over yet
    part = min(1.0, sample.interval_s / period_s) if period_s and sample.interval_s > 0 else 1.0
    part = part if part < ALMOST_WHOLE else 1.0
    counts = part >= SHORT_SHARE
    prior_sd = significance.noise_of(target.work_band if work_score <= delay_score else target.delay_band)
    own_sd = noise_sd = (state.scatter.sd or prior_sd) / math.sqrt(part)
    if protected:  # unprotected LRAs need alarms more, and these cost batch less
        noise_sd = scatter.reached(own_sd, state.delays, work_score, delay_score, sample.interval_s)
    blatant = below and score < scatter.blatant_below(noise_sd)
    clear = below and score < scatter.clear_below(own_sd, noise_sd)
    both = significance.channels(
        perf, sample, target.work, target.delay, target.work_band, target.delay_band, work_score
    )
    share = significance.alert_share(state.alert_share, sample.interval_s, alert=alert)
    weighed = significance.weigh(
        (state.work, state.delay),
        both,
        settings.false_alarms_per_day,
        period_s or sample.interval_s or 1.0,
        spend=significance.times(share, alert=alert),
        large_k=settings.cusum_k,
        ticks=1 if rising else settings.confirm_ticks,
        interval_s=sample.interval_s,
        part=part,
        learns=not sample.has(Quality.SETTLING),
    )
    evidence += _shifts(weighed, settings)
    severe = below and score < 1.0 - settings.min_effect_pct / 100.0
    new = replace(
        state,
        extra=extra,
        cause=cause,
        work=weighed.work,
        delay=weighed.delay,
        margins=(both[0].margin, both[1].margin),
        alert_share=share,
    )
    if counts or blatant:
        new = replace(
            new,
            below=state.below + 1 if below else 0,
            below_s=state.below_s + sample.interval_s if below else 0.0,
            short_sigma=_short_sigma(state, score, noise_sd) if below else 0.0,
            scatter=scatter.step(state.scatter, math.log(max(score, 1e-3))) if counts else state.scatter,
            delays=scatter.of_latency(state.delays, perf, sample.interval_s) if counts else state.delays,
            severe=state.severe + 1 if severe else 0,
            above=0 if below else state.above + 1,
        )
    if not below and new.above >= settings.confirm_ticks and weighed.moved:
        # The shift is over: the target is met again.
        new = replace(new, work=cusum.cleared(new.work), delay=cusum.cleared(new.delay))
    lasts = severe or new.below >= MILD_FACTOR * settings.confirm_ticks
    proven = accused and (new.severe > 0 or new.below >= settings.confirm_ticks)
    proven = proven or (lasts and bool(weighed.moved))
    proven = proven or seen.score < 1.0  # the channels have already tested significance
    stated = (target.is_stated[0] and work_score < 1.0) or (target.is_stated[1] and delay_score < 1.0)
    proven = proven or (stated and new.below_s >= LASTING_S)
    confirmed = below and (proven or (blatant and weighed.is_single and (alert or protected)))
    health = _health(state.health, new, below, confirmed, settings)
    since_s = state.since_s if health is state.health else now_s
    new = replace(new, health=health, since_s=since_s)
    shown = cause if health in TROUBLED else Cause.NONE
    # Beside restricted batch, samples shorter than a period scatter too much to act on one of them.
    is_seen = alert or rising or not (protected and period_s) or new.below_s >= ALMOST_WHOLE * period_s
    likely = _is_likely(new, alert, rising, settings) or (blatant and (alert or protected))
    return Judgement(
        Verdict(health, shown, since_s, tuple(evidence)),
        new,
        score,
        noise_sd,
        confirmed,
        hierarchy=counted[0],
        blatant=blatant,
        clear=blatant or clear,
        slower=1.0 + counted[1],
        likely=below and is_seen and likely,
    )


def standing(state: DetectorState, awaiting: Awaiting) -> Verdict:
    """The last verdict while the next judgement waits, with the reason for the wait."""
    need: Reading = awaiting.need if awaiting.need else Unavailable("")
    seen: Reading = awaiting.have if awaiting.need else Unavailable(awaiting.text)
    waits = Evidence(AWAITED, seen, need, "", awaiting.text)
    shown = state.cause if state.health in TROUBLED else Cause.NONE
    return Verdict(state.health, shown, state.since_s, (waits,))


def rearm(state: DetectorState) -> DetectorState:
    """Forget evidence gathered before a change by perphd (lock-out), but keep the health."""
    work, delay = cusum.cleared(state.work), cusum.cleared(state.delay)
    return replace(
        state,
        below=0,
        below_s=0.0,
        severe=0,
        above=0,
        short_sigma=0.0,
        scatter=scatter.broken(state.scatter),
        delays=scatter.broken(state.delays),
        work=work,
        delay=delay,
        gathered=NOTHING_GATHERED,
    )


_HARMLESS: Final = (Quality.SETTLING, Quality.MULTIPLEXED, Quality.ROTATED)
"""Quality flags that leave the LRA's signals usable."""


def _is_unfit(sample: Sample, perf: Performance) -> bool:
    flags = [q for q in sample.quality if q not in _HARMLESS]
    # Multiplexing distorts MIPS, but not the application's own figures.
    return bool(flags) or (sample.has(Quality.MULTIPLEXED) and perf.work_source == "mips")


def _known(band: Band | None, enough: float) -> Band | None:
    return band if band is not None and band.support >= enough else None


def _shifts(weighed: Weighed, settings: PolicySettings) -> list[Evidence]:
    """Evidence of shifted channels, with their thresholds."""
    rate = settings.false_alarms_per_day
    text = f"below its target by more than chance (accepted: {rate:g} false alarms a day)"
    bases = {"work": weighed.work, "delay": weighed.delay}
    return [
        Evidence(f"shift of {name}", bases[name].ratio * h, bar * h, "sigma", text)
        for name, bar, h in zip(weighed.moved, weighed.bars, weighed.thresholds, strict=True)
    ]


def _short_sigma(state: DetectorState, score: float, noise_sd: float) -> float:
    return state.short_sigma + min(-math.log(score) / noise_sd, cusum.CLIP_SIGMA)


def _is_likely(state: DetectorState, alert: bool, rising: bool, settings: PolicySettings) -> bool:
    ticks = 1 if rising else settings.confirm_ticks
    lasting = state.severe >= ticks or state.below >= MILD_FACTOR * settings.confirm_ticks
    return lasting and (alert or state.short_sigma >= LIKELY_SIGMA * math.sqrt(max(state.below, 1)))


def _health(
    before: Health, state: DetectorState, below: bool, confirmed: bool, settings: PolicySettings
) -> Health:
    if confirmed:
        return Health.DEGRADED
    if before is Health.DEGRADED and state.above < settings.confirm_ticks:
        return Health.DEGRADED
    return Health.SUSPECT if below else Health.HEALTHY


def _work_score(
    perf: Performance,
    target: Target,
    in_flight_ratio: float | None,
    closed: bool,
    stalled: bool,
    evidence: list[Evidence],
    slower: bool = False,
) -> float:
    """Work / target; a drop in work counts only to the extent that waiting explains it.

    If the LRA stalls on memory or disks (``stalled``), all of it counts.
    """
    if not available(perf.work) or not available(target.work) or target.work <= 0:
        return math.inf
    score = max(perf.work / target.work, 1e-6)
    text = f"{abs(score - 1):.0%} {'above' if score >= 1 else 'below'} the target"
    if score < 1.0 and not stalled and target.work_band is not None:
        raw = max(perf.work / target.work_band.value, 1e-6)
        counted = contended_ratio(raw, _delay_ratio(perf, target), in_flight_ratio, closed)
        score *= counted / raw
        if score >= 1.0 or counted > UNEXPLAINED_RATIO * raw:
            # The demand has changed, so only delay can be judged at this load.
            score = max(score, 1.0)
            text = "less work than the target, but not because of waiting: "
            text += "its instructions take longer" if slower else "the load fell"
        elif counted > raw:
            text += f"; waiting explains a drop to {counted:.0%} of the undisturbed rate"
    if perf.work_source == "cpu":
        text += f"; {CPU_TIME_ONLY}"
    unit = work_unit(perf.work_source)
    evidence.append(Evidence(f"work ({perf.work_source})", perf.work, target.work, unit, text))
    return score


def _delay_ratio(perf: Performance, target: Target) -> float | None:
    if target.delay_band is None or not available(perf.delay):
        return None
    return perf.delay / max(target.delay_band.value, 1e-9)


def _delay_score(perf: Performance, target: Target, evidence: list[Evidence]) -> float:
    if not available(perf.delay) or not available(target.delay) or target.delay <= 0:
        return math.inf
    score = target.delay / max(perf.delay, 1e-9)
    text = f"{perf.delay / target.delay:.2f} x the accepted delay"
    evidence.append(Evidence(f"delay ({perf.delay_source})", perf.delay, target.delay, "", text))
    return score


def _witnesses(
    sample: Sample,
    perf: Performance,
    target: Target,
    model: ResPerfModel,
    settings: PolicySettings,
    counted: tuple[Cause, float],
    evidence: list[Evidence],
) -> tuple[tuple[str, ...], Cause]:
    """Corroborating signals of waiting, and the resource that threads wait for most."""
    found: list[str] = []
    weight: dict[Cause, float] = {}
    growth = _delay_ratio(perf, target)
    if growth is not None and growth >= settings.delay_witness_ratio:
        found.append("delay")
        if not perf.delay_source.startswith("latency"):
            weight[Cause.CPU] = growth - 1.0
    pressures = (("cpu_some_pct", Cause.CPU), ("memory_some_pct", Cause.MEMORY), ("io_some_pct", Cause.IO))
    for name, cause in pressures:
        seen = sample.reading(name)
        if not available(seen):
            continue
        band = model.reference(name, perf.load)
        usual = band.value - 1.0 if band is not None else 0.0
        excess = seen - usual
        if excess >= settings.witness_min_pct:
            found.append(name)
            weight[cause] = weight.get(cause, 0.0) + excess / 100.0
            text = f"{excess:.0f} points above its usual {usual:.0f} %"
            evidence.append(Evidence(name, seen, usual, "%", text))
    hierarchy, excess = counted
    if hierarchy is not Cause.NONE:
        found.append("cpi")
        weight[hierarchy] = excess
    cause = max(weight, key=lambda c: weight[c]) if weight else Cause.UNKNOWN
    return tuple(found), cause


def _why_unknown(sample: Sample, perf: Performance, target: Target) -> str:
    if flags := [q.value for q in sample.quality if q is not Quality.ROTATED]:
        reason = "the sample cannot be judged: " + ", ".join(flags)
        if sample.has(Quality.SLI_MISSING) and isinstance(sample.work_rate_per_s, Unavailable):
            reason += f" ({sample.work_rate_per_s.reason})"
        return reason
    if isinstance(perf.work, Unavailable):
        return f"no work signal: {perf.work.reason}"
    if isinstance(target.work, Unavailable):
        return target.work.reason
    return "no target to judge by"


def _unknown(state: DetectorState, now_s: float, reason: str, keep_health: bool) -> Judgement:
    since_s = state.since_s if state.health is Health.UNKNOWN else now_s
    new = state if keep_health else replace(state, health=Health.UNKNOWN, since_s=since_s)
    unknown = Unavailable(reason)
    seen = Evidence("none", unknown, unknown, "", reason)
    return Judgement(Verdict(Health.UNKNOWN, Cause.NONE, since_s, (seen,)), new, unknown)
