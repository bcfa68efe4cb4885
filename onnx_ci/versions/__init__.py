"""Other versions of installed packages, without changing what is installed.

In: what to request of the package index. Out: a folder for the path of a child process, and what its run reports.
"""
