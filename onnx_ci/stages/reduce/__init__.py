"""A failing model cut down to the few calls that fail by themselves, with data of their own.

In: a prepared recipe, and the cell that failed. Out: a `Program` that still fails in the same way, and its script.
"""
