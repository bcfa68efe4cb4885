"""Two ONNX files in, and how they differ out: in their interfaces and in what they compute on the same inputs.

Used by the command ``compare`` and by :func:`onnx_ci.compare`; no room below knows of it.
"""
