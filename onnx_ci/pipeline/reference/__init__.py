"""A model and inputs in; out come its outputs in float64, and how much of its own outputs is rounding or chance.

Chance is random numbers, and the order of equal values. The rounding is the unit of every comparison. The later stages import
this room, and ``pipeline.model`` does not know it.
"""
