"""Live models of several hosts: exported, merged with a champion check, judged, imported. Never by itself."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from perphd.agent.models import Models
from perphd.agent.records import Records
from perphd.commands.cli import cli
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.errors import PerphError
from perphd.domain.policy import ModelContext
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.predictor import Observation, Registry
from perphd.predictor.files import ModelFiles
from perphd.predictor.live_merge import judge, merge_models, remembered
from perphd.predictor.persist import ModelFile, from_text, to_text
from perphd.predictor.physics import CpuGrants, expect
from tests.unit.inline import inline

DB = WorkloadSpec("db", Kind.LRA, "/app/db", sli=SliSpec("push"))
CORES = 16
CONTEXT = ModelContext(6.0, 16.0, float(CORES))


def truth(batch_cores: int, stall: float, lean: float) -> float:
    """Log of work beside batch over what physics expects."""
    return -0.8 * stall - lean * batch_cores / CORES


class Host:
    """A daemon's models on one host, whose policy keeps batch on some cores."""

    def __init__(self, name: str, path: Path) -> None:
        self.registry = Registry("staged")
        self.models = Models(
            self.registry,
            ModelFiles(path / name),
            Records(None, lambda: 1e9),
            lambda: 1e9,
            name,
            CORES,
            in_thread=False,
        )
        inline(self.models.follow((DB,), 0.0))

    def lived(self, cores: range, seed: int, lean: float = 0.3, samples: int = 240) -> Host:
        rng = np.random.default_rng(seed)
        model = self.models.model("db")
        for t in range(samples):
            beside = t >= 20
            allocation = Allocation(CpuGrant(CORES, int(rng.choice(cores)) if beside else CORES))
            context = replace(CONTEXT, batch_demand_cores=16.0 if beside else 0.0)
            stall = float(rng.random())
            log = 0.0
            if beside:
                log = math.log(float(expect(CpuGrants.of([allocation]), context).work[0]))
                log += truth(allocation.cpu.batch_cores, stall, lean)
            work = 1000.0 * math.exp(log + 0.02 * rng.standard_normal())
            sample = Sample(
                "db", float(t), 1.0, cpu_usage_cores=6.0, run_delay_cores=0.5, io_some_pct=100.0 * stall,
                work_rate_per_s=work,
            )  # fmt: skip
            model.observe(Observation(sample, allocation, context, not beside))
            self.registry.rebuild_here()
        return self

    def error(self, cores: range, lean: float = 0.3) -> float:
        """log-RMSE of what it expects of these allocations, as disks stall now."""
        allocations = [Allocation(CpuGrant(CORES, n)) for n in cores]
        model = self.models.model("db")
        stall = model._around.io_stall
        assert isinstance(stall, float)
        prior = expect(CpuGrants.of(allocations), CONTEXT).work
        wanted = [math.log(p) + truth(n, stall, lean) for p, n in zip(prior, cores, strict=True)]
        found = [math.log(band.value) for band in model.predict_work(allocations, CONTEXT)]
        return float(np.sqrt(np.mean((np.array(found) - np.array(wanted)) ** 2)))

    def export(self) -> str:
        return self.models.export(DB, 300.0)


@functools.cache
def exported(name: str, low: int, high: int, seed: int, lean: float = 0.3) -> str:
    return Host(name, Path("/nonexistent")).lived(range(low, high), seed, lean).export()


def a() -> ModelFile:
    return from_text(exported("a", 1, 9, 1))


def b() -> ModelFile:
    return from_text(exported("b", 8, 17, 2))


def test_a_merged_model_knows_what_each_host_knows_and_is_taken_over_by_a_third(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.json" for name in ("a", "b", "merged")}
    files["a"].write_text(exported("a", 1, 9, 1))
    files["b"].write_text(exported("b", 8, 17, 2))
    run = CliRunner().invoke
    done = run(cli, ["model", "merge", str(files["merged"]), str(files["a"]), str(files["b"]), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["accepted"]
    assert {(c["channel"], c["host"]) for c in told["contests"]} >= {("work", "db@a"), ("work", "db@b")}

    def third() -> Host:
        return Host("c", tmp_path).lived(range(8, 12), 3, samples=40)

    alone, helped = third(), third()
    (warning,) = inline(helped.models.take(DB, files["merged"].read_bytes(), 40.0, rename=False))
    assert "it was learned on a+b" in warning
    # Samples of its own, of which the model takes how disks stall there, then what no sample of its own has shown.
    for host in (alone, helped):
        host.lived(range(8, 12), 4, samples=45)
    assert helped.error(range(13, 17)) < 0.8 * alone.error(range(13, 17))
    assert helped.error(range(2, 7)) < 0.01


def test_hosts_that_do_not_agree_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    one, other, target = tmp_path / "a.json", tmp_path / "x.json", tmp_path / "m.json"
    one.write_text(exported("a", 1, 9, 1))
    other.write_text(exported("x", 1, 9, 5, -1.5))  # there, work grows with what batch has
    done = CliRunner().invoke(cli, ["model", "merge", str(target), str(one), str(other)])
    assert done.exit_code == 1
    assert "worse than a champion" in done.output
    assert not target.exists()


def test_what_cannot_be_merged_says_why() -> None:
    with pytest.raises(PerphError, match="at least two"):
        merge_models([a()])
    with pytest.raises(PerphError, match="given twice"):
        merge_models([a(), a()])
    with pytest.raises(PerphError, match="measure work differently"):
        merge_models([a(), replace(b(), provenance=replace(b().provenance, sli_source="mysql"))])
    versions = [
        replace(f, provenance=replace(f.provenance, app_version=v)) for f, v in ((a(), "8.0"), (b(), "8.4"))
    ]
    with pytest.raises(PerphError, match=r"different application versions: 8\.0, 8\.4"):
        merge_models(versions)
    young = from_text(Host("young", Path("/nonexistent")).lived(range(1, 9), 6, samples=25).export())
    with pytest.raises(PerphError, match="db@young: fewer than 30 samples taken while batch ran"):
        merge_models([a(), young])


def test_a_merged_model_is_a_file_like_any_other_and_begins_doubted() -> None:
    made = merge_models([a(), b()])
    assert made.accepted
    again = from_text(to_text(made.file))
    assert again == made.file
    assert made.file.provenance.host == "a+b"
    assert made.file.state.samples == a().state.samples + b().state.samples
    assert max(one.count for one in made.file.state.reference) <= 5.0
    assert made.file.state.work.cells == ()  # they are local
    kept = remembered(made.file, "work")
    assert kept is not None
    assert len(kept.y) > 100


def test_a_model_is_judged_on_what_another_host_remembers(tmp_path: Path) -> None:
    alike, contrary = from_text(exported("y", 1, 9, 7)), from_text(exported("x", 1, 9, 5, -1.5))
    assert judge(a(), alike).log_rmse < 0.5 * judge(a(), contrary).log_rmse
    one, other = tmp_path / "a.json", tmp_path / "y.json"
    one.write_text(exported("a", 1, 9, 1))
    other.write_text(exported("y", 1, 9, 7))
    done = CliRunner().invoke(cli, ["model", "evaluate", str(one), "--on", str(other)])
    assert done.exit_code == 0, done.output
    assert "learned on a from 240 samples" in done.output
    assert "samples scatter by" in done.output
    damaged = CliRunner().invoke(cli, ["model", "evaluate", str(one), "--on", str(tmp_path / "no.json")])
    assert damaged.exit_code == 1
    assert "cannot be read" in damaged.output
