"""perphctl init: what is proposed from what runs, and that any proposal is a configuration that perphd accepts."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.agent.known_programs import BATCH, CRON, HOUSEKEEPING, PROGRAMS, SYSTEM
from perphd.agent.proposal import config_text, password_path, propose
from perphd.commands import init as cli_init
from perphd.commands import init_check
from perphd.commands.cli import cli
from perphd.commands.init_check import Measured
from perphd.config.file import load, parse
from perphd.config.workloads import relation_of
from perphd.domain.host_facts import GroupFact, HostFacts, ProcessFact
from perphd.domain.reading import NOT_MEASURED, Unavailable
from perphd.domain.workload import Kind, SliSpec, Touch
from perphd.host.cgroup.hierarchy import Hierarchies, Layout
from perphd.host.survey import timed_units

MARIADB = GroupFact(
    "/system.slice/mariadb.service",
    (
        ProcessFact(
            812, "mariadbd", ("/usr/sbin/mariadbd",), 1.4, 2 << 30, (3306,), ("/run/mysqld/mysqld.sock",)
        ),
    ),
    "mariadb.service",
)
POSTGRES = GroupFact(
    "/system.slice/system-postgresql.slice/postgresql@15-main.service",
    (
        ProcessFact(90, "postgres", ("/usr/lib/postgresql/15/bin/postgres", "-D", "/x"), 0.1, 1 << 28, (5433,),
                    ("/var/run/postgresql/.s.PGSQL.5433",)),
        ProcessFact(91, "postgres", ("postgres: 15/main: checkpointer ",), 0.1, 1 << 27),
    ),
    "postgresql@15-main.service",
)  # fmt: skip
REDIS = GroupFact(
    "/docker/" + "a" * 64,
    (ProcessFact(7, "redis-server", ("redis-server *:6379",), 0.2, 1 << 26, (6379,)),),
    container="cache",
)
KAFKA = GroupFact(
    "/system.slice/kafka.service",
    (ProcessFact(55, "java", ("java", "-Xmx6G", "kafka.Kafka", "x.properties"), 0.8, 6 << 30, (9092,)),),
    "kafka.service",
)
APP = GroupFact(
    "/system.slice/shop.service",
    (ProcessFact(77, "node", ("/usr/bin/node", "shop.js"), 0.01, 1 << 27, (8080,)),),
    "shop.service",
)
JOB = GroupFact(
    "/system.slice/backup.service",
    (ProcessFact(66, "restic", ("restic", "backup"), 0.9, 1 << 28, nice=10),),
    "backup.service",
)
CRUNCH = GroupFact(
    "/system.slice/crunch.service",
    (ProcessFact(67, "crunch", ("/opt/crunch",), 3.0, 1 << 28),),
    "crunch.service",
)
SSHD = GroupFact(
    "/system.slice/ssh.service",
    (ProcessFact(5, "sshd", ("sshd: /usr/sbin/sshd -D",), 0.0, 1, (22,)),),
    "ssh.service",
)
ALL = HostFacts(
    8,
    (MARIADB, POSTGRES, REDIS, KAFKA, APP, JOB, CRUNCH, SSHD),
    timed=frozenset({"backup.service", "apt-daily.service", "report.service"}),
    slices=frozenset({"/system.slice", "/batch.slice"}),
    tcp_latency=True,
)


def uncommented(text: str) -> str:
    """The file with what init wrote as comments in force, too."""
    lines, inside = [], False
    for line in text.splitlines():
        inside = bool(line) and (inside or line.startswith(("# Perhaps: ", "# Remove the #")))
        is_title = line.startswith(("# Perhaps: ", "# Remove the #"))
        lines.append(line.removeprefix("# ") if inside and not is_title else line)
    return "\n".join(lines)


def test_servers_are_lras_and_jobs_are_batch():
    found = {item.spec.name: item for item in propose(ALL).workloads}
    assert {name for name, item in found.items() if item.sure and item.spec.kind is Kind.LRA} == {
        "mariadb",
        "postgresql@15-main",
        "cache",
        "kafka",
    }
    assert {name for name, item in found.items() if item.sure and item.spec.kind is Kind.BATCH} == {
        "backup",
        "batch",
    }
    # A server that does nothing, a busy program that nobody knows, a job that is yet to come: as comments.
    assert {name for name, item in found.items() if not item.sure} == {"shop", "crunch", "report"}


def test_workloads_are_named_so_that_they_are_found_after_a_restart():
    found = {item.spec.name: item.spec for item in propose(ALL).workloads}
    assert found["mariadb"].match == "unit:mariadb.service"
    assert found["cache"].match == "container:cache"
    assert found["batch"].match == "slice:batch.slice"


def test_indicators_say_only_what_is_not_the_default():
    found = {item.spec.name: item.spec.sli for item in propose(ALL).workloads}
    mysql, postgres, redis, kafka = (found[n] for n in ("mariadb", "postgresql@15-main", "cache", "kafka"))
    assert mysql is not None
    assert mysql.options == (("password_file", password_path("mariadb")),)
    assert postgres is not None
    assert postgres.options == (("socket", "/var/run/postgresql/.s.PGSQL.5433"),)
    assert redis is not None
    assert dict(redis.options) == {"host": "127.0.0.1", "port": "6379", "latency": "tcp"}
    assert kafka is not None
    assert (kafka.source, dict(kafka.options)) == ("tcp", {"ports": "9092"})
    without = propose(replace(ALL, tcp_latency=False)).workloads
    assert next(item.spec.sli for item in without if item.spec.name == "kafka") is None


def test_a_proposal_says_what_speaks_for_and_against_latency_over_tcp():
    found = {item.spec.name: item.why for item in propose(ALL).workloads}
    assert 'latency = "tcp" adds' in found["mariadb"]
    assert "look like slow requests" in found["kafka"]
    assert ";" not in found["cache"]  # its latency over TCP is proposed already
    assert "look like slow requests" in config_text(propose(ALL))
    assert not any("latency" in item.why for item in propose(replace(ALL, tcp_latency=False)).workloads)


def test_an_indicator_that_does_not_answer_is_written_as_a_comment():
    proposal = propose(ALL)
    text = config_text(proposal, ["mariadb"])
    config = parse(text, "f")
    read = {spec.name: spec for spec in config.matches}
    assert read["mariadb"].sli is None
    assert read["cache"].sli is not None
    whole = {spec.name: spec for spec in parse(uncommented(text), "f").matches}
    assert whole == {item.spec.name: item.spec for item in proposal.workloads}


def test_a_proposal_leaves_what_is_declared_alone():
    declared = parse('[[lra]]\nname = "db"\nmatch = "unit:mariadb.service"\n', "f").matches
    proposal = propose(ALL, declared)
    assert "mariadb" not in {item.spec.name for item in proposal.workloads}
    assert any("is already declared" in left.why for left in proposal.left_out)


def test_an_lra_in_a_batch_slice_keeps_the_slice_out():
    inside = replace(MARIADB, cgroup="/batch.slice/mariadb.service")
    names = {
        item.spec.name
        for item in propose(HostFacts(8, (inside,), slices=frozenset({"/batch.slice"}))).workloads
    }
    assert names == {"mariadb"}


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (replace(MARIADB, cgroup="/", unit=""), "no control group of its own"),
        (replace(MARIADB, cgroup="/user.slice/user-0.slice/session-3.scope", unit="session-3.scope"), "login session"),
        (replace(JOB, cgroup="/user.slice/user-0.slice/session-3.scope", unit="session-3.scope"), "batch.slice"),
    ],
)  # fmt: skip
def test_what_cannot_be_declared_is_named_with_the_reason(group: GroupFact, why: str):
    proposal = propose(HostFacts(8, (group,)))
    assert not proposal.workloads
    assert why in proposal.left_out[0].why


def test_equal_names_are_told_apart_with_their_password_files():
    two = tuple(
        replace(MARIADB, cgroup=f"/docker/{shop}", unit="", container=f"{shop}/mariadb")
        for shop in ("a", "b")
    )
    names = [item.spec.name for item in propose(HostFacts(8, two)).workloads]
    assert sorted(names) == ["mariadb", "mariadb-2"]
    specs = {item.spec.name: item.spec for item in propose(HostFacts(8, two)).workloads}
    sli = specs["mariadb-2"].sli
    assert sli is not None
    assert sli.get("password_file") == password_path("mariadb-2")


# --- any host -----------------------------------------------------------------------------------------------------

_PROGRAM = st.sampled_from(
    [*PROGRAMS, *sorted(BATCH)[:8], *sorted(SYSTEM)[:8], "java", "python3", "x y", "ä"]
)
_WORDS = st.sampled_from(["kafka.Kafka", "-jar", "a.jar", "postgres: x", "\n", '--x="y\\'])
_SOCKETS = st.sampled_from(["/run/mysqld/mysqld.sock", "/run/x/.s.PGSQL.1", '/a b"c', "/run/redis/r.sock"])
_PROCESS = st.builds(
    ProcessFact,
    pid=st.integers(2, 99999),
    name=_PROGRAM,
    argv=st.lists(_WORDS | _PROGRAM, max_size=3).map(tuple),
    cpu_cores=st.floats(0.0, 8.0),
    memory_bytes=st.integers(0, 1 << 40),
    ports=st.lists(st.integers(1, 65535), max_size=12, unique=True).map(tuple),
    sockets=st.lists(_SOCKETS, max_size=2).map(tuple),
    nice=st.integers(-20, 19),
)  # fmt: skip
_PART = st.sampled_from(
    "system.slice batch.slice user.slice a.service b@1.service docker session-1.scope x*y ü ..".split()
)
_CGROUP = st.lists(_PART, max_size=3).map(lambda parts: "/" + "/".join(parts))
_GROUP = st.builds(
    GroupFact,
    cgroup=_CGROUP,
    processes=st.lists(_PROCESS, max_size=3).map(tuple),
    unit=st.sampled_from(
        ["", "a.service", "b@1.service", "we[i]rd.service", "x\\x2dy.service", *sorted(CRON)]
    ),
    container=st.sampled_from(["", "cache", "shop/web-0/nginx", "w*ld", "-x"]),
)
_HOST = st.builds(
    HostFacts,
    cpus=st.integers(1, 64),
    groups=st.lists(_GROUP, max_size=8).map(tuple),
    timed=st.frozensets(
        st.sampled_from(["a.service", "b@1.service", "ü.service", *sorted(HOUSEKEEPING)[:3]])
    ),
    slices=st.frozensets(_CGROUP),
    own=st.frozensets(st.sampled_from(["/system.slice/a.service", "/batch.slice"])),
    tcp_latency=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(_HOST)
def test_any_proposal_is_a_configuration(facts: HostFacts):
    proposal = propose(facts)
    text = config_text(proposal)
    config = parse(text, "proposed")
    sure = [item for item in proposal.workloads if item.sure]
    read = {spec.name: spec for spec in (*config.workloads, *config.matches)}
    assert read == {item.spec.name: item.spec for item in sure}
    names = [item.spec.name for item in proposal.workloads]
    assert len(set(names)) == len(names)
    whole = parse(uncommented(text), "proposed")
    assert whole.count == len(proposal.workloads)


@settings(max_examples=150, deadline=None)
@given(_HOST)
def test_no_two_are_in_each_other_s_way_and_perphd_is_in_none(facts: HostFacts):
    placed = [item for item in propose(facts).workloads if item.cgroup]
    for n, item in enumerate(placed):
        assert item.why
        assert not any(relation_of(item.cgroup, own) for own in facts.own)
        assert not any(relation_of(item.cgroup, other.cgroup) for other in placed[:n])


def test_units_of_perphds_own_package_are_not_proposed():
    busy = ProcessFact(9, "python3", ("/usr/bin/python3", "-m", "compileall"), 0.9, 1 << 20, nice=19)
    group = GroupFact("/system.slice/perphd-bytecode.service", (busy,), "perphd-bytecode.service")
    other = replace(group, cgroup="/system.slice/reports.service", unit="reports.service")
    facts = HostFacts(2, (group, other), frozenset({"perphd-ship.service"}))
    assert [item.spec.match for item in propose(facts).workloads] == ["unit:reports.service"]


@settings(max_examples=100, deadline=None)
@given(_HOST)
def test_what_a_proposal_declares_is_not_proposed_again(facts: HostFacts):
    first = propose(facts)
    config = parse(config_text(first), "proposed")
    again = propose(facts, (*config.workloads, *config.matches))
    before = {(item.spec.cgroup, item.spec.match) for item in first.workloads if item.sure}
    assert not before & {(item.spec.cgroup, item.spec.match) for item in again.workloads}


def test_a_busy_server_has_time_to_answer():
    asked = init_check.with_what_exists(SliSpec("redis", (("socket", "/run/redis.sock"),)))
    assert float(asked.get("timeout_s")) > 1.0
    assert init_check.with_what_exists(SliSpec("redis", (("timeout_s", "2"),))).get("timeout_s") == "2"
    assert init_check.with_what_exists(SliSpec("push")) == SliSpec("push")


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host on which MariaDB refuses perphd, and passwords below tmp_path."""
    monkeypatch.setattr(cli_init, "look", lambda _: (ALL, Hierarchies(Layout.NONE, None, {})))

    async def refused(*_: object) -> tuple[Measured, ...]:
        denied = Unavailable("(1045, \"Access denied for user 'perphd'\")")
        return Measured("mariadb", "mysql", denied, denied), Measured("cache", "redis", 12.0, NOT_MEASURED)

    monkeypatch.setattr(cli_init, "_measure", refused)
    monkeypatch.setattr(
        "perphd.agent.proposal.password_path", lambda name: str(tmp_path / f"{name}.password")
    )
    return tmp_path


