"""From the exporter's file to the file that ships, through the stages of ``@recipe(then=[...])``.

Each stage writes its own file. :mod:`~onnx_ci.pipeline.post_export.shipped_reference` says what that file is compared with.
"""
