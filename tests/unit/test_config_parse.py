"""The configuration is read strictly: whatever is refused is refused with file, key and what is allowed."""

from __future__ import annotations

import dataclasses
import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.admission.settings import PolicySettings
from perphd.agent.composition import POLICIES
from perphd.config.file import TABLES, Config, parse, place_of
from perphd.config.receivers import NOTIFY, NotifyConfig
from perphd.config.schema import Key, file_value, keys_of, usual_keys
from perphd.config.workloads import WORKLOAD_TABLES, to_toml
from perphd.domain.errors import ConfigError
from perphd.domain.workload import Exploration, Kind, Mode, Objective, SliSpec, Touch, WorkloadSpec

SOURCE = "perphd.toml"
LRA = '[[lra]]\nname = "db"\ncgroup = "/app/db"\n'
BATCH = '[[batch]]\nname = "pi"\ncgroup = "/batch/pi"\n'


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, SOURCE)
    assert str(caught.value).startswith(SOURCE)
    return caught.value


def test_empty_text_is_every_default():
    assert parse("", SOURCE) == Config(sources=(SOURCE,))


def test_full_file():
    config = parse(
        """
        [daemon]
        mode = "enforce"
        period_s = 2
        on_stop = "keep"
        [store]
        max_size = "1G"
        [tuning.store]
        path = "/data/perphd.db"
        [policy]
        false_alarms_per_day = 2
        [tuning.policy]
        confirm_ticks = 3
        [[lra]]
        name = "db"
        cgroup = "/app/db"
        priority = 7
        mode = "observe"
        max_latency_ms = 20
        latency_percentile = "p99"
        [lra.sli]
        source = "mysql"
        latency = "tcp"
        socket = "/run/mysqld/mysqld.sock"
        timeout_s = 0.5
        [[batch]]
        name = "pi"
        cgroup = "/batch"
        min_cores = 0.5
        min_memory = "64M"
        """,
        SOURCE,
    )
    assert config.daemon.mode is Mode.ENFORCE
    assert config.daemon.period_s == 2.0
    assert config.store.max_size_bytes == 1 << 30
    assert config.store_path == "/data/perphd.db"
    assert config.policy == dataclasses.replace(PolicySettings(), false_alarms_per_day=2.0, confirm_ticks=3)
    assert config.workloads == (
        WorkloadSpec(
            "db",
            Kind.LRA,
            "/app/db",
            priority=7,
            mode=Mode.OBSERVE,
            objective=Objective(max_latency_ms=20.0, latency_percentile="p99"),
            sli=SliSpec(
                "mysql", (("latency", "tcp"), ("socket", "/run/mysqld/mysqld.sock"), ("timeout_s", "0.5"))
            ),
            touch=Touch.BATCH,
            exploration=Exploration.BATCH,
        ),
        WorkloadSpec("pi", Kind.BATCH, "/batch", min_cores=0.5, min_memory_bytes=64 << 20),
    )
    assert [spec.name for spec in config.of_kind(Kind.BATCH)] == ["pi"]


def test_store_path_follows_the_state_directory():
    assert parse('[daemon]\nstate_dir = "/srv/p/"', SOURCE).store_path == "/srv/p/perphd.db"


def test_the_folder_of_federated_models_is_read():
    federated = parse('[federated]\nfolder = "/srv/share"\ncontribute = true', SOURCE).federated
    assert (federated.folder, federated.contribute) == ("/srv/share", True)


def test_policies_that_may_be_named_are_those_that_exist():
    key = next(key for key in keys_of(TABLES["daemon"]) if key.name == "policy")
    assert {f'"{name}"' for name in POLICIES} == set(key.allowed.split(", "))


def test_every_objective_can_be_configured():
    keys = {key.field for key in keys_of(WORKLOAD_TABLES[Kind.LRA])}
    assert {field.name for field in dataclasses.fields(Objective)} <= keys


EVERY_TABLE: dict[str, type] = {
    **TABLES,
    NOTIFY: NotifyConfig,
    **{str(kind): table for kind, table in WORKLOAD_TABLES.items()},
}
DESIGNED = ("daemon", "store", "policy", "metrics")
DESIGNED_OF_WORKLOADS = {
    *(
        "name",
        "cgroup",
        "match",
        "priority",
        "mode",
        "tolerance_pct",
        "min_work_rate_per_s",
        "max_latency_ms",
    ),
    *("latency_percentile", "class", "touch", "min_cores", "max_starvation_s", "min_memory"),
}


