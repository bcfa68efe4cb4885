"""Recipe files in, :class:`~onnx_ci.collection.recipe.Recipe` values with unique names out.

A file that cannot be used becomes a problem and does not affect the others. Any later room may import this one.
"""
