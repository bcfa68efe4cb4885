"""A model, its example and the domains of its inputs in, probes out: special values, sizes, branches and sequences.

What is known about the inputs decides what is drawn; the eager model decides what is legal.
"""
