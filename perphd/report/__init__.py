"""Reports on a past period: performance of LRAs and batch, and what perphd did or would have done.

Pure: rows in, figures out. ``perphd.monitor.report_rows`` reads the rows, ``perphctl report`` prints the figures.
"""
