"""Creates the models of a host according to its configuration."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from perphd.agent.models import Models
from perphd.agent.rebuilds import Rebuilds
from perphd.agent.records import Records
from perphd.config.file import Config
from perphd.domain.topology import Topology
from perphd.host.app_version import AppVersions
from perphd.host.fs import KernelFs
from perphd.predictor import Registry
from perphd.predictor.files import ModelFiles

if TYPE_CHECKING:
    from perphd.agent.federated import Federated


def open_models(
    config: Config,
    fs: KernelFs,
    topology: Topology,
    records: Records,
    wall_clock: Callable[[], float],
    llc_ways: int,
    *,
    virtual: bool,
    versions: AppVersions,
) -> Models:
    """Open the models. ``virtual``: ticks bring the time, so nothing runs in parallel with them."""
    files = ModelFiles(Path(config.daemon.state_dir) / "models")
    registry = Registry(config.model.learner, config.model.gate_mape_pct / 100.0)
    rebuilds = None if virtual else Rebuilds(registry, records)
    cores = len(topology.usable_cores)
    return Models(
        registry, files, records, wall_clock, socket.gethostname(), cores, rebuilds,
        rebuild=config.model.rebuild, llc_ways=llc_ways, versions=versions,
        federated=_federated(config, fs, topology, records, wall_clock, inline=virtual),
        in_thread=not virtual,
    )  # fmt: skip


def forecast_reader(config: Config, fs: KernelFs, topology: Topology) -> str:
    """The worker's argument: this host and the folder of contributions, as text; empty without a folder."""
    if not config.federated.folder:
        return ""
    from perphd.agent import federated

    return federated.forecast_reader(config, fs, topology)


def _federated(
    config: Config,
    fs: KernelFs,
    topology: Topology,
    records: Records,
    wall_clock: Callable[[], float],
    *,
    inline: bool,
) -> Federated | None:
    """The exchange of models; None without a folder, and then its module is not loaded."""
    if not config.federated.folder:
        return None
    from perphd.agent.federated import open_federated

    return open_federated(config, fs, topology, records, wall_clock, inline)
