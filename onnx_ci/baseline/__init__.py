"""Baselines: what was accepted of each cell, committed as text files that people review."""
