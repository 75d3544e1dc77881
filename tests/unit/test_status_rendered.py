"""perphctl status: 80 columns, what matters first; doctor's verdict; JSON for scripts; groups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perphd.commands import admission as cli_admission
from perphd.commands import daemon
from perphd.commands.cli import cli
from perphd.commands.groups import group_parts, rows_of
from perphd.commands.published import published, rfc3339
from perphd.commands.render_status import has_words, health_words, status_parts
from perphd.config.file import Config, nothing_to_do, parse
from perphd.control.table import WIDTH, plain
from perphd.control.verdict import PROTECTIONS, missing, verdict
from perphd.domain.allocation import IDLE, Allocation, CpuGrant
from perphd.domain.capability import Area, Capability
from perphd.domain.decision import Action, Cause, Health
from perphd.domain.errors import ConfigError, ParseError
from perphd.domain.host_account import CpuAccount, GroupUse, HostAccount
from perphd.domain.host_facts import GroupFact, ProcessFact
from perphd.domain.status import AgentStatus, Change, WorkloadStatus
from perphd.domain.units import parse_size_bytes
from perphd.domain.whatif import Arrival, WhatIf
from perphd.domain.wire import encode
from perphd.domain.workload import Mode
from perphd.host.catalogue import CgroupEntry
from tests.unit.control_fake import FakeAgent, Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as found:
        yield found


def status() -> AgentStatus:
    return FakeAgent(Config()).status()


def lra(found: AgentStatus, name: str = "db") -> WorkloadStatus:
    return next(item for item in found.workloads if item.spec.name == name)


def test_a_limit_that_a_search_has_set_on_an_lra_is_shown() -> None:
    found, said = status(), "memory to 512.0 MiB; see perphctl memfit status"
    assert said not in plain(status_parts(found, 130.0))
    limited = replace(lra(found), in_force=replace(lra(found).in_force, memory_high_bytes=512 << 20))
    others = tuple(limited if item.spec.name == "db" else item for item in found.workloads)
    assert f"db: {said}" in plain(status_parts(replace(found, workloads=others), 130.0))


_GRANTS = st.builds(
    CpuGrant,
    st.just(96),
    st.integers(1, 96),
    st.sampled_from([100, 20, 1, IDLE]),
    st.booleans(),
)
_ALLOCATIONS = st.builds(
    Allocation, _GRANTS, st.sampled_from([0, 1 << 34]), st.sampled_from([0, 4]), st.sampled_from([10, 100])
)
_HOST = HostAccount(
    1.0,
    1.0,
    CpuAccount(192.0, 100.3, 44.4, 33.2, 1.1, 0.3, 12.7),
    (GroupUse("/user.slice/user-1000.slice/session-31.scope", 20.0), GroupUse("/x", 13.0)),
    34.0, 2.0, 1.0, 12.0, float(1 << 40), float(1 << 38),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(Health)),
    st.sampled_from(list(Cause)),
    _ALLOCATIONS,
    _ALLOCATIONS,
    st.one_of(st.just(0.0), st.floats(1e-3, 1e6)),
    st.sampled_from(["mysql", "elasticsearch"]),
    st.booleans(),
)
@example(
    Health.SUSPECT, Cause.MBW, Allocation(CpuGrant(96, 10, 100, False), 1 << 34, 4, 10),
    Allocation(CpuGrant(96, 1, 100, False), 0, 0, 10), 174894.0, "mysql", False,
)  # fmt: skip
def test_status_fits_80_columns(
    health: Health, cause: Cause, now: Allocation, wanted: Allocation, rate: float, name: str, verbose: bool
):
    found = status()
    item = lra(found)
    assert item.decision is not None
    assert item.sample is not None
    decision = replace(
        item.decision,
        verdict=replace(item.decision.verdict, health=health, cause=cause),
        current=now,
        chosen=wanted,
        target_work=rate,
        target_delay=9.43,
    )
    changed = replace(
        item,
        spec=replace(item.spec, name=name),
        decision=decision,
        protection=now,
        sample=replace(item.sample, work_rate_per_s=rate),
    )
    change = Change(100.0, name, Action.GROW, now, wanted, Mode.OBSERVE, "because")
    others = tuple(w for w in found.workloads if w is not item)
    shown = replace(
        found,
        workloads=(changed, *others),
        changes=(change,) * 5,
        host=_HOST,
        window="mon-fri 02:00-05:00",
        problems=("a problem " * 20,),
    )
    for line in plain(status_parts(shown, 130.0, verbose)).splitlines():
        assert len(line) <= WIDTH, line


def test_the_host_comes_before_lras_and_those_before_batch_and_problems():
    found = replace(status(), host=_HOST)
    shown = plain(status_parts(found, 130.0))
    places = [shown.index(word) for word in ("host: ", "LRA ", "BATCH ", "! the store")]
    assert places == sorted(places)


def test_health_is_told_in_words():
    item = lra(status())

    def words(health: Health, cause: Cause = Cause.NONE, condition: str = "") -> str:
        assert item.decision is not None
        verdict_now = replace(item.decision.verdict, health=health, cause=cause)
        decision = replace(item.decision, verdict=verdict_now)
        return health_words(replace(item, decision=decision, condition=condition))

    assert words(Health.HEALTHY) == "ok"
    assert words(Health.OVERPROVISIONED) == "ok, ample"
    assert words(Health.HEALTHY, condition="no load") == "no load"
    assert words(Health.DEGRADED, Cause.CPU) == "slow: CPU"
    assert words(Health.SUSPECT, Cause.UNKNOWN) == "watch"
    assert words(Health.UNKNOWN) == "learning"
    assert health_words(replace(item, present=False)) == "not running"
    assert health_words(replace(item, decision=None)) == "starting"


@pytest.mark.parametrize(
    ("grant", "words"),
    [
        (CpuGrant(8, 8), "shared"),
        (CpuGrant(8, 8, batch_weight=IDLE), "all, batch idle"),
        (CpuGrant(8, 8, batch_weight=20), "all, batch w20"),
        (CpuGrant(8, 2), "6+2 shared"),
        (CpuGrant(8, 2, exclusive=True), "6 own"),
        (CpuGrant(8, 2, exclusive=True, own_cores=4), "4 own"),
    ],
)
def test_what_an_lra_has_is_told_from_its_side(grant: CpuGrant, words: str):
    assert has_words(Allocation(grant)) == words
    assert has_words(Allocation(grant, memory_bytes=1, llc_ways=2, mbw_pct=50)) == f"{words}+mem+cache+bw"


def test_status_says_that_a_target_is_provisional() -> None:
    found = status()
    item = lra(found)
    assert item.decision is not None
    sentence = "db: the target is provisional: it was learned while undeclared work"
    assert sentence not in plain(status_parts(found, 130.0))
    learned = replace(item, decision=replace(item.decision, target_provisional=True))
    shown = status_parts(replace(found, workloads=(learned,)), 130.0)
    assert sentence in plain(shown)
    assert all(len(line) <= WIDTH for line in plain(shown).splitlines())


def test_observe_says_what_enforce_would_set():
    found = status()
    item = replace(lra(found), mode=Mode.OBSERVE)
    assert item.decision is not None
    wish = replace(
        item.decision, current=Allocation(CpuGrant(8, 8)), chosen=Allocation(CpuGrant(8, 2)), reason="why"
    )
    shown = plain(status_parts(replace(found, workloads=(replace(item, decision=wish),)), 130.0))
    assert "db: enforce would set: 6+2 shared: why" in shown


# --- doctor -----------------------------------------------------------------------------------------------------


def capabilities(*present: str) -> list[Capability]:
    names = ("privilege", "cgroup.cpu", "cgroup.cpuset", "cgroup.memory", "memory.protection",
             "resctrl.l3_cat", "resctrl.mba", "perf.hardware")  # fmt: skip
    return [Capability(name, Area.ENFORCE, name in present, "") for name in names]


def test_the_verdict_is_one_line():
    names = [item.name for item in capabilities()]
    for flags in product((False, True), repeat=len(names)):
        present = [name for name, flag in zip(names, flags, strict=True) if flag]
        line = verdict(capabilities(*present))
        assert line.startswith("Verdict: can ")
        assert len(line) <= WIDTH + 3
        assert "\n" not in line
    assert verdict(capabilities("privilege", "cgroup.cpu", "cgroup.memory")) == (
        "Verdict: can protect CPU, memory (ceilings only); not cache, bandwidth, counters."
    )
    assert verdict(capabilities("privilege", "cgroup.cpu", "cgroup.memory", "memory.protection")) == (
        "Verdict: can protect CPU, memory; not cache, bandwidth, counters."
    )
    assert missing(capabilities("privilege", "cgroup.cpu", "cgroup.memory"), PROTECTIONS) == PROTECTIONS[1:]


def test_doctor_has_an_exit_code_for_fleets(served: Served):
    def code(*words: str) -> int:
        return CliRunner().invoke(cli, ["--socket", served.socket, "doctor", *words]).exit_code

    assert code() == 0
    assert code("--require", "counters") == 1
    assert code("--require", "none") == 2


# --- JSON -------------------------------------------------------------------------------------------------------


def test_missing_values_have_one_shape_and_moments_are_rfc3339():
    data = {**encode(status()), "clock": {"unix_s": 1_700_000_130.0, "monotonic_s": 130.0}}
    shown = published(data)
    assert shown["schema"] == 1
    assert "unavailable" not in json.dumps(shown)
    for path, reason in shown["missing"].items():
        value = shown
        for part in path.replace("]", "").replace("[", ".").split("."):
            value = value[int(part)] if part.isdigit() else value[part]
        assert value is None
        assert reason
    db = next(item for item in shown["workloads"] if item["spec"]["name"] == "db")
    assert db["decision"]["at"] == rfc3339(1_700_000_000.0 + db["decision"]["at_s"])
    assert db["decision"]["at"].endswith("Z")
    assert db["spec"]["sli"]["options"] == {"max_age_s": "5"}


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.builds(lambda reason: {"unavailable": reason}, st.text(max_size=5)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["at_s", "since_unix_s", "a", "b", "clock"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["at_s", "x", "y"]), _JSON, max_size=3))
def test_any_answer_can_be_published(data: dict[str, object]):
    shown = published(data)
    json.dumps(shown, allow_nan=False)
    assert '"unavailable":' not in json.dumps(shown)
    assert data.keys() <= shown.keys()


# --- small things -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["8G", "8Gi", "8GiB"])
def test_sizes_as_kubernetes_writes_them(text: str):
    assert parse_size_bytes(text) == 8 << 30


@pytest.mark.parametrize("text", ["8GB", "8B", "8i", "8iB", "8gi"])
def test_sizes_that_are_ambiguous_are_refused(text: str):
    with pytest.raises(ParseError):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    "words",
    [
        ("admit", "gpu=1"),
        ("admit", "batch:cpu=4,mem=8GB"),
        ("admit", "batch:cpu=4", "--wait", "soon"),
        ("whatif", "--add", "nothing"),
        ("explain", "db", "--at", "tomorrow"),
        ("pause", "--for", "long"),
    ],
)
def test_wrong_usage_exits_with_2(served: Served, words: tuple[str, ...]):
    done = CliRunner().invoke(cli, ["--socket", served.socket, "--json", *words])
    assert done.exit_code == 2, done.output
    assert done.stdout == "", "wrong usage is text on standard error, also with --json"
    assert "Usage: " in done.stderr


def test_admit_waits_until_work_may_start(served: Served, monkeypatch: pytest.MonkeyPatch):
    answers = [False, False, True]

    def whatif(arrival: Arrival) -> WhatIf:
        accepted = answers.pop(0)
        return WhatIf(accepted, ("ok" if accepted else "an LRA would suffer",), (), 1.0)

    monkeypatch.setattr(served.agent, "whatif", whatif)
    monkeypatch.setattr(cli_admission, "ASK_AGAIN_S", 0.01)
    done = CliRunner().invoke(cli, ["--socket", served.socket, "admit", "batch:cpu=1", "--wait", "1m"])
    assert (done.exit_code, answers) == (0, [])
    answers[:] = [False] * 1000
    done = CliRunner().invoke(cli, ["--socket", served.socket, "admit", "batch:cpu=1", "--wait", "0.05s"])
    assert done.exit_code == 75


def test_groups_show_what_runs_and_what_to_paste():
    entries = (
        CgroupEntry("/system.slice/mariadb.service", True, 1),
        CgroupEntry("/batch.slice", True, 0),
        CgroupEntry("/docker/" + "a" * 64, True, 1, "cache"),
        CgroupEntry("/plain", True, 2),
    )
    process = ProcessFact(7, "mariadbd", ("/usr/sbin/mariadbd",), 1.25, 3 << 30)
    rows = rows_of(entries, {entries[0].path: GroupFact(entries[0].path, (process,))})
    assert [row["paste"] for row in rows] == [
        'match = "unit:mariadb.service"',
        'match = "slice:batch.slice"',
        'match = "container:cache"',
        'cgroup = "/plain"',
    ]
    assert (rows[0]["cpu_cores"], rows[0]["command"], rows[1]["cpu_cores"]) == (1.25, "mariadbd", None)
    shown = plain(group_parts(rows)).splitlines()
    assert shown[1].split()[:5] == ["/system.slice/mariadb.service", "1", "1.25", "3.0GiB", "mariadbd"]


# --- config check -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("cgroup", "/sys/fs/cgroup/system.slice/mysql.service", "leave out /sys/fs/cgroup"),
        ("cgroup", "mysql.service", 'match = "unit:mysql.service"'),
        ("match", "service:mysql", 'did you mean "unit:mysql.service"'),
        ("match", "systemd:batch.slice", 'did you mean "unit:batch.slice"'),
    ],
)
def test_usual_slips_are_answered_with_what_was_meant(key: str, value: str, hint: str):
    with pytest.raises(ConfigError) as refused:
        parse(f'[[lra]]\nname = "db"\n{key} = "{value}"\n', "f")
    assert hint in str(refused.value)


def test_a_configuration_that_never_does_anything_is_named():
    lra_only, batch_only = '[[lra]]\nname = "a"\ncgroup = "/a"\n', '[[batch]]\nname = "b"\ncgroup = "/b"\n'
    assert "no workload" in nothing_to_do(parse("", "f"))
    assert "no batch" in nothing_to_do(parse(lra_only, "f"))
    assert "no LRA" in nothing_to_do(parse(batch_only, "f"))
    assert nothing_to_do(parse(lra_only + batch_only, "f")) == ""


def test_a_simulated_host_is_not_compared_with_this_machine(tmp_path: Path):
    config = tmp_path / "perphd.toml"
    declared = '[[lra]]\nname = "a"\ncgroup = "/no-such-a"\n[[batch]]\nname = "b"\ncgroup = "/no-such-b"\n'
    for kind, said in (("simulated", ""), ("auto", "does not exist")):
        config.write_text(f'[tuning.host]\nkind = "{kind}"\n{declared}')
        for group in (cli, daemon.main):
            done = CliRunner().invoke(group, ["config", "check", str(config)])
            assert done.exit_code == 0
            assert said in done.stderr if said else not done.stderr


def test_receivers_and_textfiles_that_reach_nobody_are_named(tmp_path: Path):
    good, plain_file = tmp_path / "tell", tmp_path / "plain"
    good.write_text("#!/bin/sh\n")
    good.chmod(0o700)
    plain_file.write_text("")
    here, config = str(tmp_path), tmp_path / "perphd.toml"
    cases = (
        (f'[[notify]]\nname = "n"\ncommand = "{good} -x"\n', ""),
        (f'[[notify]]\nname = "n"\ncommand = "{here}/none -x"\n', f"{here}/none is not a program"),
        (f'[[notify]]\nname = "n"\ncommand = "{plain_file}"\n', f"{plain_file} is not a program"),
        (
            f'[[notify]]\nname = "n"\nurl = "https://a.example/"\nbearer_token_file = "{here}/none"\n',
            f"{here}/none does not exist",
        ),
        (f'[metrics]\ntextfile = "{here}/a.prom"\n', ""),
        (f'[metrics]\ntextfile = "{here}/a.txt"\n', "does not end in .prom"),
        (f'[metrics]\ntextfile = "{here}/none/a.prom"\n', f"{here}/none does not exist"),
    )
    declared = '[[lra]]\nname = "a"\ncgroup = "/a"\n[[batch]]\nname = "b"\ncgroup = "/b"\n'
    for text, said in cases:
        config.write_text(f'[tuning.host]\nkind = "simulated"\n{declared}{text}')
        done = CliRunner().invoke(cli, ["config", "check", str(config)])
        assert done.exit_code == 0, done.output
        assert said in done.stderr if said else not done.stderr


def test_both_checkers_say_so(tmp_path: Path):
    config = tmp_path / "perphd.toml"
    config.write_text('[[lra]]\nname = "a"\ncgroup = "/a"\n')
    for group in (cli, daemon.main):
        done = CliRunner().invoke(group, ["config", "check", str(config)])
        assert done.exit_code == 0
        assert "no batch is declared" in done.stderr
        assert "fine; 1 workload, mode observe" in done.stdout
