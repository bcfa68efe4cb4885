"""Cells judged with other versions of packages: what an upgrade breaks, which version repairs a cell, which runtimes do.

In: cells, and versions that exist. Out: what the cells' results are with them.
"""
