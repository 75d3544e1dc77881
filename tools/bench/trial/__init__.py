"""Accuracy of trials: hundreds of trials with a known true effect."""
