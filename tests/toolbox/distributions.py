"""Distributions that add plug-ins: installed in a folder that is on the path, or as wheels in a folder for pip."""

from __future__ import annotations

import base64
import hashlib
import tempfile
import textwrap
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

EntryPoints = Mapping[str, Mapping[str, str]]
"""The names and values of entry points, by group."""


def install(
    folder: Path,
    name: str,
    entry_points: EntryPoints,
    files: Mapping[str, str],
    version: str = "1.0",
    requires: Iterable[str] = (),
) -> None:
    """Write the files of a distribution and what an installer records of it."""
    groups = (
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        for group, entries in entry_points.items()
    )
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    contents = {
        **{file: textwrap.dedent(text) for file, text in files.items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(groups),
    }
    for file, text in contents.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    record = "".join(f"{file},sha256={_digest(text)},{len(text.encode())}\n" for file, text in contents.items())
    (folder / info / "RECORD").write_text(record + f"{info}/RECORD,,\n", encoding="utf-8")


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    entry_points: EntryPoints = MappingProxyType({}),
    requires: Iterable[str] = (),
) -> None:
    """Write a wheel of a distribution."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as contents:
        install(Path(contents), name, entry_points, files, version, requires)
        with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as archive:
            for path in sorted(Path(contents).rglob("*")):
                archive.write(path, path.relative_to(contents))


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


TINY_ONNX = {
    "onnx_ci.exporters": {"signed": "tiny_onnx:Signed", "negating": "tiny_onnx:Negating"},
    "onnx_ci.runtimes": {"graph": "tiny_onnx:Graph", "off-by-one": "tiny_onnx:OffByOne"},
    "onnx_ci.passes": {"tidy": "tiny_onnx:TIDY", "forgetful": "tiny_onnx:FORGETFUL"},
}
"""An exporter, a runtime and a pass that are right, each with a twin that is wrong."""

TINY_ONNX_CODE = '''
    import onnx
    import torch
    from onnx.reference import ReferenceEvaluator

    import onnx_ci

    class Signed:
        def export(self, request: onnx_ci.ExportRequest, path):
            torch.onnx.export(
                request.model, request.args, str(path), kwargs=dict(request.kwargs), opset_version=request.opset_version,
                input_names=[*request.input_names], output_names=[*request.output_names],
                dynamic_axes=request.dynamic_axes, dynamo=False,
            )
            model = onnx.load(path)
            model.producer_name = "tiny"
            self.change(model)
            onnx.save_model(model, path)

        def change(self, model):
            pass

    class Negating(Signed):
        """Its files compute the negative of the first output."""

        def change(self, model):
            output = model.graph.output[0].name
            last = next(node for node in model.graph.node if output in node.output)
            last.output[0] = "positive"
            model.graph.node.append(onnx.helper.make_node("Neg", ["positive"], [output]))

    class Graph:
        name = "graph"
        is_deployed = True
        error = 0.0

        def missing_device(self, device):
            return None if device == "cpu" else "it runs on the CPU only"

        def load(self, path, device):
            return GraphSession(ReferenceEvaluator(str(path)), self.error)

    class OffByOne(Graph):
        name = "off-by-one"
        error = 1.0

    class GraphSession:
        provider = "cpu"
        nodes_on_cpu = None

        def __init__(self, evaluator, error):
            self.evaluator, self.error = evaluator, error

        def run(self, inputs, *, seed=None):
            outputs = self.evaluator.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
            return [torch.as_tensor(output) + self.error for output in outputs]

    def without_names(model, prefix=""):
        for number, node in enumerate(model.graph.node):
            node.name = f"{prefix}{number}" if prefix else ""
        return model

    def without_relu(model):
        for node in model.graph.node:
            if node.op_type == "Relu":
                node.op_type = "Identity"
        return model

    TIDY = onnx_ci.graph_pass(without_names, name="tidy")
    FORGETFUL = onnx_ci.graph_pass(without_relu, name="forgetful")
'''
