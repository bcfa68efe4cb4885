"""A model and its example in, probes out: other values, special values, sizes, branches and sequences.

What is known about the inputs decides what is drawn; the eager model decides what is legal.
"""
