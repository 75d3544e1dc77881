"""How the online learner works, and the shapes of its answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from perphd.predictor.ogbrt.drift import DriftSettings
from perphd.predictor.ogbrt.fit import FitSettings
from perphd.predictor.ogbrt.trees import Floats
from perphd.predictor.ogbrt.update import UpdateSettings


@dataclass(frozen=True, slots=True)
class OgbrtSettings:
    """How the learner works.

    Attributes:
        update, drift, fit: see there.
        bags: bootstrap replicas.
        miss_rate: share of samples that a band may miss.
        gate_mape: largest mean error (part of the measured value) at which the model may act.
        gate_samples: live samples before it may act.
        noise_sd: one sample's noise (log units) until it is known.
        prior_sd: what is doubted of a warm start that comes without samples (log units).
        rebuild_every: samples between rebuilds; 0 never. A model without a warm start is rebuilt sooner: first after
            ``first_rebuild`` samples, then whenever their number has doubled.
        first_rebuild: see there.
        rebuild_after_drift: samples between an alarm and the rebuild that answers it.
        trial_samples, trial_margin: length of a trial, and by what part of the squared error a challenger must win.
            Large: measured, a rebuild without need is as good one step ahead and often worse elsewhere.
        old_weight: weight of a remembered sample from before the last change, relative to a new one.
        recent_half_life: samples after which the weight of a newer one has halved.
        reservoir: samples remembered at most.
        seed: of the bootstrap.
    """

    update: UpdateSettings = field(default_factory=UpdateSettings)
    drift: DriftSettings = field(default_factory=DriftSettings)
    fit: FitSettings = field(default_factory=FitSettings)
    bags: int = 5
    miss_rate: float = 0.1
    gate_mape: float = 0.2
    gate_samples: int = 10
    noise_sd: float = 0.04
    prior_sd: float = 0.3
    rebuild_every: int = 600
    first_rebuild: int = 60
    rebuild_after_drift: int = 120
    trial_samples: int = 120
    trial_margin: float = 0.4
    old_weight: float = 0.3
    recent_half_life: float = 300.0
    reservoir: int = 1024
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """For n rows, each of shape (n,), in log units.

    Attributes:
        mean: expected log-performance.
        sd: standard deviation of that expectation: what is not known about the application. Calibrated.
        lower, upper: band that a single sample misses at the wanted rate.
        support: samples since the last change that speak for the row, less the farther away they were.
    """

    mean: Floats
    sd: Floats
    lower: Floats
    upper: Floats
    support: Floats


@dataclass(frozen=True, slots=True)
class Learned:
    """What became of one sample.

    Attributes:
        error: y - F(x) in log units, asked before learning; NaN if it was not used.
        skipped: why it was not used, or empty.
        drift: it raised the drift alarm.
        missed: it was outside its band.
        swapped: a rebuilt model took over after it.
        far: how far it was from what was seen since the last change, 0 to 1.
    """

    error: float
    skipped: str = ""
    drift: bool = False
    missed: bool = False
    swapped: bool = False
    far: float = 1.0
