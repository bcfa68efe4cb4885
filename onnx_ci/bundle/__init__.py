"""A bug report that stands alone: a script, a file and data that have the fault and nothing else of the user's project.

In: a planned cell and its findings. Out: a folder.
"""
