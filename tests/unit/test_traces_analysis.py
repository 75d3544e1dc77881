"""Analyses of traces recover what generators planted: correlations, imbalances and the rest, within 0.05."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from perphd.dataset.attempt import attempt
from perphd.dataset.stores import Folder
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.trace import MachineUse, TraceMachine, TraceRecord, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind
from tools.traces.__main__ import main
from tools.traces.analysis import (
    ANALYSES,
    Figures,
    alignment,
    correlations,
    imbalances,
    over_commitment,
    request_against_use,
    run_times,
    variation,
    waiting,
)
from tools.traces.fleet import Fleet, chosen, collect
from tools.traces.imported import write_records

WITHIN = 0.05
SLOT_S = 300.0


def fleet_of(records: Sequence[TraceRecord], share: float = 1.0) -> Fleet:
    def read(*kinds: type[TraceRecord]) -> Iterator[TraceRecord]:
        return (record for record in records if isinstance(record, kinds))

    return collect(read, share)


def figure(figures: Figures, name: str) -> float:
    value: Reading = figures[name]
    assert available(value), f"{name}: {value}"
    return value


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def together(rho: float, with_this: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Values of mean 0 and deviation 1 that correlate so with these, which are such too."""
    return rho * with_this + math.sqrt(1 - rho * rho) * chance.normal(size=with_this.shape)


# --- correlations ----------------------------------------------------------------------------------------------

RT_PSI = {"cpu_some_10_pct": 0.5, "cpu_some_60_pct": 0.8, "cpu_some_300_pct": 0.3, "memory_some_60_pct": 0.0}


def services(seed: int, apps: int = 4, slots: int = 3000) -> list[TraceRecord]:
    """One pod an application, each on a host of its own: stalls, hosts and load correlate with response time so."""
    chance = generator(seed)
    found: list[TraceRecord] = []
    for app in range(apps):
        name, host = f"app-{app}", f"host-{app}"
        found += [
            TraceMachine(0.0, host, 16.0, 64.0),
            TraceWorkload(f"{name}/0", name, Kind.LRA, machine=host),
        ]
        response = chance.normal(size=slots)
        stalls = {column: together(rho, response, chance) for column, rho in RT_PSI.items()}
        host_cpu, rate = together(0.4, response, chance), together(0.7, stalls["cpu_some_60_pct"], chance)
        for n in range(slots):
            at_s = n * SLOT_S
            found.append(MachineUse(at_s, host, cpu_share=0.5 + 0.05 * host_cpu[n], memory_share=0.4))
            found.append(
                WorkloadUse(
                    at_s, f"{name}/0", name, host, rate_per_s=1000 + 100 * rate[n],
                    response_time_ms=20 + 3 * response[n],
                    **{column: 20 + 4 * values[n] for column, values in stalls.items()},
                )
            )  # fmt: skip
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_planted_correlations_of_response_time_and_load_are_recovered(seed: int):
    figures = correlations(fleet_of(services(seed)))
    for column, rho in RT_PSI.items():
        assert figure(figures, f"response_time_ms~{column}_median") == pytest.approx(rho, abs=WITHIN)
    assert figure(figures, "response_time_ms~host_cpu_median") == pytest.approx(0.4, abs=WITHIN)
    assert figure(figures, "rate_per_s~cpu_some_60_pct_median") == pytest.approx(0.7, abs=WITHIN)
    assert figure(figures, "response_time_ms~cpu_some_60_pct_above_0.5_share") == 1.0
    assert figure(figures, "response_time_ms~cpu_some_300_pct_above_0.5_share") == 0.0
    assert isinstance(figures["response_time_ms~host_memory_median"], Unavailable)  # it did not vary


