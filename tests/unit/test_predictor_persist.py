"""Models as text: what is written predicts the same again, and no text, however mutilated, does harm."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perphd.domain.allocation import IDLE, Allocation, CpuGrant, Weight
from perphd.domain.policy import ModelContext
from perphd.domain.reading import NOT_MEASURED, Unavailable
from perphd.domain.sample import Quality, Sample
from perphd.predictor.model import LraModel, Observation
from perphd.predictor.ogbrt import InvalidModel
from perphd.predictor.persist import (
    MAX_BYTES,
    ModelFile,
    ModelFileError,
    Provenance,
    Skipped,
    TreesState,
    from_text,
    ranges_of,
    to_text,
)
from perphd.predictor.sealed import SealedError, SealedFormat, decode

FROM = Provenance("db", "/app/db", "mysql", "node1", 4, "1.2.3", 1.7e9)
NO_LOAD = Unavailable("no load signal")
WEIGHTS: st.SearchStrategy[Weight] = st.sampled_from([IDLE, 1, 25, 100, 10000])
CONTEXTS = st.builds(
    ModelContext, st.floats(0, 6), st.floats(0, 6), st.sampled_from([1.0, 4.0]), st.floats(0, 3)
)


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    batch = draw(st.integers(1, 4))
    grant = CpuGrant(4, batch, draw(WEIGHTS), draw(st.booleans()) and batch < 4)
    return Allocation(grant, 0, draw(st.integers(0, 8)), draw(st.sampled_from([100, 50])))


@st.composite
def observations(draw: st.DrawFn) -> list[Observation]:
    seen = []
    now_s = draw(st.integers(1, 10**6)) / 8
    for _ in range(draw(st.integers(0, 15))):
        now_s += draw(st.integers(1, 4000)) / 8
        sample = Sample(
            "db",
            now_s,
            1.0,
            quality=draw(st.sampled_from([(), (), (), (Quality.SETTLING,)])),
            cpu_usage_cores=draw(st.floats(0, 4)),
            run_delay_cores=draw(st.floats(0, 4)),
            work_rate_per_s=draw(st.floats(0, 1e9)),
            load_per_s=draw(st.one_of(st.just(NO_LOAD), st.floats(0, 1e9))),
            cpu_some_pct=draw(st.floats(0, 100)),
        )
        cores = draw(st.one_of(st.just(NOT_MEASURED), st.floats(0, 4)))
        seen.append(
            Observation(sample, draw(allocations()), draw(CONTEXTS), draw(st.booleans()), batch_cores=cores)
        )
    return seen


def learned(seen: list[Observation]) -> LraModel:
    model = LraModel()
    for item in seen:
        model.observe(item)
    return model


def grown() -> LraModel:
    """A model that knows a reference, two cells and its elasticity."""
    model = LraModel()
    for t in range(40):
        batch = t >= 15
        grant = CpuGrant(4, 4 if t < 30 else 2, 100)
        sample = Sample(
            "db",
            float(t),
            1.0,
            cpu_usage_cores=2.0,
            run_delay_cores=2.0 if batch else 0.1,
            work_rate_per_s=600.0 if batch else 1000.0,
        )
        context = ModelContext(2.0, 4.0 if batch else 0.0, 4.0)
        model.observe(Observation(sample, Allocation(grant), context, not batch, batch_cores=1.9))
    return model


def file_of(model: LraModel) -> ModelFile:
    state = model.to_state()
    return ModelFile(FROM, ranges_of(state), state)


@settings(max_examples=25, deadline=None)
@given(observations(), st.lists(allocations(), min_size=1, max_size=6), CONTEXTS, st.floats(0.1, 1e9))
def test_what_was_written_predicts_exactly_the_same(
    seen: list[Observation], asked: list[Allocation], context: ModelContext, load: float
) -> None:
    model = learned(seen)
    file = file_of(model)
    read = from_text(to_text(file))
    assert read == file
    again = LraModel.from_state(read.state, seen[-1].sample.at_s if seen else 0.0)
    assert again.predict_work(asked, context) == model.predict_work(asked, context)
    assert again.predict_delay(asked, context) == model.predict_delay(asked, context)
    assert again.batch_cores(asked, context) == model.batch_cores(asked, context)
    for signal in ("work:sli", "delay:run", "cpu_usage_cores", "cpu_some_pct"):
        assert again.reference(signal, load) == model.reference(signal, load)
        assert again.reference(signal, NO_LOAD) == model.reference(signal, NO_LOAD)
    assert again.is_closed == model.is_closed
    assert again.to_state() == model.to_state()


@settings(max_examples=15, deadline=None)
@given(observations(), observations(), st.integers(-1000, 10**6))
def test_it_goes_on_learning_as_before_under_any_clock(
    before: list[Observation], after: list[Observation], shift_s: int
) -> None:
    model = learned(before)
    now_s = before[-1].sample.at_s if before else 0.0
    shift = shift_s / 8 - now_s  # the other boot's clock stood there
    again = LraModel.from_state(from_text(to_text(file_of(model))).state, now_s + shift)
    at_s = now_s
    for item in after:
        at_s += 1.0
        model.observe(replace(item, sample=replace(item.sample, at_s=at_s)))
        again.observe(replace(item, sample=replace(item.sample, at_s=at_s + shift)))
    assert again.to_state() == model.to_state()


def test_what_is_older_counts_less_and_a_clock_that_went_back_counts_as_no_time() -> None:
    state = grown().to_state()
    here, context = [Allocation(CpuGrant(4, 2, 100))], ModelContext(2.0, 4.0, 4.0)
    supports, references = [], []
    for elapsed_s in (-1e9, 0.0, 600.0, 86400.0, 1e10):
        model = LraModel.from_state(state, 5.0, elapsed_s)
        supports.append(model.predict_work(here, context)[0].support)
        reference = model.reference("work:sli", NO_LOAD)
        assert reference is not None
        assert reference.value == pytest.approx(1000.0, rel=0.01)
        references.append(reference.support)
    assert supports[0] == supports[1]
    assert supports[2] == pytest.approx(supports[1] / 2, rel=0.05)
    assert supports[1] > supports[2] > supports[3]
    assert references[0] == references[1]
    assert references[3] == pytest.approx(references[1] / 2)
    assert references[4] == 1.0


def test_a_restored_model_folds_new_samples_into_the_cells_that_it_had() -> None:
    model = grown()
    cells = len(model.to_state().work.cells)
    again = LraModel.from_state(from_text(to_text(file_of(model))).state, 100.0)
    sample = Sample("db", 101.0, 1.0, cpu_usage_cores=2.0, run_delay_cores=2.0, work_rate_per_s=500.0)
    grant = Allocation(CpuGrant(4, 2, 100))
    again.observe(Observation(sample, grant, ModelContext(2.0, 4.0, 4.0), False, batch_cores=1.9))
    assert len(again.to_state().work.cells) == cells
    assert again.samples == model.samples + 1


def test_ranges_say_what_was_seen() -> None:
    found = {r.of: (r.low, r.high) for r in ranges_of(grown().to_state())}
    assert found["batch_cores"] == (2.0, 4.0)
    assert found["batch_weight_ratio"] == (1.0, 1.0)
    assert "load_per_s" not in found
    assert ranges_of(LraModel().to_state()) == ()


def test_the_largest_model_has_room_in_a_file() -> None:
    state = grown().to_state()
    cell = state.work.cells[0]
    full = replace(state.work, cells=(replace(cell, mean=-math.pi / 7, age_s=math.e * 1e4),) * 48)
    stats = (replace(state.reference[0], mean=-math.pi / 7, var=math.pi / 7, bucket=-123),) * 1000
    state = replace(state, reference=stats, work=full, delay=full, batch=full)
    assert len(to_text(ModelFile(FROM, ranges_of(state), state))) < MAX_BYTES / 2


# --- texts that are no models ----------------------------------------------------------------------------------

TEXT = to_text(file_of(grown()))


def sealed(body: Any, **head: Any) -> str:
    """A text with a right checksum, whatever the body is."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return json.dumps({"format": "perphd-model", "version": 1, "sha256": digest, "body": body} | head)


