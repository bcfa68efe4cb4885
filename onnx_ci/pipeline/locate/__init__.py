"""Where a file that fails goes wrong: the nodes, the operator of the model that they should compute, and its source line.

In come a file, the live model and an input on which they differ; out come culprits with the nodes around them, or the passes of
ONNX Runtime's optimizer that are wrong. A cell that passes never gets here.

A fault is located by values, not by names, so nothing is needed from the exporter, and any given file can be searched.
:mod:`.model_trace` records the model's operators in float64 on the input that fails, with their source lines.
:mod:`.single_nodes` runs the file's nodes one by one, and :mod:`.pairs` gives each of them the model's own values, so that no
node is blamed for an error that it inherits. :mod:`.culprits` finds the nodes where the two part, and :mod:`.repairs` tells
which of several is at fault. :mod:`.frozen_lines` says what the exporter took from the example, and :mod:`.export_questions`
whether the model itself behaves differently in an export. Where the file is right, :mod:`.locate` names the pass of ONNX
Runtime that is wrong. Where no node shows the fault, :mod:`~onnx_ci.engine.part_at_fault` names the calls of torch that fail by
themselves.

Only unexpected errors are located, and only on the CPU.
"""
