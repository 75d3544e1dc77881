"""The only writer to the kernel: planning, transactions, the journal of original values, restore."""

from perphd.isolation.applied_state import Applied
from perphd.isolation.executor import Executor
from perphd.isolation.journal import Journal
from perphd.isolation.journal_lock import JournalInUse
from perphd.isolation.restore import restore
from perphd.isolation.restore_report import FileReport, RestoreReport
from perphd.isolation.watch import Conflict

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
