"""A report shown: in comes a :class:`~onnx_ci.results.run_report.RunReport`, out come text, Markdown, HTML and files for CI.

Nothing is decided here. The front-ends use it.
"""
