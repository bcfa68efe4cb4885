"""Known rewrites of a line: what each makes of the code, and what it leaves alone."""

from __future__ import annotations

import textwrap

import pytest

from onnx_ci.tools.fix.rewrites import rewrites, without_unused


def rewritten(
    body: str, line: int = 1, imports: str = "import math, numpy as np, torch", remedies: tuple[str, ...] = ()
) -> list[str]:
    """The bodies that a function with ``body`` has after each rewrite of one of its lines."""
    text = f"{imports}\n\n\ndef forward(self, x, y):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    head = 4
    return [
        textwrap.dedent("\n".join(each.text.splitlines()[head:])) for each in rewrites(text, head + line, remedies=remedies)
    ]


@pytest.mark.parametrize(
    ("line", "better"),
    [
        ("return x.reshape(int(x.shape[0]) * int(y), -1)", "return x.reshape(x.shape[0] * y, -1)"),
        ("half = int(x.shape[1] / 2)  # half", "half = x.shape[1] // 2  # half"),
        ("half = int(x.shape[1] * 0.75) + 1", "half = (x.shape[1] * 3 // 4) + 1"),
        ("steps = math.ceil((x.shape[1] - 1) / 4)", "steps = ((x.shape[1] - 1) + 3) // 4"),
        ("steps = 2 * math.floor(x.shape[1] / 4)", "steps = 2 * (x.shape[1] // 4)"),
        ("side = int(math.sqrt(x.shape[1]))", "side = torch.as_tensor(x.shape[1]).float().sqrt().long()"),
        ("return x[: len(y)] / x.max().item()", "return x[: y.shape[0]] / x.max()"),
        ("return (x + 1).item() * 2", "return (x + 1) * 2"),
        ("kept = min(x.shape[1], 6)", "kept = torch.minimum(torch.as_tensor(x.shape[1]), torch.as_tensor(6))"),
        ("n = torch.tensor(x.shape[0], dtype=torch.int64)", "n = torch.as_tensor(x.shape[0], dtype=torch.int64)"),
        ("n = torch.tensor([1 / (1 + i) for i in range(len(x))])", "n = torch.as_tensor(1 / (1 + torch.arange(x.shape[0])))"),
        ("x = f'{x.shape[0]}é', int(y)", "x = f'{x.shape[0]}é', y"),
        ("n = int(\n    x.shape[0]\n    + 1\n)", "n = (x.shape[0]\n    + 1)"),
    ],
)
def test_sizes_and_values_stay_tensors(line, better):
    assert rewritten(line)[0] == better


def test_a_number_that_is_a_size_is_replaced_where_it_stands():
    text = "import torch\n\n\ndef forward(self, x):\n    return x.view(2, 8, -1) / 2\n"
    first, second, *_ = (each.text.splitlines()[-1].strip() for each in rewrites(text, 5, {"2": "x.shape[0]"}))
    assert (first, second) == ("return x.view(x.shape[0], 8, -1) / 2", "return x.view(2, 8, -1) / x.shape[0]")


@pytest.mark.parametrize(
    ("remedy", "line", "better"),
    [
        ("Write a.g(3, -1).h(-1) in place of a.f(3, -1).", "return (x + 1).f(k, -1)", "return (x + 1).g(k, -1).h(-1)"),
        ("Write a.g(3, -1).h(-1) in place of a.f(3, -1).", "return torch.f(x, k, dim=2)", "return x.g(k, 2).h(2)"),
        ("Write -torch.nn.functional.g(-x) in place of torch.nn.functional.f(x).", "y = 2 * F.f(x)", "y = 2 * (-torch.nn.functional.g(-x))"),
        ("Write x.g(1) in place of x.f(1).values.", "y, _ = torch.f(x.abs(), 1)", "y = x.abs().g(1)"),
        ("Write x.g(1) in place of x.f(1).values.", "y = torch.f(x, 1)[0] + 1", "y = x.g(1) + 1"),
        ("Write a.g(0) in place of a.f_(0), which is bad.", "y.f_(1.5)", "y = y.g(1.5)"),
        ("Write x.g(-1) in place of torch.f(x, x.shape[-1]).", "y = F.f(z + 1, (z + 1).shape[2])", "y = (z + 1).g(2)"),
        ("Write torch.g(a, b) in place of a // b. Or do more.", "y = x // (y + 1)", "y = torch.g(x, y + 1)"),
        ("Divide, and write (x + y).g() in place of x.f(y), or use dynamo.", "y = x.f(x.f(y))", "y = (x + x.f(y)).g()"),
        ("Write a + (b - a) * torch.g(n) in place of torch.f(a, b, n).", "y = torch.f(0, 1, k)", "y = torch.g(k)"),
        ("Write a + (b - a) * torch.g(n) in place of torch.f(a, b, n).", "y = torch.f(2, 5, k)", "y = 2 + 3 * torch.g(k)"),
        ("Write a + (b - a) * torch.g(n) in place of torch.f(a, b, n).", "y = torch.f(0, z, k)", "y = z * torch.g(k)"),
    ],
)  # fmt: skip
def test_what_a_remedy_says_is_written_with_the_names_of_the_line(remedy, line, better):
    assert rewritten(line, imports="import torch, torch.nn.functional as F", remedies=(remedy,))[0] == better


