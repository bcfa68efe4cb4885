"""Step 4: from a prepared recipe to the ONNX file of ``torch.onnx.export``, with the exporter's errors and warnings."""
