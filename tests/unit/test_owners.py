from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import numpy
import pytest
import torch

import onnx_ci
from onnx_ci.owners import Owner, owner_of


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        (torch.nn.modules.rnn.__file__, Owner.TOOLCHAIN),
        (onnx_ci.__file__, Owner.TOOLCHAIN),
        (json.__file__, Owner.TOOLCHAIN),
        ("<string>", Owner.TOOLCHAIN),
        ("", Owner.TOOLCHAIN),
        (pytest.__file__, Owner.LIBRARY),
        (numpy.__file__, Owner.LIBRARY),
        (f"{sysconfig.get_path('scripts')}/pytest", Owner.LIBRARY),
        ("/another/environment/site-packages/zoo/net.py", Owner.LIBRARY),
        ("/home/me/project/net.py", Owner.PROJECT),
        ("/home/me/project/torch/net.py", Owner.PROJECT),
        (str(Path(__file__).parents[2] / "recipes/models/alexnet.py"), Owner.PROJECT),
    ],
)
def test_whose_code_a_file_is(file, owner):
    assert owner_of(file) is owner
