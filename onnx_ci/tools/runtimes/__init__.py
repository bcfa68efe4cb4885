"""Where a file runs: the command ``runtimes``, the nodes at which a runtime goes wrong, and the faults that are known by now.

In: cells or files, and the names of runtimes. Out: which of them compute the file right, how far the others are off, and where.
"""
