"""The values that are passed between the stages and out of a run, the rules they refer to, and the verdict.

Every record is frozen and has the same structure in memory and in JSON. Any package may import this one, which imports only
``opsets`` and ``errors``.
"""
