"""Step 3: a model and inputs in, its outputs in float64 out, and how much of its own outputs is rounding, ties or chance."""
