"""Every operator that the torch.onnx documentation lists as supported, one recipe each."""
