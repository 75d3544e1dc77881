"""The command lines perphd and perphctl, with their output: text, top and the dashboard."""
