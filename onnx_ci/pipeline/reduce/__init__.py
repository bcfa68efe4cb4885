"""A failing model cut down to the few calls of torch that fail by themselves, with data of their own.

In come a recipe's model, its probes and the cell that failed; out comes a `Program` that still fails in the same way.

:mod:`.record` notes which functions of torch the model calls, with their lines, and what kind of values they get.
:mod:`.search` exports one call of each kind by itself, then longer parts, with random values of that kind, and leaves out the
calls without which a part still fails. What :mod:`.trial` runs is the text that :mod:`.script` makes of a program, so nothing
of the project can be in it. If no part fails, the fault is in the model's own Python code.
"""
