"""Reports on a past period: performance of LRAs and batch, and perphd's real or hypothetical actions.

Pure: rows in, figures out. ``perphd.monitor.report_rows`` reads the rows, ``perphctl report`` prints the figures.
"""