def test_an_operator_needs_few_keys() -> None:
    keys = [(name, key.name) for name, table in EVERY_TABLE.items() for key in usual_keys(table)]
    designed = [
        key
        for table, key in keys
        if table in DESIGNED or (table in tuple(Kind) and key in DESIGNED_OF_WORKLOADS)
    ]
    assert len(designed) <= 35
    assert len(keys) <= 61
    assert {key for _, key in keys} >= {"mode", "false_alarms_per_day", "retention_h", "shaper"}


def test_no_key_of_an_lra_has_the_name_of_a_policy_setting() -> None:
    own = {key.name for key in keys_of(WORKLOAD_TABLES[Kind.LRA])}
    assert not own & {key.name for key in keys_of(PolicySettings)}, "both are in [lra.tuning]"


@pytest.mark.parametrize("name", EVERY_TABLE)
def test_a_key_in_the_wrong_table_is_refused_with_its_place(name: str) -> None:
    for key in keys_of(EVERY_TABLE[name]):
        value = literal(file_value(key, key.default) if key.default is not None else "x")
        if name in REPEATED:
            usual, expert = f"{name}[0]", f"{name}[0].tuning"
            head = (
                f'[[{name}]]\nname = "x"\ncgroup = "/x"\n' if name != NOTIFY else f'[[{name}]]\nname = "x"\n'
            )
            if key.name in ("name", "cgroup"):
                continue
            text = head + (
                f"{key.name} = {value}" if key.expert else f"[{name}.tuning]\n{key.name} = {value}"
            )
        else:
            usual, expert = name, f"tuning.{name}"
            text = f"[{usual if key.expert else expert}]\n{key.name} = {value}"
        error = refused(text)
        wrong, right = (usual, expert) if key.expert else (expert, usual)
        assert error.key == f"{wrong}.{key.name}"
        assert error.problem == f"is now {right}.{key.name}"
        assert error.allowed.startswith(f"{key.name} below [")


REPEATED = (NOTIFY, *Kind)


def all_keys() -> list[tuple[str, Key]]:
    tables = [*TABLES.items(), *((kind.value, table) for kind, table in WORKLOAD_TABLES.items())]
    return [(name, key) for name, table in tables for key in keys_of(table)]


def where_it_is_written(table: str, key: Key) -> str:
    if table in tuple(Kind):
        return f"{table}[0].tuning.{key.name}" if key.expert else f"{table}[0].{key.name}"
    return place_of(table, key)


def wrong_values(key: Key) -> list[object]:
    """Values in TOML's form that this key must refuse."""
    found: list[object] = [["a list"], {"a": "table"}]
    match key.type_name:
        case "boolean":
            found += [0, "true"]
        case "integer" | "number":
            found += ["1", True, math.nan, math.inf, 10**30]
            if key.type_name == "integer":
                found.append(1.5)
            if key.low is not None:
                found.append(math.floor(key.low) - 1)
            if key.high is not None:
                found.append(math.ceil(key.high) + 1)
        case "size":
            found += [100, "100 ", "", " ", "1.5G", "1g", "-1", "9" * 30, "12X"]
        case _:
            found += [5, True]
            found += {
                "name": ["", "a b", "-x", "x" * 64, "ä"],
                "group": ["", "Root", "a b", "1x"],
                "path": ["", "relative", "/a/../b", "/a\x00", "/a\nb"],
                "optional-path": ["relative", "/a/../b"],
                "socket": ["", "relative", "/" + "x" * 107],
                "cgroup": ["", "/", "relative", "/a/", "/a//b", "/a/../b", "/a/.", "/a\nb"],
                "match": ["", "unit:", "/a", "slice:*.slice", "pid:x"],
                "devices": ["eth0/1", "a b", "..", "x" * 16, "ä"],
                "window": ["mon", "25:00-26:00", "x 01:00-02:00"],
                "optional-command": ["true", "/bin/sh '"],
                "optional-url": ["x", "ftp://x", "http://"],
                "incidents": ["", "slow"],
                "kinds": ["lar", "lra;batch"],
                "bands": ["copper", "system", "gold silver"],
                "contended": ["disk", "disks links", "cpu"],
                "endpoint": ["localhost:1", "127.0.0.1", "127.0.0.1:0", "1.2.3.4:70000", "::1:80"],
                "": ["no-such-choice", "", "Observe"],
            }[key.kind]
    return found


