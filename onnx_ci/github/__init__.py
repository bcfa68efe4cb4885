"""The GitHub Actions: the gate, and the publication of its verdict. Only ``action.py`` imports it.

In come the inputs of a step, as environment variables; out go the log, annotations, the job's summary, outputs and an exit
code. The second action gets the report of a finished run, and writes a comment and a check.
"""
