"""From output tensors and references to drift, findings, and whether the file or a runtime is at fault.

Drift is error ÷ noise, in :mod:`.drift`. :mod:`onnx_ci.pipeline.judge` is what calls this room for each file.
"""
