"""Where a file runs: the commands ``runtimes`` and ``faults``, the nodes at which a runtime goes wrong, and its known faults.

In: cells or files, and the names of runtimes. Out: which of them compute the file right, how far the others are off, and where.
"""
