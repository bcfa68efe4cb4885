"""From the exporter's file to the file that ships, through the passes of ``@recipe(then=[...])``.

Each pass writes its own file. :mod:`~onnx_ci.pipeline.post_export.shipped_reference` says what that file is compared with.
"""
