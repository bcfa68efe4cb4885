"""The values that travel between the stages and out of a run, the rules that they refer to, and the verdict.

In come the findings of all stages; out come a status for each cell, an exit code for the run, and the report. Records are
frozen and have the same structure in memory and in JSON.
"""