@pytest.mark.parametrize(("table", "key"), all_keys(), ids=lambda value: getattr(value, "name", value))
def test_every_key_refuses_what_it_cannot_take(table: str, key: Key):
    for value in wrong_values(key):
        raw: dict[str, object] = {"name": "x", "cgroup": "/x"} if table in tuple(Kind) else {}
        if key.expert and table in tuple(Kind):
            raw["tuning"] = {key.name: value}
        else:
            raw[key.name] = value
        error = refused(toml_of(f"tuning.{table}" if key.expert and table in TABLES else table, raw))
        assert error.key == where_it_is_written(table, key), value
        assert error.allowed
        assert key.doc, f"{key.name} must be documented"


@pytest.mark.parametrize(("table", "key"), all_keys(), ids=lambda value: getattr(value, "name", value))
def test_every_bound_is_inclusive(table: str, key: Key):
    if table in tuple(Kind) or key.low is None or key.high is None:
        return
    for value in (key.low, key.high):
        config = parse(f"[{f'tuning.{table}' if key.expert else table}]\n{key.name} = {value}", SOURCE)
        assert getattr(getattr(config, table), key.field) == value


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[daemon]\nmod = 1", "daemon.mod", "did you mean 'mode'"),
        ("[demon]", "demon", "did you mean 'daemon'"),
        ("period_s = 1", "period_s", "write it below [daemon]"),
        ("settle_s = 1", "settle_s", "write it below [tuning.policy]"),
        ("[tuning]\nsettle_s = 1", "tuning.settle_s", "write it below [tuning.policy]"),
        ("tuning = 1", "tuning", "is not a table"),
        ("[tuning.polcy]", "tuning.polcy", "did you mean 'policy'"),
        ("[tuning.lra]", "tuning.lra", "[lra.tuning]"),
        ("[policy]\nconfirm_tick = 1", "policy.confirm_tick", "did you mean 'tuning.policy.confirm_ticks'"),
        ('[host]\nkid = "auto"', "host.kid", "did you mean 'tuning.host.kind'"),
        ("[host]\nx = 1", "host.x", "tuning.host.root"),
        ("[contention]\ndisks = true", "contention.disks", 'devices = "disks"'),
        (LRA + "[lra.policy]\nsettle_s = 1", "lra[0].policy", "below [lra.tuning]"),
        (LRA + "tuning = 1", "lra[0].tuning", "is not a table"),
        (LRA + "[lra.tuning]\nsettl_s = 1", "lra[0].tuning.settl_s", "did you mean 'settle_s'"),
        (BATCH + "[batch.tuning]\nsettle_s = 1", "batch[0].tuning.settle_s", "unknown key"),
        ('[daemon]\nmode = "enforced"', "daemon.mode", "did you mean 'enforce'"),
        (
            "[tuning.policy]\nconfirm_tick = 1",
            "tuning.policy.confirm_tick",
            "did you mean 'confirm_ticks'",
        ),
        ("daemon = 5", "daemon", "is not a table"),
        ("[lra]\nname = 'x'", "lra", "beginning with [[lra]]"),
        ("lra = [1]", "lra[0]", "is not a table"),
        ("[[lra]]\nname = 'x'", "lra[0].cgroup", "is missing"),
        ("[[batch]]\ncgroup = '/x'", "batch[0].name", "is missing"),
        ("[[batch]]\nname = 'x'\ncgroup = '/x'\ntolerance_pct = 5", "batch[0].tolerance_pct", "unknown key"),
        (LRA + "max_latency_ms = 5", "lra[0].max_latency_ms", "without [lra.sli]"),
        (LRA + 'max_latency_ms = 5\n[lra.sli]\nsource = "redis"', "lra[0].max_latency_ms", 'latency = "tcp"'),
        (
            LRA
            + 'max_latency_ms = 5\n[lra.sli]\nsource = "prometheus"\nurl = "http://h/m"\nlatency_p99 = "x"',
            "lra[0].max_latency_ms",
            "latency_p95 or latency_histogram",
        ),
        (LRA + "[lra.sli]", "lra[0].sli.source", "is missing"),
        (LRA + "sli = 5", "lra[0].sli", "is not a table"),
        (LRA + "[lra.sli]\nsource = 'msql'", "lra[0].sli.source", "not an SLI source"),
        (LRA + "[lra.sli]\nsource = 'push'\nage = 5", "lra[0].sli.age", "no such option"),
        (LRA + "[lra.sli]\nsource = 'push'\nmax_age_s = [5]", "lra[0].sli.max_age_s", "not a plain value"),
        ("a = ", "", "is not TOML"),
        ("x = " + "9" * 5000, "", "is not TOML"),
        ("x = " + "[" * 5000, "", ""),
        ("#" * ((1 << 20) + 1), "", "too large"),
    ],
)
def test_refusals(text: str, key: str, words: str):
    error = refused(text)
    assert error.key == key
    assert words in str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (LRA + LRA.replace("/app/db", "/other"), "lra[1].name", "already the name of lra[0]"),
        (LRA + BATCH.replace("pi", "db"), "batch[0].name", "already the name of lra[0]"),
        (
            LRA + BATCH.replace("/batch/pi", "/app/db"),
            "batch[0].cgroup",
            "is also the cgroup of workload 'db'",
        ),
        (LRA + BATCH.replace("/batch/pi", "/app/db/x"), "batch[0].cgroup", "is inside the cgroup"),
        (LRA + BATCH.replace("/batch/pi", "/app"), "batch[0].cgroup", "contains the cgroup"),
    ],
)
def test_two_workloads_never_share_a_cgroup(text: str, key: str, words: str):
    error = refused(text)
    assert error.key == key
    assert words in str(error)


