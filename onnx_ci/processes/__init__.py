"""Watched child processes, and what code prints, logs and warns of.

Knows nothing of cells; any later room may import it.
"""