def batch_runs(seed: int, rho: float, runs: int = 1500) -> list[TraceRecord]:
    """Runs of half an hour or so, each on a host whose mean CPU use correlates so with the run's length."""
    chance = generator(seed)
    use = chance.normal(size=runs)
    length = together(rho, use, chance)
    found: list[TraceRecord] = []
    for n in range(runs):
        host, start_s = f"host-{n}", 10 * SLOT_S
        end_s = start_s + 1800 + 100 * length[n]
        found.append(TraceWorkload(f"job/{n}", "job", Kind.BATCH, machine=host, start_s=start_s, end_s=end_s))
        found += [
            MachineUse(slot * SLOT_S, host, cpu_share=0.5 + 0.1 * use[n], memory_share=0.3 + 0.01 * (n % 5))
            for slot in range(20)
        ]
    return found


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.9])
def test_planted_correlations_of_run_times_with_the_host_are_recovered(rho: float):
    figures = correlations(fleet_of(batch_runs(1, rho)))
    assert figure(figures, "run_time_s~host_cpu_mean_median") == pytest.approx(rho, abs=WITHIN)
    assert figure(figures, "run_time_s~host_memory_max_median") == pytest.approx(0.0, abs=2 * WITHIN)


# --- imbalances ------------------------------------------------------------------------------------------------


def hosts(
    seed: int, spatial: float, temporal: float, rho: float, machines: int = 300, slots: int = 200
) -> list[TraceRecord]:
    """Hosts of different mean use (by ``spatial``), each varying over time (by ``temporal``); memory goes along."""
    chance = generator(seed)
    level, noise = chance.normal(size=(machines, 1)), chance.normal(size=(machines, slots))
    both = (spatial * level + temporal * noise) / math.hypot(spatial, temporal)
    cpu = 0.4 * (1 + spatial * level + temporal * noise)
    memory = 0.6 + 0.05 * together(rho, both, chance)
    return [
        MachineUse(slot * SLOT_S, f"host-{m}", cpu_share=cpu[m, slot], memory_share=memory[m, slot])
        for m in range(machines)
        for slot in range(slots)
    ]


@pytest.mark.parametrize(
    ("spatial", "temporal", "rho"), [(0.25, 0.05, 0.6), (0.05, 0.2, -0.4), (0.15, 0.15, 0.0)]
)
def test_planted_imbalances_of_machines_time_and_resources_are_recovered(
    spatial: float, temporal: float, rho: float
):
    figures = imbalances(fleet_of(hosts(3, spatial, temporal, rho)))
    assert figure(figures, "spatial_cpu_cov") == pytest.approx(math.hypot(spatial, temporal), abs=WITHIN / 2)
    assert figure(figures, "temporal_cpu_cov") == pytest.approx(temporal, abs=WITHIN / 2)
    assert figure(figures, "cpu_memory_correlation") == pytest.approx(rho, abs=WITHIN)
    assert figure(figures, "cpu_memory_gap") == pytest.approx(0.2, abs=WITHIN)
    assert figure(figures, "cpu_utilisation") == pytest.approx(0.4, abs=WITHIN)


def test_planted_imbalance_of_lras_and_batch_is_recovered():
    found: list[TraceRecord] = [MachineUse(n * SLOT_S, "host", cpu_share=0.5) for n in range(300)]
    for n in range(20):
        found.append(TraceWorkload(f"db-{n}", "db", Kind.LRA, start_s=0.0, end_s=86_400.0, cpu_mean=0.5))
    for n in range(100):
        found.append(
            TraceWorkload(
                f"job-{n}", "job", Kind.BATCH, start_s=n * 600.0, end_s=n * 600.0 + 129.0, cpu_mean=2.0
            )
        )
    found.append(TraceWorkload("task", "job", Kind.BATCH, instances=100.0))  # no run of its own
    figures = imbalances(fleet_of(found))
    assert figure(figures, "batch_over_lra_count") == 5.0
    assert figure(figures, "batch_over_lra_duration_s") == pytest.approx(129 / 86_400)
    assert figure(figures, "batch_over_lra_cpu") == pytest.approx(4.0)


# --- requests --------------------------------------------------------------------------------------------------


