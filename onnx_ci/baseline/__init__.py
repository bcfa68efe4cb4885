"""Baselines: committed files with the accepted facts about each export.

In come the results of a run and the recorded baselines; out come findings about what changed, or new baselines.
"""