def ran(*words: str, stdin: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["init", *words], input=stdin)
    return done.exit_code, done.output


def test_a_dry_run_writes_nothing(host: Path):
    code, text = ran("--dry-run", "--config", str(host / "perphd.toml"))
    assert code == 0
    assert "CREATE USER perphd@localhost IDENTIFIED BY '" in text
    assert "Access denied" in text
    assert "mariadb" in text
    assert list(host.iterdir()) == []


def test_nothing_is_written_where_nobody_can_be_asked(host: Path):
    code, text = ran("--config", str(host / "perphd.toml"))
    assert code == 0
    assert "add --yes" in text
    assert list(host.iterdir()) == []


def test_yes_writes_a_configuration_that_the_daemon_takes(host: Path):
    main = host / "perphd.toml"
    code, text = ran("--yes", "--config", str(main))
    assert code == 0
    assert text.rstrip().splitlines()[-2:] == [f"    perphd run --config {main}", "    perphctl status"]
    config = load(main)
    assert {spec.name for spec in config.matches} >= {"mariadb", "cache", "kafka", "batch"}
    password = host / "mariadb.password"
    assert password.stat().st_mode & 0o777 == 0o600
    assert f"IDENTIFIED BY '{password.read_text().strip()}'" in text
    # What is there stays; the next one goes beside it, and finds nothing new but what was not certain.
    code, text = ran("--yes", "--config", str(main))
    assert code == 0
    assert "Nothing was recognised with certainty" in text


