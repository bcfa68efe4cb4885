"""Records a run of a model once, so that every question about it is a function of the record.

A call of a model comes in; a :class:`~onnx_ci.pipeline.trace.trace.Trace` goes out.
"""
