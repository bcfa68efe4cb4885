"""``onnx-ci fix`` tries remedies for a failing cell, shows which pass, and changes code only on request."""

from __future__ import annotations

import subprocess

import pytest

BRANCH_AFTER_SIZE = """
    class Net(torch.nn.Module):
        def scaled(self, x):
            if x.abs().max() > 0.9:
                x = x / 2
            return x

        def forward(self, x):
            y = x.transpose(1, 2).reshape(int(x.shape[0]) * 5, 4)
            return self.scaled(y)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "rows"}})
    def net():
        return Net(), (torch.rand(2, 4, 5),)
"""
"""A size that is frozen, and a branch on data that is."""

LOST_WRITE = """
    class Net(torch.nn.Module):
        def forward(self, x):
            y = x * 1
            y.detach().clamp_(max=0.25)
            return y

    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def net():
        return Net(), (torch.rand(2, 3),)
"""

STATE = """
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = torch.zeros(1)

        def forward(self, x):
            self.calls = self.calls + 1
            return x * self.calls

    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def net():
        return Net(), (torch.rand(2, 3),)
"""


@pytest.fixture
def cli(project):
    return lambda *arguments: project.command("onnx_ci", *arguments)


def test_lines_are_changed_one_after_another_until_the_cell_passes(project, cli):
    recipes = project.recipes(BRANCH_AFTER_SIZE)
    before = recipes.read_text()
    done = cli("fix", "net::opset13-cpu")
    assert (done.returncode, done.stderr) == (0, "")
    changed = [line[1:].strip() for line in done.stdout.splitlines() if line.startswith("+ ")]
    assert changed == [
        "x = torch.where(torch.as_tensor(x.abs().max() > 0.9), x / 2, x)",
        "y = x.transpose(1, 2).reshape(x.shape[0] * 5, 4)",
    ]
    assert done.stdout.splitlines()[-2] == "passes, with the same model and the same declaration:"
    assert recipes.read_text() == before


WRITTEN_SIZE = """
    class Model(torch.nn.Module):
        def forward(self, x):
            return x.view(2, 2, -1).sum(2)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
    def net():
        return Model(), (torch.randn(2, 4),)
"""


def test_the_size_of_the_example_is_taken_from_the_input(project, cli):
    """The model itself is wrong except on its example, so only there the changed one has to compute the same."""
    project.recipes(WRITTEN_SIZE)
    done = cli("fix", "net::opset13-cpu")
    assert done.returncode == 0, done.stdout
    assert [line[1:].strip() for line in done.stdout.splitlines() if line.startswith("+ ")] == [
        "return x.view(x.shape[0], 2, -1).sum(2)"
    ]
    assert "passes, with what the model computes on its example and the same declaration:" in done.stdout


@pytest.mark.slow
def test_a_change_that_passes_is_written_on_request(project, cli):
    recipes = project.recipes(BRANCH_AFTER_SIZE)
    patch = cli("fix", "net::opset13-cpu").stdout
    before = recipes.read_text()
    done = cli("fix", "--write", "net::opset13-cpu")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"written: {recipes}")
    after = recipes.read_text()
    assert after != before
    assert cli("run", "--opsets=13").returncode == 0
    recipes.write_text(before)
    difference = patch[patch.index("--- a/") : patch.index("\npasses, with")]
    subprocess.run(["git", "apply", "-"], cwd=project.root, input=difference, text=True, check=True)
    assert recipes.read_text() == after


def test_a_change_of_what_the_model_computes_is_no_remedy(project, cli):
    """Without ``int``, the file of the changed model is right, but the changed model counts in other steps."""
    project.recipes("""
    class Net(torch.nn.Module):
        def forward(self, x):
            return x * int(x.shape[0] * 0.7 + x.sum() * 0)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "rows"}, "y": {0: "rows"}})
    def net():
        return Net(), (torch.rand(4, 3),)
    """)
    done = cli("fix", "--write", "net::opset13-cpu")
    rewritten = next(line for line in done.stdout.splitlines() if "keeps sizes and values as tensors" in line)
    assert "failed" in rewritten
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "no file is written: no change of code passes")


@pytest.mark.slow
def test_what_the_unchanged_model_computes_is_not_computed_by_changed_code(project, cli):
    """Of a file that is wrong, some references are computed only then. At 15 columns, the condition is false."""
    project.recipes("""
    class Net(torch.nn.Module):
        def forward(self, x, y):
            if y.shape[1] < 2 * x.shape[0]:
                y = torch.cat([y, y.flip(0)], 1)
            return x * y.sum()

    @onnx_ci.recipe(input_names=["x", "y"], output_names=["z"], dynamic_axes={"x": {0: "a"}, "y": {1: "b"}, "z": {0: "a"}})
    def net():
        return Net(), (torch.rand(5, 4), torch.rand(2, 7))
    """)
    done = cli("fix", "net::opset13-cpu")
    always = next(line for line in done.stdout.splitlines() if "always runs what the condition guards" in line)
    assert "failed" in always


@pytest.mark.slow
def test_a_larger_example_is_tried_where_torch_export_may_take_a_size_of_1_for_a_constant(project, cli):
    project.recipes("""
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.both = torch.nn.Conv2d(4, 8, 1)

        def forward(self, image):
            batch, channels, height, width = image.shape
            keys, values = self.both(image).chunk(2, dim=1)
            keys = keys.reshape(batch, 1, channels, height * width)
            values = values.reshape(batch, 1, channels, height * width)
            heads = (keys @ keys.transpose(-2, -1)).softmax(-1) @ values
            return heads.reshape(heads.shape[0], channels, height, width)

    axes = {0: "batch", 2: "height", 3: "width"}

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": axes, "y": axes}, exporter="dynamo")
    def net():
        return Net(), (torch.rand(1, 4, 5, 6),)
    """)
    done = cli("fix", "net::opset18-cpu")
    assert done.returncode == 0
    first = done.stdout.splitlines()[1].strip()
    assert first.startswith("an example larger than 1 along 'batch': passed"), first


