"""A stand-in for the package index: a folder with versions of an exporter, ``mirror``, and of what it works beside, ``lens``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from toolbox.distributions import wheel

_EXPORTER = """
    import onnx
    import torch
    {imports}

    class Mirror:
        def export(self, request, path):
            {first}
            torch.onnx.export(
                request.model, request.args, str(path), opset_version=request.opset_version, dynamo=False,
                input_names=[*request.input_names], output_names=[*request.output_names], dynamic_axes=request.dynamic_axes,
            )
            model = onnx.load(path)
            {change}
            if {is_wrong}:
                output = model.graph.output[0].name
                last = next(node for node in model.graph.node if output in node.output)
                last.output[0] = "positive"
                model.graph.node.append(onnx.helper.make_node("Neg", ["positive"], [output]))
            onnx.save_model(model, path)
"""
ENTRY = {"onnx_ci.exporters": {"mirror": "mirror:Mirror"}}

WRONG = {"is_wrong": "True"}
RAISES = {"first": "raise RuntimeError('the mirror is broken')"}
BESIDE_OLD_LENS = {"imports": "import lens", "is_wrong": "lens.TURNS"}
"""Right only beside the first version of ``lens``."""

_RUNTIME = """
    import os
    import sys
    from pathlib import Path

    import onnx

    # The module of the same name that is installed, changed, takes the place of this one.
    sys.path.remove(str(Path(__file__).parent))
    del sys.modules["onnxruntime"]
    import onnxruntime


    class Session(onnxruntime.InferenceSession):
        def __init__(self, path, **options):
            if onnx.load(path).ir_version > {newest_ir}:
                raise RuntimeError("Unsupported model IR version")
            super().__init__(path, **options)

        def run_with_ort_values(self, names, feeds):
            print("printed by the runtime")
            values = super().run_with_ort_values(names, feeds)
            {change}
            return values


    onnxruntime.InferenceSession = Session
"""
NEGATES = {"change": "values = [onnxruntime.OrtValue.ortvalue_from_numpy(-value.numpy()) for value in values]"}
CRASHES = {"change": "os.kill(os.getpid(), 11)"}
OLD_IR = {"newest_ir": "3"}

RECIPE = """
    @onnx_ci.recipe(
        input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, exporter="mirror"
    )
    def scale():
        return Scale(), (torch.randn(3, 4),)
"""


class Index:
    """The index, and what is installed from it."""

    def __init__(self, folder: Path) -> None:
        self.wheels, self.site, self.cache = folder / "wheels", folder / "site", folder / "cache"
        self.wheels.mkdir(parents=True)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which pip knows this index only, and Python imports what is installed from it."""
        return {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "XDG_CACHE_HOME": str(self.cache),
            "PYTHONPATH": str(self.site),
        }

    @property
    def overlays(self) -> list[str]:
        """The names of the folders with other versions, without their digests."""
        return sorted(path.name.rpartition("-")[0] for path in self.cache.glob("onnx-ci/overlays/*"))

    def mirror(self, version: str, *requires: str, **code: str) -> None:
        right = {"imports": "", "first": "pass", "change": "pass", "is_wrong": "False"}
        files = {"mirror.py": _EXPORTER.format(**right | code)}
        wheel(self.wheels, "mirror", version, files, ENTRY, requires)

    def onnxruntime(self, version: str, **code: str) -> None:
        files = {"onnxruntime.py": _RUNTIME.format(**{"newest_ir": "99", "change": "pass"} | code)}
        wheel(self.wheels, "onnxruntime", version, files)

    def lens(self, version: str, turns: bool) -> None:
        wheel(self.wheels, "lens", version, {"lens.py": f"TURNS = {turns}\n"})

    def other(self, name: str, version: str, *requires: str) -> None:
        wheel(self.wheels, name, version, {f"{name}.py": f"VERSION = {version!r}\n"}, {}, requires)

    def install(self, *requirements: str) -> None:
        """Install what a user has today."""
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={self.site}", *requirements]
        subprocess.run(command, env={**os.environ, **self.environment}, check=True, capture_output=True)