def test_siblings_with_a_common_beginning_are_no_conflict():
    assert len(parse(LRA + BATCH.replace("/batch/pi", "/app/db2"), SOURCE).workloads) == 2


@given(st.text(max_size=200))
@settings(max_examples=150)
def test_arbitrary_text(text: str):
    check_only_config_error(text)


tables = st.sampled_from(["daemon", "store", "policy", "host", "tuning", "lra", "batch", "sli", "x"])
keys = st.one_of(st.sampled_from([key.name for _, key in all_keys()]), st.text(max_size=8))
scalars = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["enforce", "/a", "1G", "push"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(tables, values, max_size=4))
@settings(max_examples=200)
def test_arbitrary_toml_shaped_data(data: dict[str, object]):
    check_only_config_error("\n".join(f"{literal(name)} = {literal(value)}" for name, value in data.items()))


def check_only_config_error(text: str) -> None:
    try:
        answer: Config | ConfigError = parse(text, SOURCE)
    except ConfigError as exc:
        answer = exc
    assert isinstance(answer, Config) or str(answer).startswith(SOURCE)


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,20}", fullmatch=True)
cgroups = st.from_regex(r"(/[a-z\"\\ü .][a-z\"\\ü -]{0,6}){1,3}", fullmatch=True).filter(
    lambda path: all(part not in ("", ".", "..") for part in path.split("/")[1:])
)


@given(
    st.builds(
        WorkloadSpec,
        name=names,
        kind=st.just(Kind.LRA),
        cgroup=cgroups,
        priority=st.integers(0, 10000),
        mode=st.sampled_from([None, *Mode]),
        objective=st.builds(
            Objective,
            tolerance_pct=st.floats(0.1, 90),
            min_work_rate_per_s=st.one_of(st.none(), st.floats(1, 1e6)),
            latency_percentile=st.sampled_from(["p50", "p95", "p99"]),
        ),
        sli=st.sampled_from([None, SliSpec("push"), SliSpec("push", (("max_age_s", "3"),))]),
        band=st.sampled_from([None, "gold", "silver"]),
        exploration=st.sampled_from(list(Exploration)),
        application=st.sampled_from(["", "shop"]),
        policy=st.sampled_from([(), (("cusum_k", 1.0), ("settle_s", 2.0))]),
    )
)
def test_a_workload_written_reads_back_the_same(spec: WorkloadSpec):
    assert parse(to_toml(spec), SOURCE).workloads == (spec,)


