"""Cells in, one result for each out. Only this package knows the order of the stages.

:mod:`~onnx_ci.engine.session` is the run behind every front-end. Imported by ``api`` and the front-ends.
"""