def test_over_commitment_is_requests_over_capacity_while_workloads_run():
    """Two machines of 10: the first has 5, then 15, then 10 requested; the second nothing, then 5."""
    found: list[TraceRecord] = [TraceMachine(0.0, name, 10.0, 1.0) for name in "ab"]
    for name, machine, first, last, cpus in [
        ("1", "a", 0, 29, 5),
        ("2", "a", 10, 19, 10),
        ("3", "a", 20, 29, 5),
        ("4", "b", 10, 29, 5),
    ]:
        found.append(
            TraceWorkload(name, name, Kind.BATCH, machine=machine, start_s=first * SLOT_S, end_s=last * SLOT_S + 1,
                          cpu_request=float(cpus), memory_request=0.1)
        )  # fmt: skip
    figures = over_commitment(fleet_of(found))
    # 10 slots of .5, 10 of 1.5, 10 of 1; 20 of .5.
    assert figure(figures, "cpu_request_above_capacity_share") == pytest.approx(10 / 50)
    assert (
        figure(figures, "cpu_request_over_capacity_median"),
        figure(figures, "cpu_request_over_capacity_max"),
    ) == (0.5, 1.5)
    assert figure(figures, "memory_request_above_capacity_share") == 0.0
    assert isinstance(figures["cpu_limit_over_capacity_median"], Unavailable)


@pytest.mark.parametrize("as_share", [True, False])
def test_use_of_requests_is_found_whether_use_is_published_as_a_share_or_as_an_amount(as_share: bool):
    chance = generator(5)
    found: list[TraceRecord] = []
    for n in range(400):
        kind, gap = (Kind.LRA, 5.0) if n % 2 else (Kind.BATCH, 3.0)
        request, ratio = 2.0 + n % 3, float(chance.normal(1.0 / gap, 0.02))
        found.append(TraceWorkload(str(n), "app", kind, cpu_request=request))
        for slot in range(3):
            used = {"cpu_of_request": ratio} if as_share else {"cpu": ratio * request}
            found.append(WorkloadUse(slot * SLOT_S, str(n), "app", **used))  # type: ignore[arg-type]
    figures = request_against_use(fleet_of(found))
    assert figure(figures, "lra_cpu_of_request_median") == pytest.approx(0.2, abs=WITHIN / 5)
    assert figure(figures, "batch_cpu_of_request_median") == pytest.approx(1 / 3, abs=WITHIN / 5)
    assert isinstance(figures["lra_memory_of_request_median"], Unavailable)


def test_requests_of_a_task_count_for_its_instances():
    found: list[TraceRecord] = [
        TraceWorkload("j/t", "j/t", Kind.BATCH, instances=1.0, cpu_request=4.0),
        TraceWorkload("j/t/1", "j/t", Kind.BATCH, cpu_mean=1.0, start_s=0.0, end_s=60.0),
    ]
    assert figure(request_against_use(fleet_of(found)), "batch_cpu_of_request_median") == 0.25


def test_planted_variation_within_applications_is_recovered():
    chance = generator(6)
    found: list[TraceRecord] = []
    for app in range(10):
        for pod in range(400):
            cpu, rate = chance.gamma(1 / 0.5**2), chance.gamma(1 / 1.5**2)
            name = f"{app}/{pod}"
            found.append(TraceWorkload(name, str(app), Kind.LRA))
            found.append(WorkloadUse(0.0, name, str(app), cpu=float(cpu), rate_per_s=float(rate)))
    figures = variation(fleet_of(found))
    assert figure(figures, "lra_cpu_cov") == pytest.approx(0.5, abs=WITHIN)
    assert figure(figures, "lra_rate_per_s_cov") == pytest.approx(1.5, abs=2 * WITHIN)
    assert figure(figures, "lra_cpu_cov_below_1_share") == 1.0
    assert figure(figures, "lra_rate_per_s_cov_below_1_share") == 0.0


# --- run times -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.3, 0.6, 1.2])
def test_predictability_of_lognormal_run_times_is_what_their_spread_says(sigma: float):
    chance = generator(7)
    found: list[TraceRecord] = []
    for app in range(20):
        for n in range(200):
            start_s, length = n * 1000.0, 600 * float(np.exp(sigma * chance.normal()))
            found.append(
                TraceWorkload(f"{app}/{n}", str(app), Kind.BATCH, start_s=start_s, end_s=start_s + length)
            )
    figures = run_times(fleet_of(found))
    # The median of n runs scatters by sigma sqrt(pi / 2n).
    for history in (10, 25, 50):
        spread = sigma * math.sqrt(1 + math.pi / (2 * history))
        expected = 2 * NormalDist().cdf(math.log(2) / spread) - 1
        assert figure(figures, f"history_{history}_within_2x_share") == pytest.approx(expected, abs=WITHIN)
    assert figure(figures, "history_25_predictions") == 20 * 175
    assert figure(figures, "cov_above_1_share") == (0.0 if sigma < 1 else pytest.approx(1.0, abs=0.2))


