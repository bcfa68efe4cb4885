"""From the model of a recipe to the ONNX file that an exporter writes, or to findings that say why there is none.

The exporters of torch are two modules behind the protocol in :mod:`~onnx_ci.pipeline.export.exporter`; other packages add
theirs as plug-ins.
"""
