"""What a running daemon decides can be recorded through its socket, and decided again bit for bit."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from perphd.admission.controller.lra_state import LraState
from perphd.admission.features.egress import EgressRule
from perphd.admission.perph import PerphMemory
from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.rounds import QUEUED_ROUNDS
from perphd.agent.simulated import simulate, simulated_sli
from perphd.commands.cli import cli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.control.access import Access, Peer
from perphd.control.limits import ApiLimits
from perphd.control.routes import Hooks
from perphd.control.server import ControlServer
from perphd.control.tagged import _MOVED_MODULES, TaggedError, decode_tagged, encode_tagged
from perphd.domain.allocation import CpuGrant
from perphd.domain.control import Actor
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Action
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import SimHost
from tools.replay.__main__ import policy_of
from tools.replay.recording import read, replay

SPECS = (
    WorkloadSpec("db", Kind.LRA, "/r/db", sli=SliSpec("simulated", (("workload", "db"),))),
    WorkloadSpec("pi", Kind.BATCH, "/r/pi"),
)
ROOT = Peer(1, 0, frozenset({0}))


@contextmanager
def daemon(state: Path, arrives_s: float = 8.0) -> Iterator[tuple[SimHost, Agent, Config]]:
    host = simulate(SPECS, batch_arrives_s=arrives_s)
    config = Config(
        daemon=DaemonConfig(
            mode=Mode.ENFORCE,
            state_dir=str(state),
            socket=str(state / "perphd.sock"),
        ),
        store=StoreConfig(enabled=False),
        workloads=SPECS,
    )
    config = replace(config, policy=replace(config.policy, min_effect_pct=4.0))
    yield (
        host,
        build_agent(config, fs=host.fs, opener=host.perf_opener, sli_opener=simulated_sli(host)),
        config,
    )


async def recorded(state: Path, file: Path, rounds: int, arrives_s: float = 8.0) -> str:
    """Ten rounds unobserved, then ``perphctl export --replay`` while the daemon goes on."""
    with daemon(state, arrives_s) as (host, agent, config):

        async def reload(_: Actor) -> Config:
            return config

        server = ControlServer(
            agent, config, reload=reload, hooks=Hooks(lambda _: ()), limits=ApiLimits(),
            peer_lookup=lambda _: ROOT, access=Access("perphd", "perphd-admin", 501, 502, 0),
        )  # fmt: skip
        now_s = 0.0

        async def go_on() -> None:
            nonlocal now_s
            now_s += 1.0
            host.advance(now_s)
            await agent.tick(now_s)

        await server.start()
        try:
            for _ in range(10):
                await go_on()
            words = [
                "--socket",
                config.daemon.socket,
                "export",
                "--replay",
                str(file),
                "--rounds",
                str(rounds),
            ]
            asked = asyncio.create_task(asyncio.to_thread(lambda: CliRunner().invoke(cli, words)))
            while not asked.done():
                await go_on()
                await asyncio.sleep(0.005)
            result = await asked
            assert result.exit_code == 0, result.output
            return result.output
        finally:
            await server.stop()
            await agent.stop(restore=True)


def test_a_daemon_s_rounds_are_decided_again_bit_for_bit(tmp_path: Path):
    file = tmp_path / "run.jsonl"
    said = asyncio.run(recorded(tmp_path, file, 60, arrives_s=40.0))
    assert "60 rounds" in said
    head, rounds = read(file)
    assert head.policy == "perph"
    assert head.settings["min_effect_pct"] == 4.0
    assert head.memory is not None, "it began in the midst of a run"
    targets = [item.target for item in rounds]
    assert len(targets) == 60
    assert any(d["action"] != Action.HOLD.value for t in targets for d in t["decisions"])
    count, differences = replay(file, policy_of(head.policy, 0, head))
    assert (count, differences) == (60, [])
    # The test can fail: another memory, other settings, another policy are noticed.
    _, others = replay(file, policy_of("none"))
    assert others


def test_what_a_policy_forgot_is_noticed(tmp_path: Path):
    file = tmp_path / "run.jsonl"
    asyncio.run(recorded(tmp_path, file, 12))
    lines = file.read_text().splitlines()
    head = json.loads(lines[0])
    head["memory"] = None
    file.write_text("\n".join([json.dumps(head), *lines[1:]]) + "\n")
    begin, _ = read(file)
    _, differences = replay(file, policy_of("perph", 0, begin))
    assert differences


def test_a_listener_that_lags_loses_its_recording_and_not_a_round_of_it(tmp_path: Path):
    async def lag() -> int:
        with daemon(tmp_path) as (host, agent, _):
            rounds = agent.rounds()
            first = asyncio.ensure_future(anext(rounds))
            await asyncio.sleep(0)
            for now_s in range(1, QUEUED_ROUNDS + 5):
                host.advance(float(now_s))
                await agent.tick(float(now_s))
            ticks = [(await first).snapshot.tick]
            ticks += [item.snapshot.tick async for item in rounds]
            await agent.stop(restore=True)
            assert ticks == list(range(len(ticks))), "without a gap"
            return len(ticks)

    assert asyncio.run(lag()) in (QUEUED_ROUNDS, QUEUED_ROUNDS + 1)


def test_memories_travel_with_their_types():
    value = {
        ("a", 1): (1.5, float("inf"), None, True),
        Action.GROW: [CpuSet.parse("0-3"), frozenset({"x"}), CpuGrant(4, 2), EgressRule(("eth0",), 5)],
    }
    assert decode_tagged(json.loads(json.dumps(encode_tagged(value)))) == value
    with pytest.raises(TaggedError, match="cannot be recorded"):
        encode_tagged(object())
    for name in ("os:system", "perphd.domain.wire:WireError", "perphd.domain.cpuset:nothing"):
        with pytest.raises(TaggedError):
            decode_tagged({"type": name, "fields": {}})


def test_a_record_that_is_older_than_a_field_is_read():
    whole = encode_tagged(PerphMemory())
    older = {**whole, "fields": {n: v for n, v in whole["fields"].items() if n != "streaming"}}
    assert decode_tagged(older) == PerphMemory()
    lame = {"type": "perphd.admission.partition_cache:Ban", "fields": {"ways": 1}}
    with pytest.raises(TaggedError, match="lacks 'pct'"):
        decode_tagged(lame)


def test_a_record_from_before_the_state_of_an_lra_had_a_module_of_its_own_is_read():
    state = LraState.new(3.0)
    older = {**encode_tagged(state), "type": "perphd.admission.controller:LraState"}
    assert repr(decode_tagged(older)) == repr(state)  # NaN is not equal to itself


def test_a_record_from_before_admission_had_packages_is_read():
    memory = PerphMemory(lras={"db": LraState.new(3.0)})
    text = json.dumps(encode_tagged(memory))
    flat = re.sub(r"perphd\.admission\.\w+\.(\w+):", r"perphd.admission.\1:", text)
    flat = flat.replace("perphd.admission.judge:", "perphd.admission.detector:")
    assert flat != text
    assert repr(decode_tagged(json.loads(flat))) == repr(memory)


@pytest.mark.parametrize("name", sorted(_MOVED_MODULES.values()))
def test_former_modules_have_a_present_one(name: str):
    assert importlib.util.find_spec(name)
