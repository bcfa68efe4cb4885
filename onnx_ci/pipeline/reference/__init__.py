"""A model and inputs in; out come its outputs in float64, and how much of its own outputs is rounding, ties or chance.

That rounding is the unit of every comparison. The later passes import this room, and ``pipeline.model`` does not know it.
"""
