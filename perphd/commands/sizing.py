"""perphctl size, forecast and headroom: forecasts from the store's samples, computed in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from perphd.commands.base import Out, command
from perphd.commands.number import Number
from perphd.commands.pause import Duration
from perphd.control.client import NotPermitted, Refused
from perphd.domain.errors import PerphError
from perphd.domain.reading import Reading, Unavailable
from perphd.domain.units import parse_size_bytes

if TYPE_CHECKING:
    from perphd.commands.reservations import ReservedPlace
    from perphd.forecast.headroom import HostOutlook
    from perphd.forecast.replay import Outlook
    from perphd.monitor.windows import SeriesWindows, StoreWindows
    from perphd.sizing.recommendation import Recommendation
    from perphd.sizing.shaper import Resource

    _Parameter = click.ParamType[int]
else:
    _Parameter = click.ParamType  # no generic class before click 8.2

F = TypeVar("F", bound=Callable[..., Any])
DAY_S: Final = 86_400.0
STALE_AFTER_S: Final = 300.0
"""Age in seconds from which samples no longer describe the present."""
_SERIES_OF: Final = {"cpu": "cpu_usage_cores", "memory": "memory_working_set_bytes"}


@dataclass(frozen=True, slots=True)
class WorkloadSize:
    """One workload's recommendations."""

    workload: str
    resources: tuple[Recommendation, ...]


@dataclass(frozen=True, slots=True)
class SeriesOutlook:
    """One series and its forecast."""

    series: str
    outlook: Outlook


@dataclass(frozen=True, slots=True)
class WorkloadForecast:
    """One workload's forecasts."""

    workload: str
    series: tuple[SeriesOutlook, ...]


@dataclass(frozen=True, slots=True)
class HostHeadroom:
    """One resource of the host; ``headroom``: capacity less the peak.

    ``others_now``: use that is not in the store.
    """

    resource: Resource
    workloads: int
    capacity: Reading
    outlook: HostOutlook
    headroom: Reading
    others_now: Reading


class Bytes(_Parameter):
    """A size of memory: 512M, 64G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The size in bytes."""
        try:
            found = parse_size_bytes(str(value))
        except PerphError as exc:
            self.fail(str(exc), param, ctx)
        if not found:
            self.fail("must be more than 0", param, ctx)
        return found


_store = click.option("--store", metavar="FILE", help="Read this file; reservations are then unknown.")


def _last(default: str) -> Callable[[F], F]:
    return click.option(
        "--last", "last_s", type=Duration(), default=default, show_default=True, metavar="TIME",
        help="Length of the history to use: 6h, 2d, 7d.",
    )  # fmt: skip


def add_sizing_commands(cli: click.Group) -> None:
    """Add the commands to perphctl."""
    command(cli)(size)
    command(cli)(forecast)
    command(cli)(headroom)


@click.argument("workload", metavar="[WORKLOAD]", required=False)
@click.option(
    "--format", "form", type=click.Choice(["systemd", "kubernetes", "yarn"]),
    help="Print the recommendation as a systemd drop-in, a resource patch or YARN values.",
)  # fmt: skip
@_last("7d")
@_store
def size(out: Out, workload: str | None, form: str | None, last_s: float, store: str | None) -> None:
    """Show what workloads use and should reserve.

    Lists for CPU and memory: reserved, used, forecast for the next minute, recommended, and what could be reclaimed
    now. Reads the store; applies nothing, even with --format.
    """
    from perphd.sizing.formats import PrintedAmounts, printed

    if form and out.as_json:
        raise click.UsageError("--format prints text and cannot be combined with --json")
    place, found = read_store(out, workload, last_s, store)
    sizes = sizes_of(place, found)
    if form:
        amounts = [
            PrintedAmounts(
                item.workload,
                place.cgroups.get(item.workload, ""),
                item.resources[0].recommended,
                item.resources[1].recommended,
                tuple(
                    f"{each.resource.value}: confidence {each.confidence}"
                    for each in item.resources
                    if not isinstance(each.recommended, Unavailable)
                ),
            )
            for item in sizes
        ]
        if all(isinstance(each.recommended, Unavailable) for item in sizes for each in item.resources):
            why = sizes[0].resources[0].reason if sizes else "no workload was sampled in the last hour"
            raise PerphError(f"nothing can be recommended: {why}")
        click.echo(printed(form, amounts))
        return
    _show(out, place, found, {"workloads": sizes}, lambda: size_parts_of(sizes, found))