def test_a_password_is_never_in_a_file_that_others_may_read(host: Path, monkeypatch: pytest.MonkeyPatch):
    modes: dict[str, int] = {}
    replaced = os.replace

    def replace(source: Path, target: Path) -> None:
        modes[Path(target).name] = Path(source).stat().st_mode & 0o777
        replaced(source, target)

    monkeypatch.setattr("perphd.host.state_files.os.replace", replace)
    assert ran("--yes", "--config", str(host / "perphd.toml"))[0] == 0
    assert modes == {"mariadb.password": 0o600, "perphd.toml": 0o640}


def test_a_host_on_which_nothing_is_recognised_is_told_what_to_do(
    host: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cli_init, "look", lambda _: (HostFacts(2, ()), Hierarchies(Layout.NONE, None, {})))
    code, text = ran("--yes", "--config", str(host / "perphd.toml"))
    assert code == 1
    assert "run perphctl init again" in text
    assert list(host.iterdir()) == []


def test_a_package_s_own_file_is_left_alone(host: Path):
    main = host / "perphd.toml"
    main.write_text("# as shipped\n")
    assert ran("--yes", "--config", str(main))[0] == 0
    assert main.read_text() == "# as shipped\n"
    assert load(main).matches
    code, text = ran("--yes", "--config", str(main))
    assert code == 1
    assert "--force" in text
    assert ran("--yes", "--force", "--config", str(main))[0] == 0


