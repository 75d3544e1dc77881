"""Workloads that declare themselves: what is read of units and containers, what is granted, what is refused."""

from __future__ import annotations

import json
import os
import string
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perphd.agent.profiling.run import find_lra
from perphd.cluster.asking import BAND_LABEL
from perphd.config.discovery import MAX_INSTANCES, Discovery, Found
from perphd.config.file import Config, nothing_to_do, parse, reloaded
from perphd.config.host_check import check_against_host, check_everything
from perphd.config.opt_in import DECLARATION, OptIn
from perphd.config.tables import OptInConfig
from perphd.config.workloads import BatchTable, LraTable
from perphd.domain.errors import ConfigError
from perphd.domain.workload import LABEL_PREFIX, Kind, Mode, WorkloadSpec
from perphd.host import unit_sections
from perphd.host.cgroup import discover
from perphd.host.containers import DOCKER
from perphd.host.fs import RealFs
from perphd.host.lookup import Lookup
from perphd.host.unit_sections import UnitSections
from tests.unit.host_tree import write_tree

V2 = {
    "/proc/self/mounts": "cgroup2 /cg cgroup2 rw 0 0\n",
    "/proc/self/cgroup": "0::/system.slice/perphd.service\n",
    "/cg/cgroup.controllers": "cpu memory\n",
    "/cg/system.slice/perphd.service/cgroup.procs": "",
}
ETC, LIB = "/etc/systemd/system", "/usr/lib/systemd/system"
DB = f"{LIB}/db.service"
DROP_IN = f"{ETC}/db.service.d/perphd.conf"
BOTH = OptInConfig(units="lra,batch", containers="lra,batch")
UNITS = OptInConfig(units="lra,batch")
A, B, C = "a" * 64, "b" * 64, "c" * 64


def unit(*lines: str, section: str = "X-Perphd") -> str:
    return "\n".join(
        ["[Unit]", "Description=x", f"[{section}]", *lines, "[Service]", "ExecStart=/bin/true", ""]
    )


def host(root: Path, files: Mapping[str, str], *units: str) -> Discovery:
    """A host on which these units run."""
    groups = {f"/cg/system.slice/{name}/cgroup.procs": "" for name in units}
    fs = write_tree(root, {**V2, **groups, **files})
    return Discovery(fs, Lookup(fs, discover(fs)))


