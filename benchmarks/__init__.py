"""Measurements side by side, in one process and one run, against what a user would take instead."""