@click.argument("workload", metavar="[WORKLOAD]", required=False)
@click.option(
    "--horizon", "horizon_s", type=Duration(), default="60s", show_default=True, metavar="TIME",
    help="Time to forecast; only one window, 60s, is supported.",
)  # fmt: skip
@_last("1d")
@_store
def forecast(out: Out, workload: str | None, horizon_s: float, last_s: float, store: str | None) -> None:
    """Forecast each workload's use in the next minute.

    Covers CPU, working set, cache occupancy, memory bandwidth and load, where the store has them. For one WORKLOAD,
    shows all models beside the one in use.
    """
    from perphd.forecast.following import latest_stretch
    from perphd.forecast.replay import Outlook, outlook
    from perphd.monitor.windows import SERIES, WINDOW_S

    if horizon_s != WINDOW_S:
        raise click.UsageError(
            f"--horizon {horizon_s:g}s: the forecasters look one window ahead (allowed: {WINDOW_S:g}s); "
            "perphctl headroom predicts the host's peak of the next hour"
        )
    place, found = read_store(out, workload, last_s, store, SERIES)
    forecasts = []
    for each in found.workloads:
        series = []
        for name in SERIES:
            windows = each.series[name]
            if windows.missing:
                series.append(SeriesOutlook(name, Outlook(0, Unavailable(windows.missing))))
                continue
            most = place.most.get(name, math.inf)
            stretch = latest_stretch(windows.numbers, windows.values)
            series.append(SeriesOutlook(name, outlook(stretch, most)))
        forecasts.append(WorkloadForecast(each.workload, tuple(series)))

    def parts() -> Any:
        from perphd.commands.render_sizing import forecast_parts

        return forecast_parts(forecasts, found.ended, stale(found), models=workload is not None)

    _show(out, place, found, {"horizon_s": WINDOW_S, "workloads": forecasts}, parts)


@click.option("--cores", type=Number(0, min_open=True), help="CPUs of the host [default: as read from it].")
@click.option(
    "--memory",
    "memory_bytes",
    type=Bytes(),
    metavar="SIZE",
    help="Memory of the host, for example 64G [default: as read from it].",
)
@_last("2d")
@_store
def headroom(
    out: Out, cores: float | None, memory_bytes: int | None, last_s: float, store: str | None
) -> None:
    """Predict the host's peak use and its headroom.

    Shows each predictor's peak for the next hour and its errors in a back-test on the store. Selects the tightest
    predictor whose chance of an under-estimate by more than 10 % is at most 1 %.
    """
    from perphd.sizing.shaper import Resource

    place, found = read_store(out, None, last_s, store)
    given: dict[Resource, float | None] = {Resource.CPU: cores, Resource.MEMORY: memory_bytes}
    hosts = [headroom_of(place, found, resource, given[resource]) for resource in Resource]

    def parts() -> Any:
        from perphd.commands.render_sizing import headroom_parts

        return headroom_parts(hosts, stale(found))

    _show(out, place, found, {"resources": hosts}, parts)