# --- schedulers ------------------------------------------------------------------------------------------------


def scheduled(by_use: bool) -> list[TraceRecord]:
    """Forty hosts; batch goes to the one most used, or most requested, among ten at random."""
    chance = generator(8)
    use = chance.uniform(0.1, 0.9, 40)
    found: list[TraceRecord] = [TraceMachine(0.0, f"h{m}", 100.0, 100.0) for m in range(40)]
    requested = chance.uniform(5.0, 60.0, 40)
    for m in range(40):
        asked = float(requested[m])
        found.append(TraceWorkload(f"db{m}", "db", Kind.LRA, machine=f"h{m}", start_s=0.0, cpu_request=asked,
                                   memory_request=asked))  # fmt: skip
        found += [MachineUse(n * SLOT_S, f"h{m}", cpu_share=use[m], memory_share=use[m]) for n in range(200)]
    for n in range(500):
        some = chance.choice(40, 10, replace=False)
        best = some[np.argmax((use if by_use else requested)[some])]
        start_s = (2 + n % 190) * SLOT_S
        job = TraceWorkload(f"job{n}", "job", Kind.BATCH, machine=f"h{best}", start_s=start_s, end_s=start_s + 10,
                            cpu_request=0.01, memory_request=0.01)  # fmt: skip
        found.append(job)
    return found


@pytest.mark.parametrize("by_use", [True, False])
def test_alignment_tells_a_scheduler_by_use_from_one_by_requests(by_use: bool):
    figures = alignment(fleet_of(scheduled(by_use)))
    # The best of ten is among the first ten of forty, but for ten drawn without any of them.
    planted = 1 - math.comb(30, 10) / math.comb(40, 10)
    chosen_by, other = ("use", "requests") if by_use else ("requests", "use")
    assert figure(figures, f"batch_by_{chosen_by}_top_quarter_share") == pytest.approx(planted, abs=WITHIN)
    assert figure(figures, f"batch_by_{other}_top_quarter_share") < 0.6


def test_waiting_and_what_was_short_are_told():
    """Two machines of 10 CPUs and 10 memory; five jobs that wait an hour, each for another reason."""
    found: list[TraceRecord] = [TraceMachine(0.0, name, 10.0, 10.0) for name in "ab"]
    hour, day = 3600.0, 86_400.0
    # By day: 0 CPU is taken, 1 memory, 2 both, 3 one of each, 4 nothing.
    taken = [((9, 1), (9, 1)), ((1, 9), (1, 9)), ((9, 9), (9, 9)), ((9, 1), (1, 9)), ((1, 1), (1, 1))]
    for number, machines in enumerate(taken):
        for machine, (cpus, memory) in zip("ab", machines, strict=True):
            found.append(
                TraceWorkload(f"{machine}{number}", "lra", Kind.LRA, machine=machine, start_s=number * day,
                              end_s=number * day + 10 * hour, cpu_request=float(cpus), memory_request=float(memory))
            )  # fmt: skip
        at_s = number * day + hour
        found.append(
            TraceWorkload(f"job{number}", "job", Kind.BATCH, machine="a", submitted_s=at_s, start_s=at_s + hour,
                          end_s=at_s + 2 * hour, cpu_request=5.0, memory_request=5.0)
        )  # fmt: skip
    figures = waiting(fleet_of(found))
    assert figure(figures, "batch_wait_s_median") == hour
    assert figure(figures, "batch_waits_above_100_s_share") == 1.0
    causes = ("cpu", "memory", "both", "together", "other")
    assert [figure(figures, f"batch_waits_for_{cause}_share") for cause in causes] == [0.2] * 5
    assert isinstance(figures["lra_wait_s_median"], Unavailable)


