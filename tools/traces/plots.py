"""Plots of a fleet: utilisation of machines over time, and used shares of requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perphd.domain.workload import Kind
from tools.traces.fleet import Fleet

_COLOURS = {Kind.LRA: "#1b6ca8", Kind.BATCH: "#d1703c"}
MOST_MACHINES = 400


def plot(fleet: Fleet, folder: Path) -> None:
    """Write ``utilisation.png`` and ``requests.png``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    hours = fleet.host["cpu"].shape[1] * fleet.slot_s / 3600.0
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    for axis, name in zip(axes, ("cpu", "memory"), strict=True):
        matrix = fleet.host[name][:MOST_MACHINES]
        axis.imshow(matrix, aspect="auto", vmin=0, vmax=1, interpolation="nearest",
                            extent=(0, hours, len(matrix), 0), cmap="viridis")  # fmt: skip
        axis.set(title=f"{name} utilisation", xlabel="hours")
    axes[0].set_ylabel("machines")
    figure.colorbar(axes[0].images[0], ax=axes)
    figure.savefig(folder / "utilisation.png", dpi=110)
    pyplot.close(figure)
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    for axis, name in zip(axes, ("cpu", "memory"), strict=True):
        ratios = fleet.means(f"{name}_of_request")
        for kind, colour in _COLOURS.items():
            mine = [
                r for life, r in zip(fleet.lives, ratios, strict=True) if life.kind is kind and np.isfinite(r)
            ]
            if mine:
                axis.ecdf(mine, color=colour, label=f"{kind} ({len(mine)})")
        axis.set(title=f"{name}: mean use of what is requested", xlabel="ratio", xlim=(0, None))
        if axis.lines:
            axis.legend()
    axes[0].set_ylabel("share of workloads")
    figure.savefig(folder / "requests.png", dpi=110)
    pyplot.close(figure)
