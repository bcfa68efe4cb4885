"""Inputs and outputs that are not plain float32 tensors."""
