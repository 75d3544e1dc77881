"""Measure the bandwidth that each throttle level delivers. This saturates memory for seconds: run it only on
request.

For each domain and each number of cores, streams run on idle cores of the domain in a temporary control
group. The group's cap is lowered level by level from unthrottled. At each level, after a settle time, the
kernel's monitoring counts the bytes of an interval. Where it is unavailable, the streams count their own
bytes. The group has the fewest cache ways allowed, so that the streams run from memory and leave other
programs' ways alone. At the end the unthrottled level is measured again. If the result differs, another
program used the memory channels, and the measurement is discarded. The streams always end, and the group is
always removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rdt.cbm import Cbm
from rdt.curves import Curve, Point
from rdt.errors import Broken, Busy, Invalid, Unsupported
from rdt.groups import Groups, Made
from rdt.info import BandwidthInfo, BandwidthUnit, Info
from rdt.monitor import Monitor
from rdt.names import GroupRef
from rdt.probe import Prober, Stream
from rdt.reading import Unavailable, Why
from rdt.schemata import Schemata

PREFIX = "rdtcal"
"""Prefix of the group that calibration makes."""
SETTLE_S, MEASURE_S = 0.2, 0.3
LIMIT_S = 120.0
DISTURBED = 0.2
"""Relative difference between the first and last unthrottled measurement that counts as a disturbance."""
_NOT_COUNTED = Unavailable(Why.UNSUPPORTED, "this machine does not count memory bandwidth")
_START_S = 2.0
"""Seconds that starting the streams takes on a slow machine."""
_NEGLIGIBLE = 0.1
"""Share of the unthrottled bandwidth. Once a level of an open range delivers less, no lower level is measured."""


@dataclass(frozen=True, slots=True)
class Step:
    """One curve to measure: streams on these CPUs of a domain, one CPU per core."""

    domain: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All measurements to make, for display before they start."""

    resource: str
    levels: tuple[int, ...]
    """In descending order."""
    steps: tuple[Step, ...]
    settle_s: float = SETTLE_S
    measure_s: float = MEASURE_S

    @property
    def step_s(self) -> float:
        """Maximum duration of one curve: every level, then the unthrottled level again."""
        return _START_S + (len(self.levels) + 1) * (self.settle_s + self.measure_s)

    @property
    def seconds(self) -> float:
        """Maximum duration of the whole calibration."""
        return len(self.steps) * self.step_s