def docker(container: str, name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """A running container of Docker with these labels."""
    config = {"Name": f"/{name}", "Config": {"Labels": dict(labels)}}
    return {
        f"/cg/system.slice/docker-{container}.scope/cgroup.procs": "",
        DOCKER.format(container): json.dumps(config),
    }


def labels(**said: str) -> dict[str, str]:
    return {f"{LABEL_PREFIX}{key.replace('__', '.')}": value for key, value in said.items()}


def look(root: Path, files: Mapping[str, str], *units: str, config: OptInConfig = BOTH) -> Found:
    return host(root, files, *units).look([], [], config)


def one(root: Path, *lines: str, config: OptInConfig = UNITS) -> WorkloadSpec:
    """What a unit with these lines becomes."""
    found = look(root, {DB: unit(*lines)}, "db.service", config=config)
    assert not found.problems, found.problems
    (spec,) = found.specs.values()
    return spec


def refusal(root: Path, *lines: str, config: OptInConfig = UNITS) -> str:
    found = look(root, {DB: unit(*lines)}, "db.service", config=config)
    assert not found.specs
    return found.problems[DECLARATION]


def test_profile_finds_an_lra_that_declares_itself_or_says_why_not(tmp_path: Path) -> None:
    fs = write_tree(tmp_path, {**V2, "/cg/system.slice/db.service/cgroup.procs": "", DB: unit("kind=lra")})
    opened, closed = Config(opt_in=UNITS), Config()
    found = find_lra(opened, "db", fs)
    assert (found.kind, found.cgroup) == (Kind.LRA, "/system.slice/db.service")
    with pytest.raises(ConfigError, match=r"named 'nobody' \(allowed: db\)"):
        find_lra(opened, "nobody", fs)
    with pytest.raises(
        ConfigError, match=r"named 'db': db\.service declares itself .* units is empty in \[opt_in\]"
    ):
        find_lra(closed, "db", fs)
    write_tree(tmp_path, {DROP_IN: "[X-Perphd]\ntolerence_pct=5\n"})
    with pytest.raises(ConfigError, match=r"named 'db': .*perphd.conf:2: .*did you mean 'tolerance_pct'"):
        find_lra(opened, "db", fs)


# -- units ----------------------------------------------------------------------------------------------------------


def test_a_unit_says_what_a_table_of_the_configuration_says(tmp_path: Path) -> None:
    said = one(
        tmp_path,
        "kind = lra",
        "tolerance_pct=5",
        "max_latency_ms = 2.5",
        "class=database",
        "sli.source=mysql",
        "sli.socket=/run/db.sock",
        "sli.latency=tcp",
        "sli.user=me",
    )
    table = (
        '[[lra]]\nname = "db"\nmatch = "unit:db.service"\ntolerance_pct = 5\nmax_latency_ms = 2.5\nclass = "database"\n'
        '[lra.sli]\nsource = "mysql"\nsocket = "/run/db.sock"\nlatency = "tcp"\nuser = "me"\n'
    )
    (spec,) = parse(table, "f").matches
    differ = {
        item.name: getattr(said, item.name)
        for item in fields(spec)
        if getattr(spec, item.name) != getattr(said, item.name)
    }
    assert differ == {"cgroup": "/system.slice/db.service", "declared_by": f"the unit's file {DB}"}


def test_drop_ins_follow_the_file_and_an_empty_value_takes_back(tmp_path: Path) -> None:
    files = {
        DB: unit("kind=lra", "tolerance_pct=5", "class=database"),
        f"{LIB}/db.service.d/10-vendor.conf": "[X-Perphd]\ntolerance_pct=7\nlatency_percentile=p99\n",
        f"{ETC}/db.service.d/20-site.conf": "[X-Perphd]\nclass=\ntolerance_pct=9\n",
    }
    (spec,) = look(tmp_path, files, "db.service").specs.values()
    assert spec.objective.tolerance_pct == 9.0
    assert spec.objective.latency_percentile == "p99"
    assert spec.app_class == "none"
    assert spec.declared_by == f"the unit's drop-in {ETC}/db.service.d/20-site.conf"


def test_of_two_files_with_one_name_the_administrators_counts(tmp_path: Path) -> None:
    files = {
        DB: unit("kind=lra"),
        f"{ETC}/db.service": unit("kind=batch"),
        f"{LIB}/db.service.d/x.conf": "[X-Perphd]\nmode=nonsense\n",
        f"{ETC}/db.service.d/x.conf": "[X-Perphd]\nmode=observe\n",
        f"{ETC}/db.service.d/y.txt": "[X-Perphd]\nmode=nonsense\n",
    }
    (spec,) = look(tmp_path, files, "db.service").specs.values()
    assert (spec.kind, spec.mode) == (Kind.BATCH, Mode.OBSERVE)


def test_an_instance_has_what_its_template_says_and_its_own_drop_ins(tmp_path: Path) -> None:
    files = {
        f"{LIB}/worker@.service": unit("kind=batch"),
        f"{ETC}/worker@b.service.d/p.conf": "[X-Perphd]\nkind=\n",
        f"{ETC}/worker@c.service.d/p.conf": "[X-Perphd]\nmode=observe\n",
    }
    found = look(tmp_path, files, "worker@a.service", "worker@b.service", "worker@c.service")
    assert {name: spec.mode for name, spec in found.specs.items()} == {
        "worker@a": None,
        "worker@c": Mode.OBSERVE,
    }
    assert "X-Perphd.kind: is missing" in found.problems[DECLARATION]


def test_what_is_commented_continued_or_in_another_section_is_read_as_systemd_reads_it() -> None:
    text = (
        "[X-Perphd]\r\n# kind=lra\n;kind=lra\nkind= \\\n# still\n  batch\n\n"
        "[X-Perphd2]\nmode=a\n[X-Perphd]\nband=copper\\"
    )
    said = unit_sections.parse(text, "X-Perphd", "f")
    assert said is not None
    assert [(item.key, item.value, item.line) for item in said] == [
        ("kind", "batch", 4),
        ("band", "copper", 11),
    ]
    assert unit_sections.parse("[Service]\nkind=lra\n", "X-Perphd", "f") is None
    assert unit_sections.parse("kind=lra\n", "X-Perphd", "f") is None


def test_neither_links_nor_files_of_ordinary_users_are_read(tmp_path: Path) -> None:
    looks = host(tmp_path, {f"{ETC}/db.service.d/": "", "/home/db.conf": unit("kind=lra")}, "db.service")
    (tmp_path / DROP_IN[1:]).symlink_to(tmp_path / "home/db.conf")
    assert not looks.look([], [], UNITS).specs
    (tmp_path / DROP_IN[1:]).unlink()
    (tmp_path / DROP_IN[1:]).write_text(unit("kind=lra"))
    assert set(looks.look([], [], UNITS).specs) == {"db"}

    class Strangers(RealFs):
        """Everything belongs to somebody who is neither root nor this user."""

        def read_strangers(self, path: str, most_bytes: int) -> tuple[int, bytes]:
            return os.geteuid() + 1000, super().read_strangers(path, most_bytes)[1]

    fs = Strangers(tmp_path)
    assert not Discovery(fs, Lookup(fs, discover(fs))).look([], [], UNITS).specs


def test_a_masking_link_hides_what_the_vendor_says(tmp_path: Path) -> None:
    files = {f"{LIB}/db.service.d/p.conf": "[X-Perphd]\nkind=lra\n", f"{ETC}/db.service.d/": ""}
    looks = host(tmp_path, files, "db.service")
    assert looks.look([], [], UNITS).specs
    (tmp_path / f"{ETC}/db.service.d/p.conf"[1:]).symlink_to("/dev/null")
    assert not looks.look([], [], UNITS).specs


def test_units_of_a_users_own_manager_are_nobodys(tmp_path: Path) -> None:
    files = {f"{ETC}/evil.service": unit("kind=lra")}
    inside = "/cg/user.slice/user-1000.slice/user@1000.service/app.slice/evil.service/cgroup.procs"
    assert not look(tmp_path, {**files, inside: ""}).specs


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["kind=lra", "tolerence_pct=5"],
            "X-Perphd.tolerence_pct: unknown key; did you mean 'tolerance_pct'?",
        ),
        (["Kind=lra"], "X-Perphd.Kind: unknown key; did you mean 'kind'?"),
        (["band=silver"], 'X-Perphd.kind: is missing (allowed: "lra", "batch")'),
        (
            ["kind=lar"],
            "X-Perphd.kind: 'lar' is not an accepted value; did you mean 'lra'? (allowed: \"lra\", \"batch\")",
        ),
        (
            ["kind=lra", "tolerance_pct=95"],
            "tolerance_pct: 95 is out of range (allowed: a number from 0.1 to 90 %)",
        ),
        (["kind=lra", "tolerance_pct=five"], "tolerance_pct: 'five' is not a number"),
        (
            ["kind=lra", "max_latency_ms=5"],
            "max_latency_ms: 5 cannot be judged: no latency is measured without",
        ),
        (
            ["kind=lra", "sli.socket=/x"],
            "X-Perphd.sli.source: is missing (allowed: the name of an SLI source)",
        ),
        (["kind=lra", "sli.source=mysql", "sli.sokcet=/x"], "sli.sokcet: unknown option"),
        (["kind=lra", "sli=mysql"], "X-Perphd.sli: is a table (allowed: sli.source, sli.OPTION)"),
        (["kind=lra", "kind batch"], "X-Perphd: 'kind batch' assigns nothing (allowed: KEY=VALUE)"),
        (["kind=batch", "tolerance_pct=5"], "X-Perphd.tolerance_pct: unknown key"),
    ],
)
def test_mistakes_are_refused_as_in_the_configuration(tmp_path: Path, lines: list[str], said: str) -> None:
    text = refusal(tmp_path, *lines)
    if "unknown option" in said:
        said = "X-Perphd.sli.sokcet: "
    assert said in text
    assert f"{DB}:" in text or "is missing" in text


