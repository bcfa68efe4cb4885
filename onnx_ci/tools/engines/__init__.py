"""From the name of an engine to a runtime: engines that run ONNX files, each a module and an extra of its own.

The gate imports one of them only if a run names it. Also what any runtime must get right, which ``pytest --onnx-runtime`` runs.
"""
