"""``onnx-ci show``: graphs of cells and of files, and what is no graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from toolbox.files import FLOAT, model_of

ROWS = {"x": (FLOAT, ["n", 3])}
NET = """
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            return torch.sigmoid(self.layer(x)).reshape(-1)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def net():
        return Net(), (torch.randn(3, 4),)

    @onnx_ci.recipe
    def unwritable():
        class Unwritable(torch.nn.Module):
            def forward(self, x):
                return torch.linalg.qr(x)[1]
        return Unwritable(), (torch.randn(3, 3),)

    @onnx_ci.recipe
    def falls():
        import os
        os._exit(9)
"""


@pytest.fixture
def show(project):
    project.recipes(NET)

    def show(*arguments):
        if any("::" in argument for argument in arguments):
            return project.command("onnx_ci", "show", *arguments)
        return project.in_process("show", *arguments)

    return show


def test_a_cell_is_exported_and_shown(show):
    done = show("onnx_recipes.py::net::opset13-cpu")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("opset ai.onnx 13; ")
    assert lines[1:5] == ["inputs", "  x: float32[3, 4]", "outputs", "  y: float32[12]"]
    assert "  layer.weight: float32[4, 4]" in lines
    assert any("Gemm(x, layer.weight, layer.bias) {alpha=1" in line for line in lines)


@pytest.mark.slow
def test_a_cell_may_name_its_exporter(show):
    done = show("net::opset18-cpu-torchscript", "net::opset18-cpu")
    assert done.returncode == 1
    assert done.stdout.startswith("--- net::opset18-cpu-torchscript\n+++ net::opset18-cpu\n")


@pytest.mark.slow
def test_a_file_is_compared_with_an_export_of_today(show, project):
    project.command("onnx_ci", "run", "--select=net::opset13-cpu", "--artifacts=kept", "--opsets=13", "--effort=quick")
    file = "kept/net/opset13-cpu.onnx"
    same = show(file, "net::opset13-cpu")
    assert (same.returncode, same.stdout) == (0, "the graphs are the same up to the names of their values\n")
    other = show(file, "net::opset14-cpu")
    assert other.returncode == 1
    assert [line for line in other.stdout.splitlines() if line.startswith("+  ") and "Reshape" in line]
    assert show(file, file).returncode == 0


def test_colours_tell_what_is_gone_and_what_is_new(show):
    done = show("net::opset13-cpu", "net::opset14-cpu", "--color=always")
    assert "\x1b[31m-" in done.stdout
    assert "\x1b[32m+" in done.stdout


@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_a_cell_that_cannot_be_exported_has_no_graph(show, isolation):
    done = show("unwritable::opset13-cpu", f"--isolation={isolation}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "onnx-ci: unwritable::opset13-cpu cannot be exported: unwritable: the torchscript exporter raised"
    )
    assert len(done.stderr.splitlines()) == 1


def test_a_process_that_dies_is_told(show):
    done = show("net::opset13-cpu", "falls::opset13-cpu")
    assert (done.returncode, done.stdout) == (1, "")
    said = "falls::opset13-cpu: the process reading or exporting it ended by itself with exit code 9"
    assert done.stderr == f"onnx-ci: {said}\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.onnx", None, "there is no file gone.onnx; did you mean 'gone2.onnx'?"),
        ("net", None, "there is no file net; for a cell, add its label: net::opset13-cpu"),
        ("folder", None, "folder is a directory; pass a file in it"),
        ("/dev/null", None, "/dev/null is not a file but a device"),
        ("empty.onnx", b"", "empty.onnx: the file is empty"),
        ("text.onnx", b"not a model, but some text", "text.onnx: the file is not a readable ONNX model"),
        (
            "pointer.onnx",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "pointer.onnx: the file is a Git LFS",
        ),
        ("graphless.onnx", onnx.ModelProto(ir_version=8).SerializeToString(), "graphless.onnx contains no graph"),
        (
            "net::opset13",
            None,
            "'net::opset13' is not the id of a cell: a cell is FILE::RECIPE::opset13-cpu or RECIPE::opset13-cpu",
        ),
        ("ned::opset13-cpu", None, "there is no recipe 'ned'; did you mean 'net'?"),
        ("onnx_recipe.py::net::opset13-cpu", None, "there is no onnx_recipe.py; did you mean 'onnx_recipes.py'?"),
        ("net::opset13-cuda:7", None, "no cuda:7: "),
    ],
)
def test_what_is_no_graph_is_refused_for_what_it_is(show, project, name, content, said):
    (project.root / "gone2.onnx").touch()
    (project.root / "folder").mkdir()
    if content is not None:
        (project.root / name).write_bytes(content)
    done = show(name)
    assert (done.returncode, done.stdout) == (4 if "cuda" in name else 2, "")
    assert done.stderr.startswith(f"onnx-ci: {said}")
    assert len(done.stderr.splitlines()) == 1


def test_a_damaged_file_is_refused(show, project):
    model = model_of([("Neg", ["x"], ["y"])], ROWS, {"y": ROWS["x"]}).SerializeToString()
    (project.root / "cut.onnx").write_bytes(model[: len(model) // 2])
    done = show("cut.onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert "It is damaged, truncated, or not ONNX" in done.stderr


def test_what_is_too_long_to_read_is_shown_on_request(show, project):
    nodes = [("Neg", [f"v{at}"], [f"v{at + 1}"]) for at in range(3000)]
    model = model_of(nodes, {"v0": ROWS["x"]}, {"v3000": ROWS["x"]})
    model.producer_name = "x" * 100_000
    onnx.save(model, project.root / "m.onnx")
    short, whole = show("m.onnx").stdout.splitlines(), show("m.onnx", "--all").stdout.splitlines()
    assert len(whole) == 3006
    assert (len(short), short[-1]) == (2001, "… and 1,006 more lines; for all of it, use --all")
    assert short[1:-1] == whole[1:2000]
    assert len(short[0]) < 1100
    assert len(whole[0]) > 100_000


def test_missing_weights_matter_to_a_difference_only(show, project):
    model = model_of([("MatMul", ["x", "w"], ["y"])], ROWS, {"y": ROWS["x"]}, {"w": np.ones((3, 3), np.float32)})
    onnx.save(model, project.root / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (project.root / "m.data").unlink()
    assert "  w: float32[3, 3]" in show("m.onnx").stdout.splitlines()
    done = show("m.onnx", "m.onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("onnx-ci: the weights of m.onnx cannot be read: ")


SEVERAL = """
    def export(model, args, kwargs, opset, path):
        files = {name: path.with_name(f"{name}.onnx") for name in ("first", "second")}
        for file in files.values():
            torch.onnx.export(model, args, file, opset_version=opset, dynamo=False)
        return files

    @onnx_ci.recipe(export=export, run_files=lambda files, x: files["first"](dict(zip(files["first"].inputs, [x]))))
    def both():
        return torch.nn.ReLU(), (torch.randn(3, 4),)
"""


def test_a_cell_with_several_files_is_told_how_to_show_one(project):
    project.recipes(SEVERAL)
    done = project.command("onnx_ci", "show", "both::opset13-cpu-custom")
    assert done.returncode == 2
    assert "both::opset13-cpu-custom has several files: keep them (onnx-ci run --artifacts=FOLDER" in done.stderr


def test_a_cell_of_a_pass_is_not_shown_as_the_exporters_own(project):
    project.recipes(NET.replace('["y"])', '["y"], then="ort-optimized")', 1))
    done = project.command("onnx_ci", "show", "net::opset13-cpu+ort-optimized")
    assert (done.returncode, "is written by a pass: keep it (onnx-ci run --artifacts=FOLDER)" in done.stderr) == (2, True)
