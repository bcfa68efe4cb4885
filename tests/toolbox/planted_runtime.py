"""A runtime of an installed package that is right, unless the variable BUG names one of its faults."""

from __future__ import annotations

PLANTED = {"onnx_ci.runtimes": {"planted": "planted:Planted"}}
"""Its entry point."""

FAULTS = ("scale", "batch", "stale", "double", "numpy", "missing", "none", "segv", "hang")
"""What BUG can be."""

PLANTED_CODE = """
    import os
    import signal
    import time

    import torch
    from onnx.reference import ReferenceEvaluator

    BUG = os.environ.get("BUG", "")

    class Planted:
        name = "planted"
        is_deployed = True
        timeout = 10.0 if BUG == "hang" else 120.0

        def missing_device(self, device):
            return None if device == "cpu" else "it runs on the CPU only"

        def load(self, path, device):
            return PlantedSession(ReferenceEvaluator(str(path)))

    class PlantedSession:
        provider = "cpu"
        nodes_on_cpu = None
        first = None

        def __init__(self, evaluator):
            self.evaluator = evaluator

        def run(self, inputs, *, seed=None):
            if inputs.keys() != set(self.evaluator.input_names):
                raise ValueError("these are not the inputs of the file")
            arrays = self.evaluator.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
            outputs = [torch.as_tensor(array) for array in arrays]
            if BUG == "scale":
                return [output * 1.0001 if output.is_floating_point() else output for output in outputs]
            if BUG == "batch":
                return [torch.cat([output[:2], torch.zeros_like(output[2:])]) if output.ndim else output for output in outputs]
            if BUG == "stale":
                self.first = self.first or outputs
                return self.first
            if BUG == "double":
                return [output.double() for output in outputs]
            if BUG == "numpy":
                return arrays
            if BUG == "missing":
                return outputs[:-1]
            if BUG == "none":
                return None
            if BUG == "segv":
                os.kill(os.getpid(), signal.SIGSEGV)
            if BUG == "hang":
                time.sleep(1000)
            return outputs
"""
