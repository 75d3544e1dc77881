"""Thresholds of one LRA: read strictly, kept over restarts, and in force for it alone."""

from __future__ import annotations

import pytest

from perphd.admission.settings import PolicySettings, settings_for
from perphd.config.file import parse
from perphd.config.workloads import to_toml
from perphd.domain.errors import ConfigError
from perphd.domain.workload import Kind

TEXT = """
[[lra]]
name = "db"
cgroup = "/db"

[lra.tuning]
confirm_ticks = 5
min_effect_pct = 12.5
probe_reference = false

[[lra]]
name = "web"
cgroup = "/web"
"""


def test_own_thresholds_hold_for_their_lra_alone() -> None:
    config = parse(TEXT, "test")
    db, web = config.of_kind(Kind.LRA)
    own = settings_for(config.policy, db)
    assert (own.confirm_ticks, own.min_effect_pct, own.probe_reference) == (5, 12.5, False)
    assert own.cusum_k == config.policy.cusum_k
    assert settings_for(config.policy, web) == config.policy == PolicySettings()


def test_they_read_back_as_they_are_written() -> None:
    db = parse(TEXT, "test").of_kind(Kind.LRA)[0]
    assert parse(to_toml(db), "again").workloads == (db,)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("confirm_tics = 5", "lra[0].tuning.confirm_tics"),
        ("confirm_ticks = 0", "lra[0].tuning.confirm_ticks"),
        ("min_effect_pct = 'much'", "lra[0].tuning.min_effect_pct"),
    ],
)
def test_what_is_wrong_is_refused_with_its_key(line: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(f'[[lra]]\nname = "db"\ncgroup = "/db"\n[lra.tuning]\n{line}\n', "test")
    assert refused.value.key == key


def test_batch_has_none() -> None:
    with pytest.raises(ConfigError):
        parse('[[batch]]\nname = "b"\ncgroup = "/b"\n[batch.tuning]\nconfirm_ticks = 5\n', "test")
