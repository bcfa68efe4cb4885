"""From an ONNX file and inputs, as tensors by name, to the output tensors of a runtime, or to what it raises.

Each runtime is a module behind the protocol in :mod:`~onnx_ci.pipeline.run.runtime`; other packages add theirs as plug-ins.
"""
