"""``match``: its grammar, what is found for it, and how the agent follows what it found."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perphd.config.discovery import MAX_INSTANCES, Discovery, Found
from perphd.config.file import parse
from perphd.config.match import (
    ALLOWED,
    Match,
    MatchKind,
    glob,
    instance_name,
    is_wild,
    named,
    parse_match,
    slice_path,
)
from perphd.config.schema import _KINDS
from perphd.config.workloads import RUNTIME_FILE, WorkloadNames, read_runtime, remember_runtime, to_toml
from perphd.domain.errors import ConfigError, ParseError
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.lookup import READ_AGAIN, Lookup
from tests.unit.host_tree import write_tree

V2 = {
    "/proc/self/mounts": "cgroup2 /cg cgroup2 rw 0 0\n",
    "/proc/self/cgroup": "0::/system.slice/perphd.service\n",
    "/cg/cgroup.controllers": "cpu memory\n",
}
A, B = "a" * 64, "b" * 64
TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc"), max_codepoint=0x2FF), min_size=1, max_size=30)
PATTERN = st.text(st.sampled_from("ab-._@\\*?[]!"), min_size=1, max_size=12)


# -- grammar --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "unit:mariadb.service",
        "unit:worker@*.service",
        "unit:job-[0-9]*",
        "slice:batch-low.slice",
        "cgroup:/kubepods.slice/*/cri-*",
        "container:web-?",
        "container:shop/*/nginx",
        "label:app.kubernetes.io/name=shop",
        "label:tier=b*",
        "pid:4711",
        "pidfile:/run/x.pid",
    ],
)
def test_what_may_be_written_reads_back_the_same(text: str) -> None:
    assert str(parse_match(text)) == text
    table = f'[[batch]]\nname = "x"\nmatch = {json.dumps(text)}\n'
    if text.startswith("pid:"):
        return  # not in a file: see below
    (spec,) = parse(table, "f").matches
    assert (spec.match, spec.cgroup) == (text, "")
    assert to_toml(spec) == table


@pytest.mark.parametrize(
    "text",
    [
        *("", "unit", "unit:", "units:a.service", "Unit:a.service", ":a", "unit:/a.service", "unit:mariadb"),
        *("slice:a", "slice:*.slice", "slice:-a.slice", "slice:a--b.slice", "slice:a/b.slice"),
        *("cgroup:a", "cgroup:/", "cgroup:/a/", "cgroup:/a//b", "cgroup:/a/../b", "cgroup:/a/\n"),
        *("pid:0", "pid:1", "pid:-3", "pid:x", "pid:*", "pid:99999999999", "pidfile:x", "pidfile:/a/../b"),
        *("label:app", "label:=x", "label:app=", "label:a b=x", "container:/x", "container:\x00"),
        "unit:" + "a" * 1001 + ".service",
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ParseError, match=re.escape(ALLOWED)):
        parse_match(text)


@given(
    st.one_of(TEXT, st.builds(lambda kind, rest: f"{kind}:{rest}", st.sampled_from(list(MatchKind)), TEXT))
)
def test_no_text_breaks_the_parser_and_what_is_taken_is_stable(text: str) -> None:
    try:
        match = parse_match(text)
    except ParseError:
        return
    assert parse_match(str(match)) == match
    assert _KINDS["match"].read(text) == str(match)


@given(PATTERN)
@example("[!]")
@example("[]")
@example("[]a]")
@example("[z-a]")
@example("**")
def test_every_pattern_is_an_expression_with_a_group_for_each_wildcard(pattern: str) -> None:
    expression = glob(pattern)
    assert (expression.groups > 0) == is_wild(pattern)
    assert expression.fullmatch(f"x/{pattern}/y") is None
    if not is_wild(pattern):
        assert expression.fullmatch(pattern) is not None


@given(TEXT.filter(lambda text: not set(text) & set("*?[")), TEXT)
def test_text_without_wildcards_matches_itself_alone(text: str, other: str) -> None:
    assert glob(text).fullmatch(text)
    assert bool(glob(text).fullmatch(other)) == (text == other)


@pytest.mark.parametrize(
    ("pattern", "text", "captured"),
    [
        ("worker@*.service", "worker@7.service", ("7",)),
        ("worker@*.service", "worker@.service", ("",)),
        ("a?c", "abc", ("b",)),
        ("a?c", "a/c", None),
        ("*", "a/b", None),
        ("[0-9a]x", "7x", ("7",)),
        ("[!0-9]x", "7x", None),
        ("[!0-9]x", "/x", None),
        ("[]]x", "]x", ("]",)),
        ("dev-disk-by\\x2duuid*", "dev-disk-by\\x2duuid-1", ("-1",)),
        ("a[b", "a[b", ()),
        ("a.c", "abc", None),
    ],
)
def test_wildcards(pattern: str, text: str, captured: tuple[str, ...] | None) -> None:
    assert Match(MatchKind.CGROUP, pattern).captures(text) == captured


@given(
    st.text(st.sampled_from("ab-*?"), min_size=1, max_size=10), st.text(st.sampled_from("ab-"), max_size=12)
)
@example("*ab*b", "aabab")
@example("*a*a", "aa")
@example("*?*a", "aa")
def test_several_wildcards_match_as_in_a_shell_and_account_for_the_whole_text(
    pattern: str, text: str
) -> None:
    captured = Match(MatchKind.CGROUP, pattern).captures(text)
    assert (captured is not None) == fnmatch.fnmatchcase(text, pattern)
    if captured is not None:
        literal = sum(char not in "*?" for char in pattern)
        assert sum(map(len, captured)) + literal == len(text)


@pytest.mark.parametrize("pattern", ["*-*-*-*-*-*-*-*x", "*-" * 100 + "x", "*?-*?-*?-*?-*?-*?-*?-*[a-z]"])
def test_a_name_that_a_tenant_chose_takes_no_exponential_time(pattern: str) -> None:
    signal.alarm(20)  # it would take longer than the universe
    try:
        assert Match(MatchKind.UNIT, pattern).captures("-" * 250) is None
    finally:
        signal.alarm(0)
    assert Match(MatchKind.UNIT, pattern).captures("-" * 250 + "x") is not None


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,39}", fullmatch=True),
    st.lists(st.text(max_size=80), max_size=3).map(tuple),
    st.text(max_size=20),
)
def test_derived_names_are_names_and_tell_instances_apart(
    base: str, captured: tuple[str, ...], path: str
) -> None:
    name = instance_name(base, captured, path)
    assert _KINDS["name"].read(name) == name
    assert name.startswith(f"{base}.")
    assert name == instance_name(base, captured, path)
    if captured != ("7",):
        assert name != instance_name(base, ("7",), path + "x")


def test_a_plain_instance_is_called_by_what_the_wildcard_stood_for() -> None:
    assert instance_name("w", ("7",), "/x") == "w.7"
    assert re.fullmatch(r"w\.shop-web-[0-9a-f]{6}", instance_name("w", ("shop/web",), "/x"))
    assert re.fullmatch(r"w\.[0-9a-f]{6}", instance_name("w", ("",), "/x"))


def test_slices_lie_where_their_names_say() -> None:
    assert slice_path("a-b-c.slice") == "/a.slice/a-b.slice/a-b-c.slice"
    assert [slice_path(text) for text in ("a", ".slice", "-.slice", "a-.slice")] == [""] * 4


def test_a_table_has_one_of_cgroup_and_match() -> None:
    with pytest.raises(ConfigError, match=r"batch\[0\].cgroup: is missing"):
        parse('[[batch]]\nname = "x"', "f")
    with pytest.raises(ConfigError, match="one of cgroup and match"):
        parse('[[lra]]\nname = "x"\ncgroup = "/x"\nmatch = "pid:7"', "f")
    with pytest.raises(ConfigError, match="too long: the names of its matches begin with it"):
        parse(f'[[batch]]\nname = "{"x" * 41}"\nmatch = "unit:*.service"', "f")
    with pytest.raises(ConfigError, match="already the name"):
        parse('[[batch]]\nname = "x"\nmatch = "unit:*"\n[[batch]]\nname = "x"\nmatch = "unit:a*"', "f")


def test_a_process_is_never_written_down_since_its_number_is_anothers_after_a_restart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batch\[0\].match: 'pid:77' is not allowed in a file") as refused:
        parse('[[batch]]\nname = "x"\nmatch = "pid:77"', "f")
    assert "pidfile:/PATH" in refused.value.allowed
    lasting = WorkloadSpec("w", Kind.BATCH, "", match="unit:w.service")
    remember_runtime(str(tmp_path), lasting)
    remember_runtime(str(tmp_path), WorkloadSpec("p", Kind.BATCH, "", match="pid:77"))
    assert [item.spec for item in read_runtime(str(tmp_path))] == [lasting]
    # Written down before that was known: it is left out, and perphd starts.
    file = tmp_path / RUNTIME_FILE
    file.write_text(file.read_text() + '[[batch]]\nname = "p"\nmatch = "pid:77"\n')
    assert [item.spec for item in read_runtime(str(tmp_path))] == [lasting]


def test_names_of_what_was_found_belong_to_their_declaration() -> None:
    names = WorkloadNames(
        [WorkloadSpec("a", Kind.BATCH, "/a"), WorkloadSpec("b", Kind.BATCH, "", match="unit:*")]
    )
    assert [name in names for name in ("a", "a.x", "b", "b.x", "bx", 3)] == [
        True,
        False,
        True,
        True,
        False,
        False,
    ]


# -- looking --------------------------------------------------------------------------------------------------------


def look(
    root: Path,
    groups: list[str],
    *declared: str,
    others: tuple[str, ...] = (),
    files: Mapping[str, str] | None = None,
) -> Found:
    """What these matches (named m0, m1 ...) find among these groups."""
    tree = {**V2, **{f"/cg{group}/cgroup.procs": "" for group in groups}}
    fs = write_tree(root, {**tree, **(files or {})})
    return discovery(fs).look(
        [WorkloadSpec(f"m{n}", Kind.BATCH, "", match=text) for n, text in enumerate(declared)],
        [WorkloadSpec(f"given{n}", Kind.LRA, cgroup) for n, cgroup in enumerate(others)],
    )


def discovery(fs: RealFs) -> Discovery:
    return Discovery(fs, Lookup(fs, discover(fs)))


def places(found: Found) -> dict[str, str]:
    return {name: spec.cgroup for name, spec in found.specs.items()}


def test_units_are_found_wherever_in_their_slices(tmp_path: Path) -> None:
    groups = [
        "/system.slice/db.service",
        "/app.slice/app-web.slice/w@1.service",
        "/app.slice/w@2.service",
        "/user.slice/user-0.slice/user@0.service/app.slice/db.service",  # another manager's
        "/docker/db.service",
    ]
    found = look(tmp_path, groups, "unit:db.service", "unit:w@*.service", "unit:none.service")
    assert places(found) == {
        "m0": "/system.slice/db.service",
        "m1.1": "/app.slice/app-web.slice/w@1.service",
        "m1.2": "/app.slice/w@2.service",
    }
    assert found.declared_as["m1.2"] == "m1"
    assert found.specs["m0"].match == "unit:db.service"
    assert set(found.problems) == {"m2"}
    assert "nothing matches unit:none.service" in found.problems["m2"]


def test_slices_and_paths(tmp_path: Path) -> None:
    groups = ["/a.slice/a-b.slice/x", "/jobs/7/run", "/jobs/8", "/jobs/x/run"]
    found = look(tmp_path, groups, "slice:a-b.slice", "cgroup:/jobs/*/run", "cgroup:/jobs/8")
    names = sorted(places(found).items())
    assert names == [
        *(("m0", "/a.slice/a-b.slice"), ("m1.7", "/jobs/7/run"), ("m1.x", "/jobs/x/run"), ("m2", "/jobs/8")),
    ]


def test_an_exact_match_of_several_is_an_error_that_names_them(tmp_path: Path) -> None:
    found = look(tmp_path, ["/a.slice/x.service", "/b.slice/x.service"], "unit:x.service")
    assert not found.specs
    assert "matches 2 control groups (/a.slice/x.service, /b.slice/x.service" in found.problems["m0"]


def test_perphd_itself_and_what_is_above_it_is_refused(tmp_path: Path) -> None:
    groups = ["/system.slice/perphd.service", "/system.slice/x.service"]
    found = look(tmp_path, groups, "slice:system.slice", "unit:perphd.service", "cgroup:/*", "unit:*.service")
    assert places(found) == {"m3.x": "/system.slice/x.service"}
    for name in ("m0", "m1", "m2", "m3"):
        assert "contains perphd itself" in found.problems[name]


def test_two_workloads_never_have_one_control_group(tmp_path: Path) -> None:
    groups = ["/s.slice/a.service", "/s.slice/b.service/sub", "/t.slice/c.service"]
    found = look(
        tmp_path,
        groups,
        *("unit:?.service", "unit:a.service", "slice:t.slice", "cgroup:/t.slice"),
        others=("/s.slice/b.service/sub",),
    )
    assert places(found) == {"m0.a": "/s.slice/a.service", "m0.c": "/t.slice/c.service"}
    assert "/s.slice/b.service contains the cgroup of workload 'given0'" in found.problems["m0"]
    assert "is also the cgroup of workload 'm0.a'" in found.problems["m1"]
    assert "contains the cgroup of workload 'm0.c'" in found.problems["m2"]


def test_a_derived_name_that_is_taken_is_told(tmp_path: Path) -> None:
    fs = write_tree(tmp_path, {**V2, "/cg/s.slice/a.service/cgroup.procs": ""})
    declared = [WorkloadSpec("w", Kind.BATCH, "", match="unit:*.service")]
    found = discovery(fs).look(declared, [WorkloadSpec("w.a", Kind.LRA, "/elsewhere")])
    assert not found.specs
    assert "would be called 'w.a'" in found.problems["w"]


@pytest.mark.parametrize("name", [b"b\xffd", b"b\x1b[2Jd", "b\x9bd".encode(), b"b\nd"])
def test_a_name_that_is_no_text_is_told_and_keeps_no_other_from_being_found(
    tmp_path: Path, name: bytes
) -> None:
    looked = discovery(write_tree(tmp_path, {**V2, "/cg/jobs/good/cgroup.procs": ""}))
    odd = os.fsencode(tmp_path) + b"/cg/jobs/" + name
    os.mkdir(odd)
    declared = [WorkloadSpec("job", Kind.BATCH, "", match="cgroup:/jobs/*")]
    found = looked.look(declared, [])
    assert places(found) == {"job.good": "/jobs/good"}
    told = found.problems["job"]
    assert repr("/jobs/" + os.fsdecode(name)) in told
    assert told.isprintable()
    assert looked.look(declared, []).problems == found.problems, "the same sentence, which is logged once"
    os.mkdir(odd + b"2")
    assert "and 1 more" in looked.look(declared, []).problems["job"]


def test_the_number_of_instances_is_bounded(tmp_path: Path) -> None:
    found = look(tmp_path, [f"/j/{n:03}" for n in range(MAX_INSTANCES + 5)], "cgroup:/j/*")
    assert len(found.specs) == MAX_INSTANCES
    assert "m0.000" in found.specs
    assert (
        f"matches {MAX_INSTANCES + 5} control groups; the first {MAX_INSTANCES} are taken"
        in found.problems["m0"]
    )


def _docker(container: str, name: str, **labels: str) -> dict[str, str]:
    path = f"/var/lib/docker/containers/{container}/config.v2.json"
    return {path: json.dumps({"Name": f"/{name}", "Config": {"Labels": labels}})}


def test_containers_by_name_and_label(tmp_path: Path) -> None:
    groups = [f"/system.slice/docker-{A}.scope", f"/docker/{B}"]
    files = {**_docker(A, "web", tier="front", app="shop"), **_docker(B, "sort", tier="back", app="shop")}
    found = look(tmp_path, groups, "container:web", "label:tier=back", "label:tier=none", files=files)
    assert places(found) == {"m0": groups[0], "m1.sort": groups[1]}
    assert "nothing matches label:tier=none" in found.problems["m2"]


def test_pods_by_name_and_by_the_labels_that_each_runtime_keeps(tmp_path: Path) -> None:
    uid = "0a1b2c3d-0000-1111-2222-333344445555"
    pod = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
    groups = [f"{pod}/cri-containerd-{A}.scope", f"{pod}/crio-{B}.scope"]
    notes = {
        "io.kubernetes.cri.container-name": "nginx",
        "io.kubernetes.cri.sandbox-name": "web-0",
        "io.kubernetes.cri.sandbox-namespace": "shop",
    }
    crio = {
        "io.kubernetes.container.name": "sort",
        "io.kubernetes.cri-o.Labels": json.dumps({"app": "sorter"}),
    }
    files = {
        f"/var/log/pods/shop_web-0_{uid}/": "",
        f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{A}/config.json": json.dumps(
            {"annotations": notes}
        ),
        f"/run/containers/storage/overlay-containers/{B}/userdata/config.json": json.dumps(
            {"annotations": crio}
        ),
    }
    matches = ("container:shop/web-0/nginx", "label:app=sort*")
    assert set(places(look(tmp_path / "a", groups, *matches, files=files)).values()) == set(groups)
    found = look(tmp_path / "b", groups, "label:io.kubernetes.pod.namespace=shop", files=files)
    assert list(places(found).values()) == [groups[0]]


@pytest.mark.parametrize("known_by", ["log", "publisher", "runtime"])
def test_a_pod_has_one_name_whatever_is_known_of_it_first_and_over_its_restarts(
    tmp_path: Path, known_by: str
) -> None:
    names = set()
    for place, uid in enumerate(
        ("0a1b2c3d-0000-1111-2222-333344445555", "ffff2c3d-0000-1111-2222-333344445555")
    ):
        pod = f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice"
        notes = {
            "io.kubernetes.cri.container-type": "sandbox",
            "io.kubernetes.cri.sandbox-name": "web-0",
            "io.kubernetes.cri.sandbox-namespace": "shop",
        }
        labels = {"app": "web"}
        published = {"namespace": "shop", "name": "web-0", "labels": labels}
        if known_by == "log":
            del published["namespace"]
        sandbox = f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{A}/config.json"
        files = {
            "log": {f"/var/log/pods/shop_web-0_{uid}/": ""},
            "publisher": {},
            "runtime": {sandbox: json.dumps({"annotations": notes})},
        }[known_by]
        files["/run/perphd-pods/pods.json"] = json.dumps(
            {"pods": {uid: {"labels": labels} if known_by == "runtime" else published}}
        )
        groups = [f"{pod}/cri-containerd-{A}.scope"]
        found = places(look(tmp_path / str(place), groups, "label:app=web", files=files))
        assert list(found.values()) == [pod]
        names |= set(found)
    assert names == {"m0.shop-web-0-" + hashlib.sha256(b"shop/web-0").hexdigest()[:6]}


def test_a_look_walks_once_and_reads_of_containers_again_only_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"{n:064x}" for n in range(3 * READ_AGAIN)]
    files: dict[str, str] = {}
    for n, container in enumerate(ids):
        files |= {f"/cg/docker/{container}/cgroup.procs": "", **_docker(container, f"c{n}", app=f"a{n}")}
    fs = write_tree(tmp_path, {**V2, **files})
    looks, listed, read = discovery(fs), list[str](), set[str]()
    children, real_read = fs.subdirectories, fs.read

    def counted(path: str) -> bytes:
        read.add(path)
        return real_read(path)

    def walked(path: str) -> list[str]:
        listed.append(path)
        return children(path)

    monkeypatch.setattr(fs, "read", counted)
    monkeypatch.setattr(fs, "subdirectories", walked)
    last = len(ids) - 1
    declared = [
        WorkloadSpec(f"m{n}", Kind.BATCH, "", match=text)
        for n, text in enumerate((f"container:c{last}", "container:new", "label:app=a1", "label:app=a2"))
    ]
    assert set(places(looks.look(declared, []))) == {"m0", "m2.c1", "m3.c2"}
    assert listed.count("/cg") == 1, "for all four"
    for path, text in _docker(ids[last], "new", app="x").items():
        (tmp_path / path[1:]).write_text(text)
    found = []
    for _ in range(4):
        listed.clear()
        read.clear()
        found.append(set(places(looks.look(declared, []))))
        assert listed.count("/cg") == 1
        assert 0 < sum("config.v2.json" in path for path in read) <= READ_AGAIN
    assert "m1" in found[-1], "it was given another name, which is found in time"
    assert "m0" not in found[-1]


def test_labels_that_cannot_be_known_are_said_to_be_so(tmp_path: Path) -> None:
    found = look(tmp_path, [f"/docker/{A}"], "label:app=x")
    assert "the labels of 1 containers (such as /docker/aaa" in found.problems["m0"]
    assert "are not known here, because" in found.problems["m0"]


STAT = "{} (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 {} 1 1\n"


def test_a_process_is_followed_as_long_as_it_lives(tmp_path: Path) -> None:
    files = {**V2, "/cg/jobs/a/cgroup.procs": "", "/cg/jobs/b/cgroup.procs": ""}
    fs = write_tree(
        tmp_path, files | {"/proc/77/cgroup": "0::/jobs/a\n", "/proc/77/stat": STAT.format(77, 500)}
    )
    looks = discovery(fs)
    declared = [WorkloadSpec("p", Kind.BATCH, "", match="pid:77")]
    assert places(looks.look(declared, [])) == {"p": "/jobs/a"}
    (tmp_path / "proc/77/cgroup").write_text("0::/jobs/b\n")
    assert places(looks.look(declared, [])) == {"p": "/jobs/b"}, "it was moved"
    (tmp_path / "proc/77/stat").write_text(STAT.format(77, 900))
    found = looks.look(declared, [])
    assert not found.specs
    assert "another process has its number now" in found.problems["p"]
    looks.forget_processes([])  # the declaration was removed; one that is made now means who is there now
    assert places(looks.look(declared, [])) == {"p": "/jobs/b"}
    looks.look([], [])
    assert not looks._starts, "nothing is remembered of processes that nobody names"


def test_a_pid_file_is_read_again(tmp_path: Path) -> None:
    files = {**V2, "/cg/jobs/cgroup.procs": "", "/run/x.pid": "77\n", "/proc/77/cgroup": "0::/jobs\n"}
    files |= {f"/proc/{pid}/status": UIDS.format(*[os.getuid()] * 4) for pid in (77, 88)}
    fs = write_tree(tmp_path, files | {"/proc/77/stat": STAT.format(77, 5), "/proc/88/cgroup": "0::/\n"})
    looks = discovery(fs)
    declared = [WorkloadSpec("p", Kind.BATCH, "", match="pidfile:/run/x.pid")]
    assert places(looks.look(declared, [])) == {"p": "/jobs"}
    (tmp_path / "run/x.pid").write_text("88\n")
    assert "nothing matches" in looks.look(declared, []).problems["p"]
    (tmp_path / "proc/88/stat").write_text(STAT.format(88, 6))
    assert "in the root control group" in looks.look(declared, []).problems["p"]
    for odd in ("", "x", "1", "9" * 30, "-5"):
        (tmp_path / "run/x.pid").write_text(odd)
        assert not looks.look(declared, []).specs


UIDS = "Name:\tx\nUid:\t{}\t{}\t{}\t{}\n"
PIDFILE = [WorkloadSpec("p", Kind.BATCH, "", match="pidfile:/run/x.pid")]


def _one_process(root: Path, *uids: int) -> Discovery:
    """A host with process 77, which runs as these users (real, effective, saved, of file systems)."""
    files = {**V2, "/cg/jobs/cgroup.procs": "", "/run/": "", "/proc/77/cgroup": "0::/jobs\n"}
    files |= {"/proc/77/stat": STAT.format(77, 5), "/proc/77/status": UIDS.format(*uids)}
    return discovery(write_tree(root, files))


class _Owned(RealFs):
    """Its pid files belong to user 1000."""

    def read_strangers(self, path: str, most_bytes: int) -> tuple[int, bytes]:
        return 1000, super().read_strangers(path, most_bytes)[1]


@pytest.mark.parametrize(
    ("uids", "taken"),
    [((1000,) * 4, True), ((0,) * 4, False), ((1000, 0, 0, 0), False), ((0, 1000, 0, 1000), False)],
)
def test_a_pid_file_of_a_user_names_that_users_processes_alone(
    tmp_path: Path, uids: tuple[int, ...], taken: bool
) -> None:
    _one_process(tmp_path, *uids)
    (tmp_path / "run/x.pid").write_text("77\n")
    found = discovery(_Owned(tmp_path)).look(PIDFILE, [])
    assert places(found) == ({"p": "/jobs"} if taken else {})
    if not taken:
        assert (
            "/run/x.pid belongs to user 1000 and names process 77, which runs as user 0"
            in found.problems["p"]
        )
        assert "only root may name another user's process" in found.problems["p"]


def test_what_is_no_plain_file_is_no_pid_file(tmp_path: Path) -> None:
    looks, path = _one_process(tmp_path, *[os.getuid()] * 4), tmp_path / "run/x.pid"
    (tmp_path / "run/true.pid").write_text("77\n")
    signal.alarm(20)  # a FIFO without a writer, and /dev/zero, have no end
    try:
        for make in (
            lambda: os.mkfifo(path),
            lambda: path.symlink_to("/dev/zero"),
            lambda: path.symlink_to("true.pid"),
            path.mkdir,
        ):
            make()
            found = looks.look(PIDFILE, [])
            assert not found.specs
            assert "/run/x.pid is not a regular file" in found.problems["p"]
            path.rmdir() if path.is_dir() else path.unlink()
    finally:
        signal.alarm(0)
    assert "nothing matches" in looks.look(PIDFILE, []).problems["p"]
    path.write_text("77\n" + "x" * 100_000)
    assert places(looks.look(PIDFILE, [])) == {"p": "/jobs"}


def test_on_v1_the_tree_of_processors_counts(tmp_path: Path) -> None:
    files = {
        "/proc/self/mounts": "c /cg/cpu cgroup rw,cpu,cpuacct 0 0\nm /cg/memory cgroup rw,memory 0 0\n",
        "/cg/cpu/s.slice/a.service/cgroup.procs": "",
        "/proc/77/cgroup": "4:memory:/m\n3:cpu,cpuacct:/s.slice/a.service\n",
        "/proc/77/stat": STAT.format(77, 5),
    }
    looks = discovery(write_tree(tmp_path, files))
    for match in ("unit:a.service", "pid:77"):
        found = looks.look([WorkloadSpec("p", Kind.BATCH, "", match=match)], [])
        assert places(found) == {"p": "/s.slice/a.service"}


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(["/a", "/a/b", "/c.slice/d.service", "/c.slice", "/e", "/e/f/g"]), unique=True)
)
def test_whatever_is_there_nobody_shares_and_nobody_is_nested(
    tmp_path_factory: pytest.TempPathFactory, groups: list[str]
) -> None:
    matches = ("cgroup:/*", "cgroup:/?/?", "unit:*", "slice:c.slice", "cgroup:/e/f/*")
    found = look(tmp_path_factory.mktemp("tree"), groups, *matches)
    paths = sorted(places(found).values())
    for before, after in itertools.pairwise(paths):
        assert before != after
        assert not after.startswith(f"{before}/")
    assert all(spec.name == name for name, spec in found.specs.items())


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("web", "container:web"),
        ("shop/db-0", "pod:shop/db-0"),
        ("shop/db-0/server", "pod:shop/db-0"),
        (
            "pod 8d5f3c1e-0b7a-4c6e-9f2d-1a2b3c4d5e6f/server",
            "container:pod 8d5f3c1e-0b7a-4c6e-9f2d-1a2b3c4d5e6f/server",
        ),
    ],
)
def test_a_container_of_a_pod_is_proposed_as_its_pod(name: str, match: str) -> None:
    assert named(name) == match
    assert str(parse_match(match)) == match


# -- hybrid hosts ---------------------------------------------------------------------------------------------------

HYBRID = {
    "/proc/self/mounts": "cgroup2 /u cgroup2 rw 0 0\ncgroup /cpu cgroup rw,cpu 0 0\ncgroup /mem cgroup rw,memory 0 0\n",
    "/proc/self/cgroup": "2:cpu:/\n1:memory:/\n0::/\n",
    "/u/cgroup.controllers": "",
    "/u/system.slice/mariadb.service/cgroup.procs": "7\n",
    "/mem/system.slice/mariadb.service/cgroup.procs": "7\n",
    "/cpu/system.slice/cgroup.procs": "7\n",
    "/cpu/apps/redis/cgroup.procs": "9\n",
    "/proc/7/cgroup": "2:cpu:/system.slice\n1:memory:/system.slice/mariadb.service\n0::/system.slice/mariadb.service\n",
    "/proc/8/cgroup": "2:cpu:/\n1:memory:/\n0::/\n",
    "/proc/9/cgroup": "2:cpu:/apps/redis\n1:memory:/\n0::/system.slice/cron.service\n",
    "/proc/10/cgroup": "2:cpu:/docker/abc\n1:memory:/\n0::/docker/abc/init\n",
}


def test_a_unit_without_a_group_in_the_cpu_hierarchy_is_found(tmp_path: Path) -> None:
    """systemd makes a unit's group in the hierarchy of a v1 controller when a setting of the unit needs it."""
    write_tree(tmp_path, HYBRID)
    fs = RealFs(str(tmp_path))
    lookup = Lookup(fs, discover(fs))
    assert ("mariadb.service", "/system.slice/mariadb.service") in lookup.units()
    assert sorted(lookup.children("/")) == ["apps", "system.slice"]
    assert lookup.of_process(7) == "/system.slice/mariadb.service"
    assert lookup.of_process(8) == ""
    assert lookup.of_process(9) == "/apps/redis", "another program's group in the hierarchy that is managed"
    assert lookup.of_process(10) == "/docker/abc", "no unit"