@pytest.mark.parametrize(
    ("key", "text", "written"),
    [
        ("port", "46379", "46379"),
        ("timeout_s", "2", "2"),
        ("timeout_s", "0.5", "0.5"),
        ("timeout_s", "1e1", '"1e1"'),  # as a number it would read back as 10.0
        ("port", "03306", '"03306"'),
        ("user", "4711", '"4711"'),
    ],
)
def test_a_number_of_an_indicator_is_written_as_one(key: str, text: str, written: str):
    sli = SliSpec("mysql", tuple(sorted({"host": "127.0.0.1", key: text}.items())))
    spec = WorkloadSpec(name="db", kind=Kind.LRA, cgroup="/db", sli=sli)
    assert f"\n{key} = {written}\n" in to_toml(spec)
    assert parse(to_toml(spec), SOURCE).workloads == (spec,)


@given(
    st.builds(
        WorkloadSpec,
        name=names,
        kind=st.just(Kind.BATCH),
        cgroup=cgroups,
        min_cores=st.none() | st.floats(0, 4096),
        max_starvation_s=st.none() | st.floats(5, 86400),
        min_memory_bytes=st.integers(0, 1 << 62),
        band=st.sampled_from([None, "silver", "copper"]),
    )
)
def test_a_batch_workload_written_reads_back_the_same(spec: WorkloadSpec):
    assert parse(to_toml(spec), SOURCE).workloads == (spec,)


def toml_of(table: str, raw: dict[str, object]) -> str:
    head = f"[[{table}]]" if table in tuple(Kind) else f"[{table}]"
    return "\n".join([head, *(f"{literal(key)} = {literal(value)}" for key, value in raw.items())])


def literal(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            body = "".join(
                c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}"
                for c in value
                if not is_surrogate(c)
            )
            return f'"{body}"'
        case dict():
            return "{" + ", ".join(f"{literal(k)} = {literal(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(literal, value)) + "]"
        case float():
            return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value), repr(value))
    return repr(value)


def is_surrogate(character: str) -> bool:
    return 0xD800 <= ord(character) <= 0xDFFF


def test_the_literal_helper_writes_toml():
    data = {"a": [1, 2.5, True, 'x"\\\n'], "b": {"c": "ä"}}
    text = "\n".join(f"{key} = {literal(value)}" for key, value in data.items())
    assert tomllib.loads(text) == data


@pytest.mark.parametrize(
    ("kind", "band"), [("lra", "copper"), ("batch", "gold"), ("lra", "system"), ("batch", "")]
)
def test_a_band_is_one_of_its_kind(kind: str, band: str):
    text = f'[[{kind}]]\nname = "a"\ncgroup = "/a"\nband = "{band}"\n'
    with pytest.raises(
        ConfigError, match=rf"{kind}\[0\]\.band: .* is not an accepted value.*\(allowed: .*silver"
    ):
        parse(text, SOURCE)


@pytest.mark.parametrize("source", ["mysql", "redis", "postgresql"])
def test_a_latency_objective_is_refused_where_the_source_measures_none(source: str) -> None:
    """An objective that nothing measures was accepted and ignored."""
    said = refused(LRA + f'max_latency_ms = 5\n[lra.sli]\nsource = "{source}"\n')
    assert said.key == "lra[0].max_latency_ms"
    assert "measures no latency" in str(said)
    assert 'latency = "tcp"' in said.allowed
    parse(LRA + f'max_latency_ms = 5\n[lra.sli]\nsource = "{source}"\nlatency = "tcp"\n', SOURCE)
    assert "without [lra.sli]" in str(refused(LRA + "max_latency_ms = 5\n"))


def test_batch_alone_is_touched_unless_the_configuration_says_otherwise() -> None:
    """What a trial may do to an LRA is the operator's choice, and the default narrows nothing of its own."""
    assert [(lra.touch, lra.exploration) for lra in parse(LRA, SOURCE).workloads] == [
        (Touch.BATCH, Exploration.BATCH)
    ]
