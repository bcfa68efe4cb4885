"""Cells judged with other versions of packages: the commands ``upgrade`` and ``versions``.

In: cells, and versions that exist. Out: what an upgrade breaks, which version repairs a cell.
"""