def test_the_numbers_of_a_remedy_are_tried_as_they_are_too():
    remedy = "Write x.g(-1) in place of x.f(-1)."
    assert rewritten("return x.f(1)", imports="import torch", remedies=(remedy,)) == ["return x.g(1)", "return x.g(-1)"]


@pytest.mark.parametrize("line", ["return x.f(1, 2)", "return x.f", "return y + 1", "y, z = x.f(1)"])
def test_other_code_than_a_remedy_is_about_is_left_alone(line):
    remedies = ("Write x.g(1) in place of x.f(1).values.", "Write it. In place of 1.")
    assert rewritten(line, imports="import torch", remedies=remedies) == []


def test_a_quotient_is_rounded_down_by_name():
    assert rewritten("steps = offsets // (y + 1)") == ['steps = torch.div(offsets, y + 1, rounding_mode="floor")']


@pytest.mark.parametrize("line", ["x = float('-inf')", "x = torch.tensor([1.0, 2.0])", "x = math.sqrt(8)", "return x + y"])
def test_constants_and_other_code_are_left_alone(line):
    assert rewritten(line, imports="import math, torch") == []


@pytest.mark.parametrize(
    ("body", "better"),
    [
        ("if x.max() > 1:\n    x = x / 2\nreturn x", "x = torch.where(torch.as_tensor(x.max() > 1), x / 2, x)\nreturn x"),
        (
            "if x.max() > 1:\n    x /= y + 1\nreturn x",
            "x = torch.where(torch.as_tensor(x.max() > 1), x / (y + 1), x)\nreturn x",
        ),
        ("if c:\n    z = x\nelse:\n    z = y\nreturn z", "z = torch.where(torch.as_tensor(c), x, y)\nreturn z"),
        ("if c:\n    return x\nreturn y", "return torch.where(torch.as_tensor(c), x, y)"),
        ("return x if c else y", "return torch.where(torch.as_tensor(c), x, y)"),
        (
            "if c:\n    z = x + 1\n    x = z * 2\nreturn x",
            "taken = torch.as_tensor(c)\nz = x + 1\nx = torch.where(taken, z * 2, x)\nreturn x",
        ),
    ],
)
def test_both_sides_of_a_branch_are_computed(body, better):
    assert better in rewritten(body)


def test_a_branch_that_does_more_than_assign_is_left_alone():
    body = "if c:\n    for i in x:\n        self.calls.append(i)\nreturn x"
    assert rewritten(body) == []


def test_what_a_condition_guards_always_runs():
    body = "if self.mask is None or self.mask.shape[0] != y:\n    self.mask = torch.ones(y)\nreturn self.mask"
    assert rewritten(body) == ["self.mask = torch.ones(y)\nreturn self.mask"]
    assert rewritten("if c:\n    raise ValueError\nreturn x") == []


@pytest.mark.parametrize(
    ("body", "line", "better"),
    [
        ("if m.all():\n    return x.mean(1)  # fast\n# slow\nreturn x * m", 1, "return x * m"),
        (
            "for i in y:\n    if not i.any():\n        continue\n    x = x + i\nreturn x",
            2,
            "for i in y:\n    x = x + i\nreturn x",
        ),
    ],
)
def test_a_shortcut_is_never_taken(body, line, better):
    assert better in rewritten(body, line)


def test_what_is_no_shortcut_is_left_alone():
    assert rewritten("if c:\n    raise ValueError\nelse:\n    return x") == []