def test_json_asks_nothing(host: Path):
    code, text = ran("--json", "--dry-run", "--config", str(host / "perphd.toml"))
    data = json.loads(text)
    assert code == 0
    assert data["schema"] == 1
    assert data["written"] == []
    assert parse(data["config"], "f").matches
    assert {item["kind"] for item in data["workloads"]} == {"lra", "batch"}


def test_json_does_not_replace_a_file_by_an_empty_one_either(host: Path, monkeypatch: pytest.MonkeyPatch):
    main = host / "perphd.toml"
    assert ran("--json", "--yes", "--config", str(main))[0] == 0
    main = host / "other" / "perphd.toml"
    main.parent.mkdir()
    main.write_text("# as shipped\n")
    assert ran("--yes", "--config", str(main))[0] == 0
    drop_in = next((main.parent / "conf.d").iterdir())
    before = drop_in.read_text()
    quiet = replace(ALL, groups=(), slices=frozenset(), timed=frozenset())
    monkeypatch.setattr(cli_init, "look", lambda _: (quiet, Hierarchies(Layout.NONE, None, {})))
    code, text = ran("--json", "--yes", "--force", "--config", str(main))
    assert code == 0
    assert json.loads(text)["written"] == []
    assert drop_in.read_text() == before


def test_timers_are_found_in_the_folders_of_units(tmp_path: Path):
    for name in ("backup.timer", "backup.service", "report@.timer", "x.service"):
        (tmp_path / name).touch()
    (tmp_path / "masked.timer").symlink_to("/dev/null")
    assert timed_units((str(tmp_path), str(tmp_path / "none"))) == {"backup.service"}


def test_a_proposed_lra_keeps_its_own_cores_unless_somebody_says_otherwise() -> None:
    text = config_text(propose(ALL))
    assert "touch" not in text
    assert "exploration" not in text
    assert {
        spec.touch
        for spec in parse(text, "proposed").workloads + parse(text, "proposed").matches
        if spec.kind is Kind.LRA
    } == {Touch.BATCH}
