"""A :class:`~onnx_ci.records.RunReport` as people and programs read it. Nothing here decides anything."""
