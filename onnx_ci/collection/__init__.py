"""Step 1: recipe files in, :class:`Recipe` values with unique names out.

A file that cannot be used becomes a problem and does not affect the others. Imported by the matrix and everything after it.
"""
