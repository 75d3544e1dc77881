"""A randomised switchback experiment on one host: its design, its guard, its record and its analysis.

Pure: values and times in, values out. ``perphd.agent.trials`` runs it; ``perphctl trial report`` analyses it in the
client's process, so the daemon imports neither ``analysis`` nor ``statistics``.
"""