def changed(path: str, value: Any) -> str:
    body = json.loads(TEXT)["body"]
    place, (*above, last) = body, [int(p) if p.isdigit() else p for p in path.split(".")]
    for step in above:
        place = place[step]
    place[last] = value
    return sealed(body)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[]", "not a perphd model"),
        ("{}", "not a perphd model"),
        ("[" * 100_000, "not JSON"),
        (" " * (MAX_BYTES + 1), "exceed the limit"),
        ('{"a": NaN}', "NaN"),
        (TEXT[:-20], "not JSON"),
        (TEXT.replace('"samples":40', '"samples":41'), "checksum is wrong"),
        (sealed({}, version=8), "version is 8; this perphd reads versions 1 to 7"),
        (sealed({}, version=True), "version is True"),
        (sealed({}, surprise=1), "unknown key 'surprise'"),
        (sealed({}, sha256=7), "checksum"),
        (sealed([]), "checksum"),
        (sealed({}), "provenance is missing"),
        (changed("state.samples", -1), "state.samples is -1, not a whole number from 0"),
        (changed("state.samples", 4.5), "state.samples is 4.5"),
        (changed("state.samples", True), "state.samples is True"),
        (changed("state.elasticity", "much"), "state.elasticity is 'much', not a number from 0 to 10"),
        (changed("state.reference.0.mean", 1e300), "state.reference[0].mean is 1e+300"),
        (changed("state.reference.0.count", 10**400), "state.reference[0].count is 1000"),
        (changed("state.work.cells.0.x", [1.0]), "state.work.cells[0].x has 1 items, not 7 to 32"),
        (changed("state.work.cells.0.x.0", "a"), "state.work.cells[0].x[0] is 'a'"),
        (changed("state.work.cells.0.key.batch_weight", "lazy"), "batch_weight is 'lazy'"),
        (changed("state.work.cells", [{}] * 49), "49 items"),
        (changed("state.work.cells.0", 5), "state.work.cells[0] is 5, not an object"),
        (changed("state.delay.noise_var", 0), "state.delay.noise_var is 0"),
        (changed("provenance.more", 1), "provenance has the unknown key 'more'"),
        (changed("provenance.lra", 5), "provenance.lra is 5, not text"),
        (changed("ranges", {}), "ranges is {}, not a list"),
        (TEXT.replace('"samples":40', '"samples":1e999'), "it holds an invalid value"),
        (TEXT.replace('"samples":40', '"samples":' + "9" * 5000), "not JSON"),
    ],
)
def test_refusals_say_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ModelFileError) as refused:
        from_text(text)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 300


