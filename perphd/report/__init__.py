"""What a past stretch of time says: how LRAs and batch fared, and what perphd did or would have done.

Pure: rows in, figures out. ``perphd.monitor.report_rows`` reads the rows, ``perphctl report`` prints the figures.
"""