def levels_to_measure(bandwidth: BandwidthInfo) -> tuple[int, ...]:
    """Levels to measure, descending from unthrottled.

    Every step of a percent scale, or two levels per octave of an open range. Raises Unsupported for
    ``mba_MBps``, because there the kernel itself controls the bandwidth.
    """
    if bandwidth.unit is BandwidthUnit.MBPS:
        raise Unsupported(
            bandwidth.name,
            doing="calibrating",
            reason="mounted with mba_MBps, where the kernel itself controls the bandwidth",
        )
    if bandwidth.is_percent:
        return tuple(reversed(bandwidth.steps()))
    top = bandwidth.unthrottled
    octaves = (
        value for shift in range(top.bit_length()) for value in (top >> shift, (top >> shift) * 3 // 4)
    )
    lowest = max(bandwidth.minimum, 1)
    return tuple(sorted({bandwidth.rounded(value) for value in octaves if value >= lowest}, reverse=True))


def plan(
    info: Info,
    idle: Mapping[int, Sequence[tuple[int, ...]]],
    *,
    resource: str = "MB",
    core_counts: Sequence[int] | None = None,
    domains: Sequence[int] | None = None,
    settle_s: float = SETTLE_S,
    measure_s: float = MEASURE_S,
    limit_s: float = LIMIT_S,
) -> Plan:
    """Plan the measurements, given the idle cores of each domain.

    ``core_counts``: by default one core, half of the idle cores, and all of them.

    Raises:
        Unsupported: the resource does not exist, or cannot be calibrated.
        Busy: a domain has fewer idle cores than asked for.
        Invalid: the calibration would take longer than ``limit_s``, or a requested domain does not exist.
    """
    bandwidth = info.bandwidths.get(resource)
    if bandwidth is None:
        raise Unsupported(resource, doing="calibrating", reason="this machine or mount does not limit it")
    wanted = bandwidth.domains if domains is None else tuple(domains)
    steps = []
    for domain in wanted:
        if domain not in bandwidth.domains:
            reason = f"there is no domain {domain}; there are {', '.join(map(str, bandwidth.domains))}"
            raise Invalid(resource, doing="calibrating", reason=reason)
        cores = idle.get(domain, ())
        counts = sorted({1, (len(cores) + 1) // 2, len(cores)} if core_counts is None else set(core_counts))
        if not cores or counts[-1] > len(cores):
            need = max(counts[-1], 1)
            reason = f"{len(cores)} cores of domain {domain} are idle, {need} are needed"
            raise Busy(resource, doing="calibrating", reason=reason)
        if counts[0] < 1:
            raise Invalid(
                resource, doing="calibrating", reason=f"{counts[0]} cores are too few; at least 1 is needed"
            )
        steps += [Step(domain, tuple(core[0] for core in cores[:count])) for count in counts]
    made = Plan(resource, levels_to_measure(bandwidth), tuple(steps), settle_s, measure_s)
    if made.seconds > limit_s:
        reason = f"it may take {made.seconds:.0f} s (limit {limit_s:g} s); name fewer domains or core counts"
        raise Invalid(resource, doing="calibrating", reason=reason)
    return made


class Calibrator:
    """Carries out a plan.

    Args:
        groups: a ``Groups`` with the prefix ``PREFIX``.
        prober: starts streams (``rdt.probe.ProcessProber``; a model in tests).
        sleep: waits for a number of seconds.
        clock: monotonic time in seconds.
        report: called after each curve with a readable line.
    """

    def __init__(
        self,
        groups: Groups,
        prober: Prober,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._groups, self._prober = groups, prober
        self._sleep, self._clock, self._report = sleep, clock, report

    def run(self, plan: Plan) -> tuple[Curve, ...]:
        """Measure one curve per step.

        Raises Busy if the machine was not quiet or another calibration runs, Broken if streams ended early,
        and the errors of making and changing a group. The streams are always ended, and the group is always
        removed.
        """
        deadline_s = self._clock() + 2 * plan.seconds
        curves = []
        with ExitStack() as stack:
            made = self._groups.make("probe")
            if not made.created and self._groups.resctrl.tasks(made.group):
                raise Busy(
                    made.group.relative, doing="calibrating in", reason="another calibration is running"
                )
            stack.callback(self._groups.remove, made.group)
            for step in plan.steps:
                curve = self._measure(plan, step, made, deadline_s)
                curves.append(curve)
                self._report(
                    f"domain {curve.domain}, {curve.cores} cores: {curve.top.bytes_per_s / 1e9:.1f} GB/s unthrottled, "
                    f"levels that make a difference: {' '.join(str(each.level) for each in curve.useful())}"
                )
        return tuple(curves)

    def _measure(self, plan: Plan, step: Step, made: Made, deadline_s: float) -> Curve:
        group = made.group
        self._groups.ensure(group, self._few_ways())
        with (
            self._prober.stream(step.cpus, 2 * plan.step_s) as stream,
            Monitor(
                self._groups.resctrl.access, self._groups.resctrl.info, (group,), clock=self._clock
            ) as monitor,
        ):
            filled = self._groups.fill(group, stream.tids)
            if not filled.complete or filled.gone:
                raise Broken(
                    group.relative, doing="moving streams to", reason=f"streams are missing: {filled}"
                )
            both: dict[int, tuple[float, float | Unavailable]] = {}
            for level in plan.levels:
                if self._clock() > deadline_s:
                    raise Busy(
                        group.relative,
                        doing="calibrating in",
                        reason="the calibration has taken twice as long as planned",
                    )
                both[level] = self._at_level(plan, step.domain, group, level, stream, monitor)
                if self._negligible(both, level, plan):
                    break
            again, _ = self._at_level(plan, step.domain, group, plan.levels[0], stream, monitor)
        top = both[plan.levels[0]][0]
        if abs(again - top) > DISTURBED * max(again, top):
            raise Busy(
                f"domain {step.domain}", doing="calibrating",
                reason=f"unthrottled {top / 1e9:.1f} GB/s at first, {again / 1e9:.1f} GB/s at the end: "
                "another program uses the memory",
            )  # fmt: skip
        return _curve(plan.resource, step, both)

    def _at_level(
        self, plan: Plan, domain: int, group: GroupRef, level: int, stream: Stream, monitor: Monitor
    ) -> tuple[float, float | Unavailable]:
        """Bytes per second at a level, as counted by the streams and by the kernel."""
        self._groups.ensure(group, Schemata.of({plan.resource: {domain: level}}))
        self._sleep(plan.settle_s)
        monitor.read()
        began_s, began = self._clock(), stream.moved_bytes()
        self._sleep(plan.measure_s)
        reading = monitor.read()[group].domains.get(domain)
        moved, seconds = stream.moved_bytes() - began, self._clock() - began_s
        if seconds <= 0:
            raise Broken("clock", doing="reading the", reason="it does not advance")
        return moved / seconds, _NOT_COUNTED if reading is None else reading.total_bytes_per_s

    def _negligible(
        self, both: Mapping[int, tuple[float, float | Unavailable]], level: int, plan: Plan
    ) -> bool:
        bandwidth = self._groups.resctrl.info.bandwidths[plan.resource]
        return not bandwidth.is_percent and both[level][0] < _NEGLIGIBLE * both[plan.levels[0]][0]

    def _few_ways(self) -> Schemata:
        """The narrowest mask in every L3, at its highest ways; empty without cache allocation."""
        masks = {}
        for cache in self._groups.resctrl.info.cache(3):
            end = Cbm(cache.cbm_mask).last
            few = Cbm.span(end - max(cache.min_cbm_bits, 1) + 1, max(cache.min_cbm_bits, 1))
            masks[cache.name] = dict.fromkeys(cache.domains, few.bits)
        return Schemata.of(masks)


def _curve(resource: str, step: Step, both: Mapping[int, tuple[float, float | Unavailable]]) -> Curve:
    """A curve from the kernel's count if that is complete and plausible, else from the streams' own count."""
    counted = [
        Point(level, kernel) for level, (own, kernel) in sorted(both.items())
        if not isinstance(kernel, Unavailable) and kernel > own / 4
    ]  # fmt: skip
    if len(counted) == len(both):
        return Curve(resource, step.domain, len(step.cpus), "mbm", tuple(counted))
    own_points = tuple(Point(level, own) for level, (own, _) in sorted(both.items()))
    return Curve(resource, step.domain, len(step.cpus), "probe", own_points)
