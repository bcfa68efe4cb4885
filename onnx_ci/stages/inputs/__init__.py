"""Step 3: a model and its example in, probes out: other values, special values, sizes, branches and sequences.

The domains of the inputs decide what is drawn; the eager model decides what is legal.
"""
