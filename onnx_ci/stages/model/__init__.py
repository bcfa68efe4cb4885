"""Step 3: a recipe in, its live model out: which kind of object it is, copies, containers, devices, weights and global state.

Every later stage imports it.
"""
