"""The pages of the rules: installed as ``onnx_ci.rule_pages``, so that ``onnx-ci why`` can show them."""
