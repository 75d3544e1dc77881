"""The engine of writes: scopes, order of rollbacks, and what a writer may do without leaving writes half done."""

from __future__ import annotations

import ast
import errno
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perphd.domain.errors import Broken, Busy, Gone, KernelError
from perphd.domain.plan import Stage, Write
from perphd.isolation import engine
from perphd.isolation.engine import Keep, NotRolledBack, Result, make_all


def write(name: str, scope: str = "a") -> Write:
    return Write(name, "knob", f"/{scope}/{name}", "1", "0", Stage.SHRINK)


def refused(name: str) -> KernelError:
    return Busy(f"/{name}", "write", errno.EBUSY, "1")


@dataclass
class Fake:
    """A writer that logs what happens. ``bad``: what ``make`` of a workload raises after it changed something."""

    bad: dict[str, Exception] = field(default_factory=dict)
    partly: dict[str, KernelError] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    hindered: frozenset[str] = frozenset()
    stuck: dict[str, Exception] = field(default_factory=dict)
    goes_on: bool = True
    log: list[str] = field(default_factory=list)

    def scope(self, write: Write) -> str:
        return write.path.split("/")[1]

    def hindrance(self, write: Write) -> KernelError | None:
        return refused(write.workload) if write.workload in self.hindered else None

    def make(self, write: Write, keep: Keep) -> KernelError | None:
        def back() -> bool:
            if write.workload in self.stuck:
                raise self.stuck[write.workload]
            self.log.append(f"-{write.workload}")
            return write.workload not in self.gone

        keep(back)
        self.log.append(f"+{write.workload}")
        if write.workload in self.bad:
            raise self.bad[write.workload]
        return self.partly.get(write.workload)

    def is_gone(self, write: Write) -> bool:
        return write.workload in self.gone

    def failed(self, write: Write, error: KernelError) -> bool:
        self.log.append(f"!{write.workload}")
        return self.goes_on


def run(writer: Fake, *writes: Write) -> Result:
    result = Result()
    make_all(writer, writes, result)
    return result


def test_a_failure_takes_its_scope_back_newest_first_and_nothing_else() -> None:
    writer = Fake(bad={"c": refused("c")})
    done = run(writer, write("a"), write("x", "b"), write("b"), write("c"), write("d"), write("y", "b"))
    assert writer.log == ["+a", "+x", "+b", "+c", "!c", "-c", "-b", "-a", "+y"]
    assert [each.workload for each in done.undone] == ["b", "a"], "c was not made"
    assert [each.workload for each in done.written] == ["a", "x", "b", "y"]
    assert (done.at_fault, str(done.failed)) == (write("c"), str(refused("c")))


def test_the_writer_says_whether_other_scopes_are_tried() -> None:
    writer = Fake(bad={"a": refused("a")}, goes_on=False)
    done = run(writer, write("a"), write("x", "b"))
    assert writer.log == ["+a", "!a", "-a"]
    assert done.written == []


def test_the_first_failure_counts() -> None:
    writer = Fake(bad={"a": refused("a"), "x": refused("x")}, partly={"y": refused("y")})
    done = run(writer, write("a"), write("x", "b"), write("y", "c"))
    assert done.at_fault == write("a")
    assert done.written == [write("y", "c")]


def test_a_refused_part_rolls_nothing_back() -> None:
    writer = Fake(partly={"a": refused("a")})
    done = run(writer, write("a"), write("b"))
    assert writer.log == ["+a", "+b"]
    assert done.at_fault == write("a")
    assert done.undone == []


def test_a_cgroup_that_went_is_no_failure_and_gets_no_further_write() -> None:
    error = Gone("/a", "write", errno.ENODEV, "1")
    writer = Fake(bad={"a": error}, gone=frozenset({"a"}))
    done = run(writer, write("a"), write("a"), write("b"))
    assert done.gone == {"a"}
    assert done.failed is None
    assert [each.workload for each in done.written] == ["b"]


def test_a_hindered_write_is_not_made() -> None:
    writer = Fake(hindered=frozenset({"b"}))
    done = run(writer, write("a"), write("b"))
    assert writer.log == ["+a", "!b", "-a"]
    assert done.at_fault == write("b")


def test_one_rollback_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    writer = Fake(
        bad={"d": refused("d")},
        stuck={"c": NotRolledBack("c is kept"), "b": RuntimeError("odd"), "d": refused("d")},
    )
    done = run(writer, write("a"), write("b"), write("c"), write("d"))
    assert writer.log[-1] == "-a"
    assert [each.workload for each in done.undone] == ["a"]
    first, second, third = done.undo_problems
    assert first.startswith("rollback failed, run perphd restore to undo it: /d: ")
    assert second == "c is kept"
    assert "RuntimeError: odd" in third
    assert "ended unexpectedly" in caplog.text


def test_no_exception_of_a_writer_leaves_writes_half_done() -> None:
    writer = Fake(bad={"b": ZeroDivisionError("x")})
    done = run(writer, write("a"), write("b"))
    assert writer.log[-2:] == ["-b", "-a"]
    assert isinstance(done.failed, Broken)
    assert "ZeroDivisionError" in str(done.failed)


def test_the_engine_knows_no_backend() -> None:
    tree = ast.parse(Path(engine.__file__).read_text(encoding="utf-8"))
    found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    own = {name for name in found if name and name.split(".")[0] in ("perphd", "rdt")}
    assert own == {"perphd.domain.errors", "perphd.domain.plan"}