@pytest.mark.slow
def test_a_cell_that_a_change_of_code_breaks_is_named(project, cli):
    """torch.minimum of sizes is what the TorchScript exporter needs, and what torch.export refuses as a number of elements."""
    project.recipes("""
    class Net(torch.nn.Module):
        def forward(self, x):
            return x.topk(min(6, x.shape[1]), dim=1).values

    axes = {"x": {1: "n"}, "y": {1: "k"}}

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes=axes, opsets="17-18")
    def net():
        return Net(), (torch.rand(2, 9),)
    """)
    lines = cli("fix", "net").stdout.splitlines()
    assert lines[0].startswith("onnx_recipes.py::net::opset17-cpu failed")
    [warning] = [line for line in lines if " passes today, and fails after this change: " in line]
    assert warning.startswith("onnx_recipes.py::net::opset18-cpu passes today")


def test_code_that_a_change_leaves_unused_is_removed(project, cli):
    recipes = project.recipes("""
    class Net(torch.nn.Module):
        def forward(self, x):
            rows = []
            for row in x:
                rows.append(row * 2)
            return torch.stack(rows)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "rows"}, "y": {0: "rows"}})
    def net():
        return Net(), (torch.rand(4, 3),)
    """)
    done = cli("fix", "--write", "net::opset13-cpu")
    assert done.returncode == 0, done.stdout
    assert "rows = []" not in recipes.read_text()


@pytest.mark.slow
def test_an_exporter_that_freezes_a_branch_is_no_remedy(project, cli):
    """dynamo refuses the branch, and no input that is tried shows that TorchScript freezes it."""
    project.recipes("""
    class Net(torch.nn.Module):
        def forward(self, x):
            if x.sum().cos() > 1.5:
                return torch.nonzero(x)[:3].float()
            return x * 2

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], exporter="dynamo")
    def net():
        return Net(), (torch.rand(4, 3),)
    """)
    done = cli("fix", "net::opset18-cpu")
    [frozen] = [line for line in done.stdout.splitlines() if line.startswith("  exporter torchscript at opset 18: ")]
    assert (done.returncode, "failed (untaken-branch" in frozen) == (1, True), done.stdout


@pytest.mark.slow
def test_other_exports_are_tried_last_and_what_nothing_repairs_ends_with_1(project, cli):
    project.recipes(STATE)
    done = cli("fix", "net")
    first, *lines, last = [line.strip() for line in done.stdout.splitlines()]
    assert (done.returncode, last) == (1, "nothing that was tried passes")
    assert first.startswith("onnx_recipes.py::net::opset9-cpu failed")
    tried = [line.partition(": ")[0] for line in lines if ": failed" in line]
    assert tried.index("do_constant_folding=False") < tried.index("opset 10") < tried.index("exporter dynamo at opset 18")
    assert [each for each in tried if each.startswith("opset")] == ["opset 10", "opset 8", "opset 18", "opset 23"]


def test_a_cell_that_passes_needs_nothing(project, cli):
    project.recipes("""
    @onnx_ci.recipe(input_names=["x"], output_names=["y"])
    def net():
        return Scale(), (torch.rand(2, 4),)
    """)
    done = cli("fix", "net::opset13-cpu")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "there is nothing to fix")


def test_a_cell_that_cannot_run_here_is_no_success(project, cli):
    project.recipes(LOST_WRITE)
    done = cli("fix", "net::opset13-cuda:7")
    assert (done.returncode != 0, "no cuda:7" in done.stdout) == (True, True)


def test_a_file_is_refused(project, cli):
    project.write("model.onnx", "no model")
    done = cli("fix", "model.onnx")
    assert (done.returncode, "name a cell" in done.stderr) == (2, True)


@pytest.mark.slow
def test_a_guard_against_a_division_by_zero_is_kept(project, cli):
    """Without it, the file gives NaN for zeros, and the model itself zeros."""
    project.recipes("""
    class Net(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            if y.abs().max() > 0:
                y.div_(y.abs().max())
            return y

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "rows"}, "y": {0: "rows"}})
    def net():
        return Net(), (torch.rand(4, 3),)
    """)
    done = cli("fix", "net::opset18-cpu")
    always = next(line for line in done.stdout.splitlines() if "always runs what the condition guards: " in line)
    assert always.endswith("failed (edge-mismatch)")
    assert "---" not in done.stdout


@pytest.mark.slow
def test_a_branch_that_no_input_shows_is_not_changed(project, cli):
    """Without the condition and ``int``, the cell would pass: no size that is tried makes the condition false."""
    project.recipes("""
    class Net(torch.nn.Module):
        def forward(self, x):
            if x.shape[1] * x.shape[0] < 10_000_000:
                x = x * 2
            return x.reshape(int(x.shape[0]), 3)

    @onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "rows"}, "y": {0: "rows"}})
    def net():
        return Net(), (torch.rand(4, 3),)
    """)
    done = cli("fix", "net::opset13-cpu")
    both = next(line for line in done.stdout.splitlines() if "always runs what the condition guards; " in line)
    assert (done.returncode, both.endswith("failed (untaken-branch)")) == (1, True)