def test_a_mistake_is_named_with_the_file_and_line_where_it_stands(tmp_path: Path) -> None:
    files = {DB: unit("kind=lra"), DROP_IN: "[X-Perphd]\n\ntolerance_pct=no\n"}
    found = look(tmp_path, files, "db.service")
    assert f"{DROP_IN}:3: X-Perphd.tolerance_pct: 'no' is not a number" in found.problems[DECLARATION]


# -- what is granted ------------------------------------------------------------------------------------------------


def test_nobody_declares_itself_unless_the_operator_says_so(tmp_path: Path) -> None:
    config = parse("", "f").opt_in
    assert config == OptInConfig()
    assert not config.is_on
    files = {DB: unit("kind=lra"), **docker(A, "web", labels(kind="lra"))}
    found = look(tmp_path, files, "db.service", config=config)
    assert found == Found()
    assert OptIn(RealFs(tmp_path), Lookup(RealFs(tmp_path), discover(RealFs(tmp_path)))).remarks(config) == [
        f"db.service declares itself in {DB}, which is not read: units is empty in [opt_in]"
    ]


def test_each_kind_is_allowed_to_each_origin_apart(tmp_path: Path) -> None:
    config = parse('[opt_in]\nunits = "lra"\ncontainers = "batch, batch"\n', "f").opt_in
    files = {
        DB: unit("kind=lra"),
        f"{LIB}/night.service": unit("kind=batch"),
        **docker(A, "web", labels(kind="lra")),
        **docker(B, "crunch", labels(kind="batch")),
    }
    found = look(tmp_path, files, "db.service", "night.service", config=config)
    assert set(found.specs) == {"db", "container.crunch"}
    said = found.problems[DECLARATION]
    assert "X-Perphd.kind: 'batch' is not allowed by units in [opt_in] (allowed: \"lra\")" in said
    assert "container 'web': perphd.io/kind: 'lra' is not allowed by containers in [opt_in]" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('units = "lar"', "opt_in.units: 'lar' names 'lar', which is not accepted; did you mean 'lra'?"),
        ("units = true", "opt_in.units: true is not text"),
        ('bands = "copper"', "opt_in.bands: 'copper' names 'copper'"),
        ('unit = "lra"', "opt_in.unit: unknown key; did you mean 'units'?"),
    ],
)
def test_the_operators_own_mistakes_are_refused(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"[opt_in]\n{line}\n", "f")
    assert said in str(caught.value)


