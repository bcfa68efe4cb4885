"""Two ONNX files compared: in come two paths and settings, out comes a ``FileComparison``.

Used by the command ``compare`` and by :func:`onnx_ci.compare`; no room below knows of it.
"""
