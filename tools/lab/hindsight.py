"""perphd beside the best static setting known in hindsight, at equal batch work. Pure.

Problem: a static setting is one point (batch work, figure of the application), and no two schemes leave batch the same
work, so that figures alone do not compare.

Approach: all static settings of a repetition, and the application alone at batch work 0, span a frontier. Two
settings that take turns have batch work and rates in proportion to their time, so a point between two settings is
within reach of an operator who knows in advance which to mix and how long. The frontier at batch work b is the best
figure of any setting with at least b and of any mix of two with exactly b. A percentile of latency of such a mix is
nearer to the worse of both than the straight line says, so the frontier is then too good rather than too bad.

perphd is compared with the frontier at its own batch work within one repetition. Beyond the most batch work of any
static setting, that setting's figure counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tools.lab.analysis import paired, reference
from tools.lab.catalogue import load_of
from tools.lab.records import Run
from tools.lab.schemes import ALONE, NATIVE, SCHEMES, is_perphd
from tools.lab.stats import Spread, ratio, spread

WITHIN = 0.10
"""Share by which perphd's figure may be worse than the frontier's."""
STATIC = tuple(scheme.name for scheme in SCHEMES if scheme.with_batch and not scheme.daemon)


@dataclass(frozen=True, slots=True)
class Setting:
    """A static setting: its batch work per second, and the application's figure."""

    name: str
    batch: float
    figure: float


@dataclass(frozen=True, slots=True)
class Best:
    """The best that static settings do at some batch work. ``name``: the setting, or the two that mix."""

    name: str
    figure: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """perphd in one cell; ratios are perphd's figure divided by another's, within one repetition.

    ``figure``: "rate" (more is better) or "p95" (less is better). ``settings``: the static ones that were run.
    ``single``, ``mixed``: relative to the best single setting with at least perphd's batch work, and to the frontier
    with mixes; the names are those of most repetitions.
    """

    cell: str
    scheme: str
    figure: str
    settings: tuple[str, ...]
    batch_to_native: Spread | None
    to_native: Spread | None
    single: Spread | None
    single_name: str
    mixed: Spread | None
    mixed_name: str

    @property
    def met(self) -> bool | None:
        """True if the median is within 10 % of the frontier with mixes or better; None if it was not measured."""
        return self._at_least(self.mixed, 1 - WITHIN)

    @property
    def not_worse_than_native(self) -> bool | None:
        """True if the median is at least as good as without control; None if it was not measured."""
        return self._at_least(self.to_native, 1.0)

    def _at_least(self, reached: Spread | None, share: float) -> bool | None:
        if reached is None:
            return None
        return reached.median >= share if self.figure == "rate" else reached.median <= 2 - share


def best(settings: Sequence[Setting], batch: float, *, more: bool, mixes: bool = True) -> Best | None:
    """The best figure at this batch work or more; None without settings. ``more``: a larger figure is better."""
    if not settings:
        return None
    most = max(setting.batch for setting in settings)
    wanted = min(batch, most)
    found = [Best(setting.name, setting.figure) for setting in settings if setting.batch >= wanted]
    if mixes:
        for less_work in settings:
            for more_work in settings:
                if less_work.batch < wanted < more_work.batch:
                    share = (wanted - less_work.batch) / (more_work.batch - less_work.batch)
                    mixed = less_work.figure + share * (more_work.figure - less_work.figure)
                    found.append(Best(f"{less_work.name} + {more_work.name}", mixed))
    return max(found, key=lambda one: one.figure if more else -one.figure)


def comparisons(runs: Sequence[Run]) -> list[Comparison]:
    """perphd's comparison in each cell in which it ran beside at least one static setting, in order of appearance."""
    found = []
    for cell in dict.fromkeys(run.cell for run in runs):
        of_cell = [run for run in runs if run.cell == cell]
        names = {run.scheme for run in of_cell}
        for scheme in SCHEMES:
            if is_perphd(scheme.name) and scheme.name in names and names & set(STATIC):
                found.append(_compare(cell, scheme.name, of_cell))
    return found


def _compare(cell: str, scheme: str, of_cell: Sequence[Run]) -> Comparison:
    more = not load_of(cell).open_loop
    mine = [run for run in of_cell if run.scheme == scheme]
    singles: list[float] = []
    mixes: list[float] = []
    single_names: Counter[str] = Counter()
    mixed_names: Counter[str] = Counter()
    for run in mine:
        settings = _settings(run, of_cell, more=more)
        static = [setting for setting in settings if setting.name != ALONE]
        if not static:
            continue
        for chosen, ratios, told, with_mixes in (
            (static, singles, single_names, False),
            (settings, mixes, mixed_names, True),
        ):
            reached = best(chosen, run.whole.batch, more=more, mixes=with_mixes)
            compared = None if reached is None else ratio(_figure(run, more=more), reached.figure)
            if reached is not None and compared is not None:
                ratios.append(compared)
                told[reached.name] += 1
    return Comparison(
        cell=cell,
        scheme=scheme,
        figure="rate" if more else "p95",
        settings=tuple(name for name in STATIC if any(run.scheme == name for run in of_cell)),
        batch_to_native=paired(mine, of_cell, NATIVE, lambda run: run.whole.batch),
        to_native=paired(mine, of_cell, NATIVE, lambda run: _figure(run, more=more)),
        single=spread(singles),
        single_name=_most(single_names),
        mixed=spread(mixes),
        mixed_name=_most(mixed_names),
    )


def _settings(run: Run, of_cell: Sequence[Run], *, more: bool) -> list[Setting]:
    """The static settings of the run's repetition, and the application alone."""
    found = []
    for name in (ALONE, *STATIC):
        other = reference(run, of_cell, name)
        figure = None if other is None else _figure(other, more=more)
        if other is not None and figure is not None:
            found.append(Setting(name, 0.0 if name == ALONE else other.whole.batch, figure))
    return found


def _figure(run: Run, *, more: bool) -> float | None:
    return run.whole.tps if more else run.whole.p95_ms


def _most(names: Counter[str]) -> str:
    return names.most_common(1)[0][0] if names else ""
