"""Statistics that hosts exchange about the same applications, and their robust merge. Pure.

A host contributes estimates at fixed points, never samples. ``contribution`` is the document, ``ledger`` a set of
documents that merges in any order, ``hardware`` weights them by likeness, ``pooling`` turns them into one estimate that
no minority can move beyond the range of the others.
"""