RESERVED = {
    "lra": {*(item.name for item in fields(LraTable))} | {"tuning.cusum_k"},
    "batch": {*(item.name for item in fields(BatchTable))},
}
GRANTED = {
    "lra": {"mode", "band", "tolerance_pct", "delay_tolerance_pct", "latency_percentile"},
    "batch": {"mode", "band"},
}


@pytest.mark.parametrize("kind", ["lra", "batch"])
@pytest.mark.parametrize("is_unit", [True, False])
def test_every_other_key_stays_the_operators(tmp_path: Path, kind: str, is_unit: bool) -> None:
    own = {"min_work_rate_per_s", "max_latency_ms"} if is_unit and kind == "lra" else set()
    for number, key in enumerate(sorted(RESERVED[kind] - GRANTED[kind] - own - {"app_class"})):
        root = tmp_path / str(number)
        if is_unit:
            found = look(root, {DB: unit(f"kind={kind}", f"{key}=1")}, "db.service")
        else:
            found = look(root, docker(A, "web", {f"{LABEL_PREFIX}kind": kind, f"{LABEL_PREFIX}{key}": "1"}))
        assert not found.specs, key
        who = "a unit" if is_unit else "a container"
        text = found.problems[DECLARATION]
        assert (
            f"{key}: may not be set by {who}: it belongs in the operator's configuration" in text
            or f"{key}: may not be set by {who}: least_latency_ms is 0 in [tuning.opt_in]" in text
            or "unknown" in text
        )


def test_nobody_enforces_or_runs_commands_or_takes_a_band_by_itself(tmp_path: Path) -> None:
    assert "X-Perphd.mode: 'enforce' is reserved for the operator" in refusal(
        tmp_path / "1", "kind=lra", "mode=enforce"
    )
    command = refusal(tmp_path / "2", "kind=lra", "sli.source=command", "sli.command=/bin/true")
    assert (
        "X-Perphd.sli.source: 'command' runs as root: it is accepted only in a file of the configuration"
        in command
    )
    gold = refusal(tmp_path / "3", "kind=lra", "band=gold")
    assert "X-Perphd.band: 'gold' is not allowed by bands in [opt_in] (allowed: \"silver\")" in gold
    silver = refusal(tmp_path / "4", "kind=batch", "band=silver")
    assert '(allowed: "copper")' in silver
    assert one(tmp_path / "5", "kind=lra", "band=silver").band == "silver"
    assert one(tmp_path / "6", "kind=batch", "band=copper").band == "copper"
    more = OptInConfig(units="lra,batch", bands="gold")
    assert one(tmp_path / "7", "kind=lra", "band=gold", config=more).band == "gold"
    assert "band: 'gold' is not an accepted value" in refusal(
        tmp_path / "8", "kind=batch", "band=gold", config=more
    )


