"""Step 7: from output tensors and references to drift, findings, and whether the file or a runtime is at fault."""
