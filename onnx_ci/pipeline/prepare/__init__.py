"""Orders the rooms ``model``, ``reference`` and ``inputs``: a recipe in, all that its cells need before an export out.

Also finds what a run of the model affects, and which modules affect its outputs.
"""
