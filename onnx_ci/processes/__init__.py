"""Supervised child processes, what they may use, what code prints in them, and folders for temporary files.

In comes a function; out come its messages and, if its process dies, the reason. Nothing here knows of cells.
"""
