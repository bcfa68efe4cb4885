"""Remedies that name a change are carried out as they are written, and then the cell passes.

Each module is wrong in one way. What its first error says is done to its text by :data:`CHANGES`, which know nothing of it.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import onnx_ci
from onnx_ci import CellResult, Finding, Severity, Status

# --- what remedies say, and how it is done ------------------------------------------------------------------------------


def write_instead(text: str, finding: Finding, match: re.Match[str]) -> str:
    """Writes an expression in place of a number, after the name of the function that gets it."""
    lines = text.splitlines()
    for code, number, function, line in re.findall(
        r"(\S+) instead of (\d+) (?:there|in (\w+)\(\))(?: at \S+:(\d+))?", match[0]
    ):
        place = int(line or finding.lines[0].line) - 1
        before, name, after = lines[place].partition(f"{function}(" if function else "[")
        lines[place] = before + name + re.sub(rf"\b{number}\b", code, after, count=1)
    return "\n".join(lines)


def in_line(before: str, after: str) -> Callable[[str, Finding, re.Match[str]], str]:
    """Replaces a pattern in the line that the finding names."""

    def change(text: str, finding: Finding, match: re.Match[str]) -> str:
        lines = text.splitlines()
        place = finding.lines[0].line - 1
        lines[place] = re.sub(before, after.replace("REMEDY", match.expand(r"\g<0>").split(" ")[-2]), lines[place])
        return "\n".join(lines)

    return change


def in_text(before: str, after: str) -> Callable[[str, Finding, re.Match[str]], str]:
    """Replaces the first place of a pattern in the module."""
    return lambda text, finding, match: re.sub(before, match.expand(after), text, count=1)


def declare(keywords: str) -> Callable[[str, Finding, re.Match[str]], str]:
    """Adds keywords to the recipe."""
    return lambda text, finding, match: text.replace("\nnet =", f"\nKEYWORDS |= dict({match.expand(keywords)})\nnet =")


CHANGES: dict[str, Callable[[str, Finding, re.Match[str]], str]] = {
    r"Write .+ instead of \d+ .+": write_instead,
    r"Leave it out\.": in_line(r"\.squeeze\(\)", ""),
    r"Write squeeze\(.+\) there\.": in_line(r"squeeze\(\)", "REMEDY"),
    r"Leave axis 0 out of dynamic_axes\['y'\].*, but that of axis (\d) does": in_text(r'"y": \{0', r'"y": {\1'),
    r"[Ll]eave axis 0 out of dynamic_axes\['y'\]": in_text(r', "y": \{0: "batch"\}', ""),
    r"Give axis 0 of 'y' a name of its own": in_text(r'"y": \{0: "batch"', r'"y": {0: "own"'),
    r"[Dd]eclare (optimize=False|autograd_inlining=False)": declare(r"\1"),
    r"Declare exporter='dynamo' and opsets from 18|Use dynamo, which": declare("exporter='dynamo', opsets='18'"),
    r"pass x\.clone\(\)": in_text(r"\(ids, ids\)", "(ids, ids.clone())"),
    r"Return the model itself instead of torch\.jit\.script\(model\)": in_text(r"torch\.jit\.script\((.+?\))\)", "Model()"),
    r"give dynamic_axes to torch\.onnx\.export": in_text("dynamo=False", "dynamo=False, dynamic_axes={'x': {0: 'batch'}}"),
    r"without int\(\)": in_line(r"int\((x\.shape\[0\])\)", r"\1"),
    r"[Pp]ass training=self\.training to F\.dropout": in_line(r"dropout\((.+)\)$", r"dropout(\1, training=self.training)"),
    r"y(\.masked_fill\()hidden(\[..., None\], 0\.0\)) after": in_text(r"(?<=padding_mask=z\))", r"\1z\2"),
    r"Declare output_names in the model's own order": in_text(r'\["b", "a"\]', '["a", "b"]'),
}
"""By what a remedy says, the change of the module's text."""

# --- modules that are wrong ---------------------------------------------------------------------------------------------

MODULE = """\
import onnx
import onnx_ci
import torch
from torch import nn
from torch.nn import functional as F

KEYWORDS = dict(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, opsets="13")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        FORWARD


def example():
    return Model(), (torch.randn(2, 3, 4),)


net = onnx_ci.recipe(name="net", **KEYWORDS)(example)
"""


def module(forward: str, *changes: tuple[str, str]) -> str:
    """A module with this body of forward, and with other texts in place of some."""
    text = MODULE.replace("FORWARD", forward)
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text


DYNAMO = ('opsets="13"', 'opsets="18"')
ONE = ("torch.randn(2, 3, 4)", "torch.randn(1, 3, 4)")
PAIR = ('"x"],', '"x", "z"],'), ("def forward(self, x)", "def forward(self, x, z)")
SIDES = """\
x1 = self.layer(x)
        x2 = self.side(F.max_pool2d(x1, 2, stride=2, ceil_mode=True))
        return x1, F.interpolate(x2, size=x1.shape[2:], mode="bilinear")"""
ENCODER = """\
layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.layer = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True)"""
FUNCTION = """\
class Passing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def symbolic(g, x):
        return g.op("Identity", x)


class Model("""
EXPORT = """\
def export(model, args, kwargs, opset, path):
    torch.onnx.export(model, args, path, opset_version=opset, dynamo=False, input_names=["x"], output_names=["y"])
    made = onnx.load(path)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(made, path)


KEYWORDS |= dict(export=export, dynamic_axes={"x": {0: "batch"}})
net ="""

