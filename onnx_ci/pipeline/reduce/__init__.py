"""A failing model cut down to the few calls of torch that fail by themselves, with data of their own.

In come a prepared recipe and the cell that failed; out comes a `Program` that still fails in the same way, and its script.

A bug report is a program, not the model. :mod:`.record` notes which functions of torch the model calls, with their lines, and
what kind of values they get. :mod:`.search` exports the calls at the line at fault, or one of each kind, by themselves, with
random values of that kind. :mod:`.smaller` takes the first part that fails as the cell does, and makes it smaller as long as it
fails. What :mod:`.trial` runs is the text that :mod:`.script` gives to the user, so nothing of the project can be in it. If no
part fails, the fault is in the model's own Python code, and there is nothing to report.
"""
