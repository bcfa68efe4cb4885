"""Options of torch.onnx.export, and models that behave differently during training or export."""