QUICK = {
    "view": module("return self.layer(x.view(2, 4, -1).mean(2))"),
    "reshape that the model absorbs": module("return self.layer(x.reshape(2, -1, 4).mean(1))"),
    "sizes that are refused": module("return self.layer(x.view(2, 12)[:, :4])"),
    "zeros": module("return self.layer(x.mean(1) + torch.zeros(2, 4))"),
    "two lines": module("x = x.view(2, 4, -1).mean(2)\n        return self.layer(x + torch.zeros(2, 4))"),
    "one": module("return self.layer(x.mean(1).view(1, -1)[:, :4])", ONE),
    "slice": module("return self.layer(x)[:2]"),
    "squeeze of the batch": module("return self.layer(x.squeeze())", ONE),
    "squeeze of another axis": module("return self.layer(x.mean(1, keepdim=True).squeeze())"),
    "another axis": module("return self.layer(x.mean(1)).T"),
    "mean": module("return self.layer(x).mean((0, 1))"),
    "rows that are more": module("return torch.cat([self.layer(x), x])"),
    "int": module("return self.layer(x.view(int(x.shape[0]) * 3, 4))", ('"y": {0: "batch"}', '"y": {0: "rows"}')),
    "arange": module("return self.layer(x) + torch.arange(int(x.shape[0]))[:, None, None]"),
    "dropout": module("x = F.dropout(x)\n        return self.layer(x)"),
    "swapped names": module("return {'a': x * 2, 'b': x + 1}", ('["y"]', '["b", "a"]'), (', "y": {0: "batch"}', "")),
    "a script": module(
        "return {'y': self.layer(x)}", ("Model(), (t", "torch.jit.script(Model()), (t"), ("self, x)", "self, x: torch.Tensor)")
    ),
    "autograd": module(
        "y = self.layer(x)\n        return Passing.apply(y)", ("class Model(", FUNCTION), ('opsets="13"', 'opsets="17"')
    ),
    "a custom export": module("return self.layer(x.view(x.size(0), -1)[:, :4])", ONE, ("net =", EXPORT)),
}
SLOW = {
    "view, dynamo": module("return self.layer(x.view(2, 4, -1).mean(2))", DYNAMO),
    "sizes that are refused, dynamo": module("return self.layer(x.view(2, 12)[:, :4])", DYNAMO),
    "squeeze, dynamo": module("return self.layer(x.mean(1, keepdim=True).squeeze())", DYNAMO),
    "a script, dynamo": module(
        "return {'y': self.layer(x)}",
        ("Model(), (t", "torch.jit.script(Model()), (t"),
        ("self, x)", "self, x: torch.Tensor)"),
        DYNAMO,
    ),
    "the optimizer": module("y = torch.relu(self.layer(x))\n        return ((y * y).sum(-1) + 1e-8).sqrt()", DYNAMO),
    "index_add": module(
        "return torch.zeros(4, x.shape[1]).index_add(0, z, x)",
        *PAIR,
        ("torch.randn(2, 3, 4),", "torch.randn(7, 3), torch.tensor([0, 1, 1, 2, 3, 3, 0])"),
        (', "y": {0: "batch"}', ', "z": {0: "batch"}'),
    ),
    "one tensor twice": module(
        "return self.layer(x) + z",
        *PAIR,
        ("    return Model(), (torch.randn(2, 3, 4),)", "    ids = torch.randn(2, 3, 4)\n    return Model(), (ids, ids)"),
        ('"y": {', '"z": {0: "batch"}, "y": {'),
        DYNAMO,
    ),
    "a name of the exporter's": module(
        SIDES,
        (
            "self.layer = nn.Linear(4, 4)",
            "self.layer, self.side = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)",
        ),
        ("torch.randn(2, 3, 4)", "torch.randn(1, 3, 16, 12)"),
        ('"y": {0: "batch"}', '"y": {0: "batch"}, "z": {0: "batch"}'),
        ('{0: "batch"}', '{0: "batch", 2: "height", 3: "width"}'),
        ('["y"]', '["y", "z"]'),
    ),
    "a fast path": module(
        "return self.layer(x, src_key_padding_mask=z)",
        *PAIR,
        ("self.layer = nn.Linear(4, 4)", ENCODER),
        ("return Model(), (torch.randn(2, 3, 4),)", "return Model().eval(), (torch.randn(2, 3, 4), HIDDEN)"),
        ("\ndef example", "\nHIDDEN = torch.tensor([[False, False, False], [False, False, True]])\n\n\ndef example"),
        (', "y"', ', "z": {0: "batch"}, "y"'),
        ('opsets="13"', 'opsets="17"'),
    ),
}


def judged(text: str, folder: Path) -> CellResult:
    """The verdict on the recipe of a module."""
    file = folder / "net.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("net", file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    (result,) = onnx_ci.run([loaded.net]).cells
    return result


def first_error(result: CellResult) -> Finding:
    return next(each for each in result.findings if each.severity is Severity.ERROR)


@pytest.mark.parametrize(
    "text",
    [
        *(pytest.param(text, id=name) for name, text in QUICK.items()),
        *(pytest.param(text, id=name, marks=pytest.mark.slow) for name, text in SLOW.items()),
    ],
)
def test_what_a_remedy_says_is_done_and_the_cell_passes(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "changed").mkdir()
    monkeypatch.chdir(tmp_path)
    found = first_error(judged(text, tmp_path / "wrong"))
    match, change = next((match, change) for says, change in CHANGES.items() if (match := re.search(says, found.remedy)))
    changed = change(text, found, match)
    assert changed != text
    result = judged(changed, tmp_path / "changed")
    assert result.status is Status.PASSED, (found.remedy, changed, [each.message for each in result.findings])


def test_there_are_enough_modules() -> None:
    assert len(QUICK) >= 15
