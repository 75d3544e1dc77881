"""The only writer to the kernel: planning, transactions, the journal of original values, restore."""

from perphd.isolation.executor import Executor
from perphd.isolation.journal import Journal
from perphd.isolation.journal_lock import JournalInUse
from perphd.isolation.knob_states import Applied, Conflict
from perphd.isolation.restore import restore
from perphd.isolation.restore_report import FileReport, RestoreReport

__all__ = [
    "Applied",
    "Conflict",
    "Executor",
    "FileReport",
    "Journal",
    "JournalInUse",
    "RestoreReport",
    "restore",
]
