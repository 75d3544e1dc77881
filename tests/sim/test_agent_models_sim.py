"""A whole agent keeps what it learned: stop, start, and a spoilt file in between."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.domain.errors import ConfigError
from perphd.domain.reading import available
from tests.sim.test_agent_loop import DB, PI, Bench


async def restarted(b: Bench) -> None:
    await b.agent.stop(restore=True)
    b.agent = b.start()


async def test_models_outlive_the_agent(tmp_path: Path) -> None:
    b = Bench(tmp_path)
    await b.run(25)
    before = b.agent.model_view(DB.name)
    assert before.summary.samples > 10
    await restarted(b)
    await b.run(1)
    after = b.agent.model_view(DB.name)
    assert after.summary.origin.startswith("loaded")
    assert after.summary.samples >= before.summary.samples
    assert {r.signal for r in after.reference} == {r.signal for r in before.reference}
    assert available(after.summary.saved_ago_s)
    assert [m.lra for m in b.agent.models()] == [DB.name]

    await b.agent.stop(restore=True)
    file = tmp_path / "models" / f"{DB.name}.json"
    file.write_text(file.read_text()[:-40])
    (tmp_path / "models" / f"{DB.name}.json.last").unlink(missing_ok=True)
    b.agent = b.start()
    await b.run(3)
    assert b.agent.status().tick == 3
    assert any("not JSON" in text and "learning starts over" in text for text in b.agent.status().problems)
    assert b.agent.model_view(DB.name).summary.origin == "learned here"
    await b.agent.stop(restore=True)


async def test_nothing_is_written_if_that_is_switched_off(tmp_path: Path) -> None:
    b = Bench(tmp_path)
    b.config = replace(b.config, daemon=replace(b.config.daemon, model_save_s=0.0))
    await restarted(b)
    await b.run(15)
    await b.agent.stop(restore=True)
    assert not (tmp_path / "models").exists()


async def test_export_import_reset_and_what_is_shown(tmp_path: Path) -> None:
    b = Bench(tmp_path)
    await b.run(25)
    text = b.agent.export_model(DB.name)
    body = json.loads(text)["body"]
    assert body["provenance"]["cgroup"] == DB.cgroup
    assert {r["of"] for r in body["ranges"]} >= {"batch_cores", "batch_weight_ratio"}

    view = b.agent.model_view(DB.name)
    assert view.context.batch_demand_cores == view.context.total_cores
    assert len(view.lattice) > 10
    assert all(item.batch_cores.value >= 0 for item in view.lattice)

    await b.agent.reset_model(DB.name)
    assert b.agent.model_view(DB.name).reference == ()
    assert await b.agent.import_model(DB.name, text.encode()) == ()
    again = b.agent.model_view(DB.name)
    assert [(r.signal, r.value) for r in again.reference] == [(r.signal, r.value) for r in view.reference]
    assert again.summary.cells == view.summary.cells > 0
    await b.run(2)

    for name in (PI.name, "nope"):
        with pytest.raises(ConfigError, match="no LRA"):
            b.agent.model_view(name)
    with pytest.raises(ConfigError, match="no LRA"):
        await b.agent.reset_model("nope")
    await b.agent.stop(restore=True)


async def test_work_that_is_counted_otherwise_is_learned_anew(tmp_path: Path) -> None:
    b = Bench(tmp_path)
    await b.run(25)
    await b.agent.reload(b.config)
    assert b.agent.model_view(DB.name).reference
    specs = tuple(
        replace(spec, sli=replace(spec.sli, source="other")) if spec.sli is not None else spec
        for spec in b.config.workloads
    )
    await b.agent.reload(replace(b.config, workloads=specs))
    assert b.agent.model_view(DB.name).reference == ()
    await b.run(2)
    await b.agent.stop(restore=True)
