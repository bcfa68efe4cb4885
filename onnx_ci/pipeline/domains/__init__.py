"""Says what the inputs of a model are: which axes differ in size, and which values they may have.

Declarations and a trace of the example come in; an :class:`~onnx_ci.pipeline.domains.input_domains.InputDomains` goes out.
"""
