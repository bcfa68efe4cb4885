"""A bug report that stands alone: in come a cell and its findings, out comes a folder.

The script, the file and the data in it have the fault and nothing else of the user's project.
"""