# --- fleets ----------------------------------------------------------------------------------------------------


def test_machines_without_rows_of_use_have_what_their_workloads_used():
    found: list[TraceRecord] = [TraceMachine(0.0, "host", 10.0, 1.0)]
    for n, name in enumerate("abc"):
        found.append(TraceWorkload(name, "app", Kind.LRA))
        # Two rows in one slot are one workload, not two.
        found += [WorkloadUse(at_s, name, "app", "host", cpu=1.0 + n) for at_s in (0.0, 10.0)]
    assert fleet_of(found).host["cpu"][0, 0] == pytest.approx(0.6)


def test_a_share_of_machines_is_held_with_everything_on_them_and_gives_the_same_imbalances():
    found = hosts(4, 0.2, 0.1, 0.5)
    found += [TraceWorkload(f"w{n}", "app", Kind.LRA, machine=f"host-{n % 300}") for n in range(600)]
    found += [WorkloadUse(0.0, f"w{n}", "app", f"host-{n % 300}", cpu=1.0) for n in range(600)]
    part = fleet_of(found, 0.5)
    held = {f"host-{n}" for n in range(300) if chosen(f"host-{n}", 0.5)}
    assert 100 < len(held) < 200
    assert {*part.machines} == held
    assert len(part.lives) == 2 * len(held)
    assert len(part.row_life) == 2 * len(held)
    whole, sampled = imbalances(fleet_of(found)), imbalances(part)
    for name in ("spatial_cpu_cov", "temporal_cpu_cov", "cpu_memory_correlation", "cpu_memory_gap"):
        assert figure(sampled, name) == pytest.approx(figure(whole, name), abs=WITHIN)


@pytest.mark.parametrize("name", ANALYSES)
def test_a_trace_that_says_little_gives_reasons_and_no_zero(name: str):
    for records in (
        [],
        [TraceWorkload("a")],
        [MachineUse(0.0, "m")],
        [WorkloadUse(0.0, "a")],
        [TraceMachine(0.0, "m")],
    ):
        figures = ANALYSES[name](fleet_of(records))
        counts = {key for key in figures if key.endswith(("_count", "_predictions")) or key == "applications"}
        assert {key for key, value in figures.items() if available(value)} <= counts


def test_the_command_analyses_an_imported_trace_as_text_json_and_plots(tmp_path: Path, capsys):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    with attempt(Folder(tmp_path / "trace")) as made:
        write_records([*services(1, 1, 100), *scheduled(True)], made, "csv")
        made.commit({"trace": "perphd trace 1", "format": "made", "cpu_unit": "CPUs"})
    assert main(["analyze", str(tmp_path / "trace"), "--json", "--plots", str(tmp_path / "plots")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {*said["analyses"]} == {*ANALYSES}
    assert said["trace"]["machines"] == 41
    assert said["analyses"]["waiting"]["lra_wait_s_median"] == "the trace does not say"
    for plot in ("utilisation.png", "requests.png"):
        assert (tmp_path / "plots" / plot).read_bytes().startswith(b"\x89PNG")
    assert main(["analyze", str(tmp_path / "trace"), "--only", "imbalances"]) == 0
    text = capsys.readouterr().out
    assert "spatial_cpu_cov" in text
    assert "wait_s" not in text
    assert main(["analyze", str(tmp_path / "trace"), "--only", "waiting"]) == 0
    assert "waiting: the trace does not say" in capsys.readouterr().out


def test_a_published_trace_is_analysed_without_an_import(tmp_path: Path, capsys):
    rows = "".join(f"m_{n % 10},{n // 10 * 300},{10 + n % 10 * 5},50,,,,,5\n" for n in range(500))
    (tmp_path / "machine_usage.csv").write_text(rows)
    assert main(["analyze", "--format", "alibaba-v2018", str(tmp_path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["analyses"]["imbalances"]
    each = np.arange(10, 60, 5)
    assert figures["spatial_cpu_cov"] == pytest.approx(each.std(ddof=1) / each.mean())
    assert main(["analyze", str(tmp_path)]) == 1
    assert "traces:" in capsys.readouterr().err
