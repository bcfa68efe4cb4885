"""A recipe that raises for want of a file or a package is told what helps."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path

import pytest
import torch
from toolbox.cells import task

import onnx_ci
from onnx_ci.pipeline.model.call import PrepareError
from onnx_ci.pipeline.prepare.prepare import prepare

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n"
USUAL = "Run the recipe's function by itself"


class OwnClass:
    """What torch.load refuses by default."""


def loads(name, text):
    def load(folder):
        (folder / name).write_text(text)
        if name.endswith(".pt"):
            torch.load(folder / name)
        safetensors = pytest.importorskip("safetensors.torch", reason="transformers brings safetensors")
        safetensors.load_file(folder / name)

    return load


def loads_an_object(folder):
    torch.save(OwnClass(), folder / "net.pt")
    torch.load(folder / "net.pt")


@pytest.mark.parametrize(
    ("fails", "remedy"),
    [
        (lambda folder: torch.load("weights/net.pt"), "beside the recipe's file is Path(__file__).parent / 'weights/net.pt'."),
        (lambda folder: torch.load(folder / "none.pt"), "A fresh clone has only what is committed."),
        (lambda folder: Path("~/net.pt").read_bytes(), "Path('~/net.pt').expanduser() does."),
        (lambda folder: torch.load("https://example.com/net.pt"), USUAL),
        (lambda folder: subprocess.run(["no-such-program"], check=True), USUAL),
        (lambda folder: importlib.import_module("no_such_package.part"), "Install what contains no_such_package where"),
        (lambda folder: importlib.import_module("torch.no_such_part"), "The torch that is installed has no torch.no_such_part"),
        (loads("net.pt", POINTER), "run git lfs pull"),
        (loads("net.safetensors", POINTER), "run git lfs pull"),
        (loads("net.pt", "no weights"), USUAL),
        (loads_an_object, USUAL),
        (lambda folder: torch.nn.Linear(2, 3).load_state_dict({}), USUAL),
    ],
    ids=[
        *("relative path", "absolute path", "home", "address", "program", "package", "part of a package"),
        *("pointer", "pointer as safetensors", "other text", "object", "state"),
    ],
)
def test_what_helps_is_told_where_it_is_known(fails, remedy, tmp_path):
    with pytest.raises(PrepareError) as caught:
        prepare(task(onnx_ci.recipe(name="net")(lambda: fails(tmp_path))))
    assert remedy in caught.value.finding.remedy
