"""Cells judged with other versions of packages: the commands ``upgrade``, ``versions`` and ``runtimes``.

In: cells, and versions that exist. Out: what an upgrade breaks, which version repairs a cell, which runtimes compute it right.
"""