def test_a_container_asks_for_no_more_than_is_usual_and_names_nothing_to_read(tmp_path: Path) -> None:
    def said(**keys: str) -> Found:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        root.mkdir()
        return look(root, docker(A, "web", labels(**keys)))

    assert (
        said(kind="lra", tolerance_pct="20", delay_tolerance_pct="80")
        .specs["container.web"]
        .objective.tolerance_pct
        == 20
    )
    for key, allowed in (("tolerance_pct", 10), ("delay_tolerance_pct", 50)):
        text = said(kind="lra", **{key: "1"}).problems[DECLARATION]
        assert f"perphd.io/{key}: 1 is stricter than the default" in text
        assert f"(allowed: {allowed} or more)" in text
    for key in ("sli__source", "min_work_rate_per_s", "version_from", "cgroup", "name"):
        assert "may not be set by a container" in said(kind="lra", **{key: "mysql"}).problems[DECLARATION]


# -- containers and pods --------------------------------------------------------------------------------------------


def test_labels_have_the_names_that_the_extender_reads(tmp_path: Path) -> None:
    assert f"{LABEL_PREFIX}band" == BAND_LABEL
    only_the_band = look(tmp_path, docker(A, "web", {BAND_LABEL: "gold"}))
    assert only_the_band == Found(), "that is said to a scheduler"
    # With a kind it is said to this host as well.
    found = look(tmp_path, docker(A, "web", {BAND_LABEL: "silver", f"{LABEL_PREFIX}kind": "lra"}))
    spec = found.specs["container.web"]
    assert (spec.band, spec.match) == ("silver", "container:web")
    assert spec.declared_by == "labels or annotations of container 'web'"


def test_a_pods_sandbox_declares_nothing(tmp_path: Path) -> None:
    said = labels(kind="lra")
    sandboxes = [{"io.kubernetes.cri.container-type": "sandbox"}, {"io.kubernetes.container.name": "POD"}]
    files = docker(A, "web", said)
    for container, more in zip((B, C), sandboxes, strict=True):
        files |= docker(container, f"pause-{container[0]}", {**said, **more})
    assert set(look(tmp_path, files).specs) == {"container.web"}


def test_whoever_was_there_first_is_not_displaced_by_many(tmp_path: Path) -> None:
    looks = host(tmp_path, docker("f" * 64, "first", labels(kind="batch")))
    assert set(looks.look([], [], BOTH).specs) == {"container.first"}
    many: dict[str, str] = {}
    for number in range(MAX_INSTANCES + 5):
        many |= docker(f"{number:064x}", f"c{number}", labels(kind="batch"))
    write_tree(tmp_path, many)
    found = looks.look([], [], BOTH)
    assert len(found.specs) == MAX_INSTANCES
    assert "container.first" in found.specs
    assert f"{MAX_INSTANCES} workloads declare themselves; no more are taken" in found.problems[DECLARATION]


# -- the operator's word ----------------------------------------------------------------------------------------------


def test_what_the_configuration_says_counts(tmp_path: Path) -> None:
    files = {
        DB: unit("kind=batch"),
        f"{LIB}/app.service": unit("kind=lra"),
        f"{LIB}/free.service": unit("kind=lra"),
    }
    looks = host(tmp_path, files, "db.service", "app.service", "free.service")
    given_ = [WorkloadSpec("mine", Kind.LRA, "/system.slice/db.service")]
    matched = [WorkloadSpec("too", Kind.LRA, "", match="unit:app.service")]
    found = looks.look(matched, given_, UNITS)
    assert {name: spec.declared_by != "" for name, spec in found.specs.items()} == {
        "too": False,
        "free": True,
    }
    assert found.declared_as == {"too": "too", "free": DECLARATION}
    assert not found.problems
    assert found.overruled == tuple(
        f"{name}.service declares itself, but the operator's declaration counts" for name in ("app", "db")
    )


def test_names_and_places_collide_as_others_do(tmp_path: Path) -> None:
    files = {
        DB: unit("kind=lra"),
        f"{LIB}/system.slice": unit("kind=batch"),
        f"{ETC}/perphd.service": unit("kind=lra"),
    }
    found = host(tmp_path, files, "db.service").look(
        [WorkloadSpec("db", Kind.LRA, "", match="pid:99999")], [], UNITS
    )
    assert not found.specs
    said = found.problems[DECLARATION]
    assert "system.slice: /system.slice contains perphd itself" in said
    assert "db.service: /system.slice/db.service would be called 'db', as another workload is" in said