@pytest.mark.parametrize(
    ("body", "better"),
    [
        ("z = torch.stack([self.latents] * len(x))", "z = self.latents.expand(x.shape[0], *self.latents.shape)"),
        ("return torch.stack([row * 2 for row in x])", "return x * 2"),
        ("return torch.stack([x[i] - 1 for i in range(len(x))])", "return x - 1"),
        ("return torch.stack([torch.arange(9) < n for n in y.tolist()])", "return torch.arange(9) < y.unsqueeze(-1)"),
        (
            "rows = [torch.arange(9) < n for n in y.tolist()]\nreturn torch.stack(rows)",
            "rows = torch.arange(9) < y.unsqueeze(-1)\nreturn rows",
        ),
    ],
)
def test_rows_that_are_stacked_are_computed_as_one_tensor(body, better):
    assert better in rewritten(body)


def test_rows_that_are_not_stacked_are_left_alone():
    assert rewritten("rows = [row * 2 for row in x]\nreturn rows") == []


def test_what_a_condition_assigns_is_kept():
    pads = "if pad := -x.shape[1] % 8:\n    x = pad_by(x, pad)\nreturn x"
    assert rewritten(pads) == ["pad = -x.shape[1] % 8\nx = pad_by(x, pad)\nreturn x"]
    assert rewritten("if (pad := -x.shape[1] % 8) > 2:\n    x = pad_by(x, pad)\nreturn x") == []


@pytest.mark.parametrize(
    ("body", "better"),
    [
        ("for i in range(x.shape[0]):\n    y = y + x[i]\nreturn y", "y = y + x.sum(0)\nreturn y"),
        ("for row in x:\n    y += row * 2\nreturn y", "y = y + (x * 2).sum(0)\nreturn y"),
        ("z = []\nfor i in range(4):\n    z.append(x[:, i] + 1)\nreturn torch.stack(z, 1)", "z = []\nz = x + 1\nreturn z"),
    ],
)
def test_a_loop_over_rows_is_computed_on_whole_tensors(body, better):
    assert better in rewritten(body, 1 + body.startswith("z"))


def test_a_loop_whose_steps_depend_on_their_number_is_left_alone():
    assert rewritten("for i in range(9):\n    y = y + x[i] * i\nreturn y") == []
    assert rewritten("z = []\nfor row in x:\n    z.append(row)\nreturn torch.stack(z, 1)", 2) == []


def test_writes_become_new_tensors():
    assert rewritten("x += y * 2") == ["x = x + y * 2"]
    assert rewritten("x.detach().clamp_(max=1)") == ["x = x.clamp(max=1)"]
    assert rewritten("x[0].clamp_(max=1)") == []


def test_numpy_becomes_torch_in_the_whole_function():
    body = "n = np.arange(len(x), dtype=np.float32)[::-1].copy()\nreturn torch.from_numpy(n)"
    better = "n = torch.arange(x.shape[0], dtype=torch.float32).flip(0).clone()\nreturn n"
    assert better in rewritten(body)


def test_only_code_in_a_function_of_a_module_with_torch_is_rewritten():
    assert list(rewrites("n = int(x)\n", 1)) == []
    assert list(rewrites("def f(:\n", 1)) == []
    assert rewritten("return x if c else y", imports="import math") == []


@pytest.mark.parametrize(
    ("before", "after", "tidy"),
    [
        (
            "import numpy as np\nimport torch\ny = np.ones(3)\n",
            "import numpy as np\nimport torch\ny = torch.ones(3)\n",
            "import torch\ny = torch.ones(3)\n",
        ),
        (
            "def f(x):\n    n = len(x)\n    return x[:n]\n",
            "def f(x):\n    n = len(x)\n    return x\n",
            "def f(x):\n    return x\n",
        ),
        ("if a:\n    n = 1\nprint(n)\n", "if a:\n    n = 1\n", "if a:\n    n = 1\n"),  # a block is not left empty
        ("n = 1; m = 2\nprint(n, m)\n", "n = 1; m = 2\nprint(m)\n", "n = 1; m = 2\nprint(m)\n"),
        ("z = []\nn = 2\nz = x * n\n", "z = []\nn = 2\nz = x * n\n", "n = 2\nz = x * n\n"),
        ("z = []\nz = z * n\n", "z = []\nz = z * n\n", "z = []\nz = z * n\n"),
        ("n = 1\nprint(2)\n", "n = 1\nprint(3)\n", "n = 1\nprint(3)\n"),  # was not used before either
    ],
)
def test_what_a_rewrite_leaves_unused_is_removed(before, after, tidy):
    assert without_unused(before, after) == tidy
