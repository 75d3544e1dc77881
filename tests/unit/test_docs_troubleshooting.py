"""Every word that status shows about a workload, and every problem that the agent states, has an entry in the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from perphd.commands.render_status import CAUSE_WORDS, health_words
from perphd.domain.condition import BatchCondition, LraCondition
from perphd.domain.decision import Cause, Health
from perphd.domain.status import WorkloadStatus

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
FRAGMENTS = {
    ("perphd/agent/composition.py", "forecast"): "no forecasts",
    ("perphd/agent/federated.py", "KEY"): "not used:",
    ("perphd/agent/federated.py", "UNWRITTEN"): "contribution to other hosts' models is not written",
    ("perphd/agent/forecasts.py", "forecast"): "no forecasts",
    ("perphd/agent/enforcement.py", "apply"): "a change failed and was undone",
    ("perphd/agent/enforcement.py", "released"): "some traffic classes of removed groups remain",
    ("perphd/agent/indicators.py", "silent:"): "no rate",
    ("perphd/agent/indicators.py", "sli:"): "an indicator's note",
    ("perphd/agent/leftovers.py", "left:"): "not everything was restored",
    ("perphd/agent/models.py", "_key()"): "model of",
    ("perphd/agent/models.py", "version:"): "model of",
    ("perphd/agent/queue/batch_queue.py", "queue"): "the batch queue",
    ("perphd/agent/queue/room.py", "queue:"): "is not managed as a workload of its own",
    ("perphd/agent/rebuilds.py", "rebuild"): "is not rebuilt",
    ("perphd/agent/round_consumers.py", "hints"): "the hint cannot be written",
    ("perphd/agent/round_recorder.py", "conflict:"): "left alone until the mode is set again",
    ("perphd/agent/round_recorder.py", "missing:"): "does not exist; waiting for it",
    ("perphd/agent/trial_control.py", "trial"): "cannot be read",
    ("perphd/agent/workload_registry.py", "opt_in"): "[opt_in]",
    ("perphd/agent/workload_registry.py", "left"): "not everything was restored",
    ("perphd/agent/workload_registry.py", "match:"): "nothing matches",
    ("perphd/agent/workload_registry.py", "missing:"): "does not exist; waiting for it",
}
"""Where a problem is stated and under which key, and what identifies its entry."""
OWN_HEADINGS = ("an indicator's note",)
"""Entries for sentences whose words come from elsewhere."""
OTHERS = (
    "nothing can be written",
    "a change succeeded only in part",
    "tried again after",
    "waits for the lock",
    "The change window is closed",
    "min_cores is",
    "cannot be set here",
    "is left out",
    "detector self-test",
    "nothing is stored",
    "rows were dropped",
    "could not be stored",
    "enforce would set",
    "the target is provisional",
    "the last change is settling",
    "the last change is being judged",
    "best effort",
    "nothing helps",
    "the target is out of reach",
    "processes in no group",
)
"""Sentences from other places of the program; each must still be one."""


def entries() -> set[str]:
    """What stands in the first column of a table, or as a heading."""
    cells = re.findall(r"^\| (`.+?`(?:, `.+?`)*) \|", PAGE, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def words_of_health() -> Iterator[str]:
    for condition in LraCondition:
        yield health_words(_status(condition=condition))
    yield health_words(_status(present=False))
    yield health_words(_status(decision=None))
    for health in Health:
        for cause in Cause:
            verdict = SimpleNamespace(health=health, cause=cause)
            yield health_words(_status(decision=SimpleNamespace(verdict=verdict)))
            yield health_words(_status(decision=SimpleNamespace(verdict=verdict), sli_problem="silent"))


def _status(
    present: bool = True, condition: str = "", decision: object = None, sli_problem: str = ""
) -> WorkloadStatus:
    status = SimpleNamespace(present=present, condition=condition, decision=decision, sli_problem=sli_problem)
    return cast("WorkloadStatus", status)


def test_every_word_about_the_health_of_an_lra_has_an_entry() -> None:
    words = {word.partition(":")[0] for word in words_of_health()}
    assert {"ok", "slow", "learning", "no rate", "stalled"} <= words
    assert words <= entries()


@pytest.mark.parametrize(
    "words", [BatchCondition, Cause, CAUSE_WORDS.values()], ids=["batch", "causes", "short"]
)
def test_every_state_and_cause_has_an_entry(words: object) -> None:
    assert {str(word) for word in cast("list[str]", words)} <= entries()


def problem_keys() -> set[tuple[str, str]]:
    """Module and key of every call that states a problem."""
    found = set()
    for path in sorted((ROOT / "perphd").rglob("*.py")):
        module, text = str(path.relative_to(ROOT)), path.read_text()
        if module == "perphd/agent/records.py" or not re.search(r"\.(problem|left_behind)\(", text):
            continue
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in ast.walk(function):
                if (
                    not isinstance(call, ast.Call)
                    or not isinstance(call.func, ast.Attribute)
                    or not call.args
                ):
                    continue
                if call.func.attr in ("problem", "left_behind"):
                    found |= {(module, key) for key in _keys(call.args[0], function)}
    return found


def _keys(node: ast.expr, function: ast.AST) -> set[str]:
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return {text}
        case ast.Call(func=ast.Name(id=name)):
            return {f"{name}()"}
        case ast.Name(id="key") if "key" in _arguments(
            function
        ):  # passed on: its callers are found by themselves
            return set()
        case ast.Name(id="key"):  # the keys of a dictionary that this function makes
            keys = {
                text
                for made in ast.walk(function)
                if isinstance(made, ast.DictComp)
                for text in _keys(made.key, function)
            }
            assert keys, ast.dump(node)
            return keys
        case ast.Name(id=name):
            return {name}
    raise AssertionError(f"a key of another form: {ast.dump(node)}")


def _arguments(function: ast.AST) -> set[str]:
    arguments = function.args.args if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) else []
    return {argument.arg for argument in arguments}


def test_every_problem_that_the_agent_states_has_an_entry() -> None:
    assert problem_keys() == set(FRAGMENTS)
    for fragment in FRAGMENTS.values():
        assert fragment in PAGE


def test_the_quoted_sentences_are_those_of_the_program() -> None:
    program = "\n".join(path.read_text() for path in (ROOT / "perphd").rglob("*.py"))
    for fragment in {*FRAGMENTS.values(), *OTHERS} - set(OWN_HEADINGS):
        assert fragment in PAGE, fragment
        assert fragment in program, fragment


PAGES = (
    "troubleshooting.md",
    "tutorial.md",
    "explanation/concepts.md",
    "explanation/worst-case.md",
    "how-to/rollout.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_pages(page: str) -> None:
    path = ROOT / "docs" / page
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []
