"""Makes this host's contribution from its saved models, without the daemon."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perphd.agent.contribution_folder import ContributionFolder, contributor_name, this_host
from perphd.agent.federated import hardware_of
from perphd.agent.forecast_scores import read_scores
from perphd.federated.contribution import Contribution, fitting, spoken
from perphd.federated.ledger import EVERY_GENERATION
from perphd.host.fs import RealFs
from perphd.host.topology import read_topology
from perphd.predictor.federated import contributed
from perphd.predictor.persist import ModelFile


def document_of(
    files: Iterable[ModelFile], forecasts: Path, folder: ContributionFolder, now_unix_s: float
) -> Contribution:
    """This host's document about saved models and forecast scores, with a later generation than the one in
    the folder.
    """
    fs = RealFs()
    topology = read_topology(fs)
    hardware, name = hardware_of(fs, topology), contributor_name(this_host())
    said = spoken(each for file in files for each in contributed(file, hardware.threads_per_core))
    statistics = [*said, *read_scores(forecasts)]
    before = folder.own(name)
    generation = max(int(now_unix_s), before.generation + 1 if before is not None else 0)
    return Contribution(name, min(generation, EVERY_GENERATION), now_unix_s, hardware, fitting(statistics))
