"""The command lines perphd and perphctl, with what they show: text, top and the dashboard."""
