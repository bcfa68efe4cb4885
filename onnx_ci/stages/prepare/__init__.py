"""Step 3: from a recipe to its live model, inputs, reference outputs and noise.

Imported by the later stages, the cache and the engine.
"""
