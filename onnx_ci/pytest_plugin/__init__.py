"""The pytest plugin. Only pytest imports it, through its entry point.

In come pytest's hooks; out go recipes as collectors and cells as tests. The session judges them, as for the other front-ends.
"""
