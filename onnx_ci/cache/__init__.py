"""The verdicts of earlier runs, and whether they still hold.

In come the evidence about a cell and what its processes read; out comes, in a later run, that evidence again, or the reason why
the cell has to run. Nothing here needs torch.
"""
