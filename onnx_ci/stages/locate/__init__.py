"""Where a file that fails goes wrong: the nodes, the operator of the model that they should compute, and its source line.

In come a file, the live model and an input on which they differ; out come culprits and the nodes around them, or the passes of
ONNX Runtime's optimizer that are at fault. Nothing here runs for a cell that passes.
"""
