"""Loops, branches and values that depend on data: what tracing freezes, and what to write instead."""