def read_store(
    out: Out, workload: str | None, last_s: float, store: str | None,
    series: tuple[str, ...] = tuple(_SERIES_OF.values()),
) -> tuple[ReservedPlace, StoreWindows]:  # fmt: skip
    """Reservations, and the windows of one workload or of all. ``store``: a file to read instead of the daemon's store.

    Raises:
        UsageError: ``last_s`` is less than one window.
        PerphError: the store or the daemon cannot be read, or there is no such workload.
    """
    from perphd.commands.reservations import find
    from perphd.monitor.windows import WINDOW_S, read_windows

    if last_s < WINDOW_S:
        raise click.UsageError(f"--last {last_s:g}s is less than one window (allowed: {WINDOW_S:g}s or more)")
    place = find(out, store)
    try:
        found = read_windows(place.store, last_s, workload, series)
    except PermissionError as exc:
        raise NotPermitted(
            f"{place.store}: this user may not read the store; run as root or as the daemon's user"
        ) from exc
    if workload is not None and not found.workloads:
        known = ", ".join(found.names)
        text = f"{workload}: the store has no samples of this workload"
        raise Refused(404, {"code": "not-found", "message": text, "allowed": known})
    return place, found


def sizes_of(place: ReservedPlace, found: StoreWindows) -> list[WorkloadSize]:
    """Recommendations for all workloads with these windows."""
    return [
        WorkloadSize(
            each.workload,
            tuple(_sized(place, each.workload, key, each.series[name]) for key, name in _SERIES_OF.items()),
        )
        for each in found.workloads
    ]


def _sized(place: ReservedPlace, workload: str, key: str, windows: SeriesWindows) -> Recommendation:
    from perphd.commands.histories import history
    from perphd.sizing.rows import recommendation
    from perphd.sizing.shaper import Resource

    return recommendation(history(place, workload, Resource(key), windows))


def headroom_of(
    place: ReservedPlace, found: StoreWindows, resource: Resource, given: float | None
) -> HostHeadroom:
    """The host's peak of one resource by every predictor. ``given``: the host's capacity; None: as read from the
    host.
    """
    import numpy as np

    from perphd.forecast.headroom import TenantHistory, host_outlook
    from perphd.sizing.shaper import Resource as Kind

    name = _SERIES_OF[resource.value]
    measured = [each for each in found.workloads if each.series[name].numbers]
    numbers = sorted({number for each in measured for number in each.series[name].numbers})
    places = {number: i for i, number in enumerate(numbers)}
    tenants = []
    for each in measured:
        usage = np.full(len(numbers), np.nan)
        usage[[places[number] for number in each.series[name].numbers]] = each.series[name].values
        tenants.append(TenantHistory(each.workload, place.reservation(each.workload, resource).amount, usage))
    outlook = host_outlook(tenants, pairs=resource is Kind.CPU)
    capacity: Reading = place.capacity[resource] if given is None else float(given)
    left: Reading
    if isinstance(outlook.peak, Unavailable):
        left = outlook.peak
    elif isinstance(capacity, Unavailable):
        left = Unavailable(f"the host's capacity is not known ({capacity.reason}); give --cores and --memory")
    else:
        left = capacity - outlook.peak
    others = place.others.get(resource, Unavailable("unknown: no daemon answers"))
    return HostHeadroom(resource, len(tenants), capacity, outlook, left, others)


def size_parts_of(sizes: list[WorkloadSize], found: StoreWindows) -> Any:
    """Recommendations in words and tables."""
    from perphd.commands.render_sizing import size_parts

    return size_parts(sizes, found.ended, stale(found))


def _show(out: Out, place: ReservedPlace, found: StoreWindows, data: dict[str, Any], parts: Any) -> None:
    from perphd.domain.wire import encode

    head = {"store": place.store, "window_s": 60.0, "newest_unix_s": found.newest_s, "ended": found.ended}
    out.show(encode(head | data), parts)


def stale(found: StoreWindows) -> str:
    """A sentence if the newest sample is old, else empty."""
    age_s = time.time() - found.newest_s
    if age_s <= STALE_AFTER_S:
        return ""
    age = f"{age_s / DAY_S:.1f} days" if age_s > DAY_S else f"{age_s / 60:.0f} minutes"
    return f"The newest sample is {age} old: 'now' and 'next' refer to the time of that sample"