def test_weight_idle_has_its_own_word() -> None:
    file = from_text(changed("state.work.cells.0.key.batch_weight", "idle"))
    key: Any = file.state.work.cells[0].key
    assert key.batch_weight is IDLE
    assert from_text(to_text(file)) == file


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(TEXT) - 1), st.integers(0, 40), st.text(max_size=20))
def test_a_damaged_text_is_refused(at: int, many: int, instead: str) -> None:
    text = TEXT[:at] + instead + TEXT[at + many :]
    try:
        found = from_text(text)
    except ModelFileError:
        return
    assert found == from_text(TEXT)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for step, item in items:
            found += places(item, (*path, step))
    return found


PLACES = places(json.loads(TEXT)["body"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=3))
@example([(("state", "work", "cells", 0, "mean"), 100.0), (("state", "reference", 0, "mean"), 100.0)])
def test_whatever_passes_the_bounds_makes_a_model_that_answers_and_learns(
    changes: list[tuple[tuple[Any, ...], Any]],
) -> None:
    body = json.loads(TEXT)["body"]
    for (*above, last), value in changes:
        place = body
        try:
            for step in above:
                place = place[step]
            if isinstance(place, list) == isinstance(last, str):
                continue  # an earlier change made another kind of thing of this place
            place[last] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took this place away
    try:
        file = from_text(sealed(body))
    except ModelFileError:
        return
    try:
        model = LraModel.from_state(file.state, 10.0, 60.0)
    except InvalidModel:
        return  # lists that do not fit each other are refused with a sentence, too
    asked, context = [Allocation(CpuGrant(4, n, 100)) for n in (4, 2, 1)], ModelContext(2.0, 4.0, 4.0)
    for bands in (
        model.predict_work(asked, context),
        model.predict_delay(asked, context),
        model.batch_cores(asked, context),
    ):
        assert all(math.isfinite(b.value) and b.value >= 0 and b.sd > 0 for b in bands)
    sample = Sample("db", 11.0, 1.0, cpu_usage_cores=2.0, run_delay_cores=2.0, work_rate_per_s=500.0)
    model.observe(Observation(sample, asked[1], context, False, batch_cores=1.9))
    to_text(file_of(model))


def test_an_index_that_trees_cannot_hold_is_refused() -> None:
    with pytest.raises(SealedError, match=r"node_start\[0\] is 2147483648"):
        decode(TreesState, {"base": 0.0, "node_start": [2**31]})


def test_a_text_that_no_reader_would_take_is_not_written() -> None:
    small = SealedFormat("perphd-x", "thing", 1, (1,), 400, ModelFileError)
    assert small.value(Skipped, small.text(Skipped("x", 1))) == Skipped("x", 1)
    with pytest.raises(ModelFileError, match="exceed the limit for a thing"):
        small.text(Skipped("x" * 400, 1))