def test_config_check_says_what_is_wrong_of_units_that_do_not_run(tmp_path: Path) -> None:
    looks = {f"{ETC}/late.service.d/p.conf": "[X-Perphd]\nkind=lar\n", DB: unit("kind=lra")}
    fs = write_tree(tmp_path, {**V2, **looks, "/cg/system.slice/db.service/cgroup.procs": ""})
    config = parse(
        '[opt_in]\nunits = "lra"\n[[batch]]\nname = "b"\ncgroup = "/system.slice/db.service"\n', "f"
    )
    said = check_everything(config, fs, discover(fs))
    assert any(
        "late.service.d/p.conf:2: X-Perphd.kind: 'lar' is not an accepted value" in text for text in said
    )
    counts = "db.service declares itself, but the operator's declaration counts"
    assert counts in said
    assert check_against_host(config, fs, discover(fs)) == [counts], "a daemon that starts says less"


def test_a_reload_takes_the_table_over_and_it_is_something_to_do() -> None:
    running, read = parse("", "f"), parse('[opt_in]\nunits = "lra,batch"\n', "f")
    taken, waiting = reloaded(running, read)
    assert taken.opt_in.units == "lra,batch"
    assert waiting == ()
    assert "no workload is declared" in nothing_to_do(running)
    assert nothing_to_do(read) == ""


# -- whatever is written ----------------------------------------------------------------------------------------------

KEY = st.one_of(
    st.sampled_from(
        [
            "kind",
            "band",
            "mode",
            "class",
            "tolerance_pct",
            "sli.source",
            "sli.socket",
            "max_latency_ms",
            "name",
        ]
    ),
    st.text(max_size=20),
)
VALUE = st.one_of(
    st.sampled_from(
        ["lra", "batch", "gold", "observe", "enforce", "1e999", "nan", "-1", "5", "command", "٣", "9" * 400]
    ),
    st.text(max_size=40),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.text(max_size=300),
        st.lists(st.tuples(KEY, VALUE), max_size=8).map(
            lambda pairs: "[X-Perphd]\n" + "\n".join(f"{key}={value}" for key, value in pairs)
        ),
    )
)
@example("[X-Perphd]\n\\")
@example("[X-Perphd]\n=\n[X-Perphd]\nkind=lra\\\n")
@example("[X-Perphd]\nkind=lra\ntolerance_pct=" + "9" * 5000)
@example("[X-Perphd]\nkind=lra\n" + "sli.a=1\n" * 2000)
def test_no_file_of_a_unit_breaks_the_look_or_grants_more(tmp_path: Path, text: str) -> None:
    looks = host(tmp_path, {f"{ETC}/db.service.d/": ""}, "db.service")
    (tmp_path / DROP_IN[1:]).write_bytes(text.encode(errors="surrogatepass"))
    found = looks.look([], [], UNITS)
    for spec in found.specs.values():
        assert (spec.name, spec.cgroup) == ("db", "/system.slice/db.service")
        assert spec.mode is not Mode.ENFORCE
        assert spec.band in (None, "silver" if spec.kind is Kind.LRA else "copper")
        assert spec.sli is None or spec.sli.source != "command"
        assert (spec.priority, spec.min_cores, spec.policy, spec.version_from) == (100, None, (), "auto")
    for problem in found.problems.values():
        assert set(problem) - set(string.whitespace) == {
            char for char in problem if char.isprintable() and char != " "
        }


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEY, VALUE, max_size=8), st.text(min_size=1, max_size=40))
def test_no_label_breaks_the_look_or_grants_more(tmp_path: Path, said: dict[str, str], name: str) -> None:
    found = look(tmp_path, docker(A, name, {f"{LABEL_PREFIX}{key}": value for key, value in said.items()}))
    for spec in found.specs.values():
        assert spec.sli is None
        assert spec.mode is not Mode.ENFORCE
        assert spec.objective.tolerance_pct >= 10.0
        assert spec.objective.max_latency_ms is None
    for problem in found.problems.values():
        assert all(char.isprintable() for char in problem), problem


@settings(max_examples=100)
@given(st.binary(max_size=400))
def test_any_bytes_are_parsed(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.mktemp("units")
    write_tree(root, {f"{ETC}/": ""})
    (root / f"{ETC}/db.service"[1:]).write_bytes(b"[X-Perphd]\n" + data)
    section = UnitSections(RealFs(root), "X-Perphd").of("db.service")
    assert section is not None
    assert all(item.value for item in section.assigned.values())
