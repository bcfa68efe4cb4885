"""Where the failures of a run are shown."""

from __future__ import annotations

import pytest

from onnx_ci.collection.discovery import import_file
from onnx_ci.github.action import annotations_of


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("@onnx_ci.recipe\ndef net(): ...", "net", 2),
        ("\n@other\n@onnx_ci.recipe(\n  opsets=13,\n)\ndef net(): ...", "net", 3),
        ("@onnx_ci.recipe(name='other.net')\ndef net(): ...", "other.net", 2),
        (
            "def make(name):\n    @onnx_ci.recipe(name=name)\n    def net(): ...\n    return net\n\nwide = make('wide')",
            "wide",
            3,
        ),
        ("x = '\\\\d'\n@onnx_ci.recipe\ndef net(): ...", "net", 3),
        ("from nets import elsewhere", "elsewhere", None),
    ],
)
def test_an_annotation_has_the_line_of_its_recipe_or_none_where_that_is_made_elsewhere(project, run_cells, text, name, line):
    project.write("onnx_recipes.py", f"import onnx_ci; other = lambda recipe: recipe\n{text}\n")
    project.write("nets.py", "\nimport onnx_ci\n\n\n@onnx_ci.recipe\ndef elsewhere(): ...\n")
    ran = run_cells(isolation="none")
    assert [(each.cell.recipe, each.line) for each in ran.cells] == [(name, line)]
    (found,) = annotations_of(ran, project.root, project.root)
    assert (found.title, found.file, found.line) == (f"{name}: recipe-error", "onnx_recipes.py", line)


@pytest.mark.parametrize(
    ("text", "file", "line"),
    [
        ("\nthis is no Python", "onnx_recipes.py", 2),
        ("\n\nimport broken", "broken.py", 2),
        ("\x00", "onnx_recipes.py", None),
    ],
)
def test_a_file_that_cannot_be_imported_is_shown_at_the_line_that_fails(project, run_cells, text, file, line):
    project.write("onnx_recipes.py", text)
    project.write("broken.py", "\n1 / 0")
    (found,) = annotations_of(run_cells(isolation="none"), project.root, project.root)
    assert (found.file, found.line) == (file, line)


def test_the_line_in_a_report_is_the_one_that_python_knows(run_cells, project):
    project.write("onnx_recipes.py", "# one more line\n\n", "import onnx_ci\n\n\n@onnx_ci.recipe\ndef net(): ...\n")
    net = import_file(project.root / "onnx_recipes.py").net
    (result,) = run_cells(isolation="none").cells
    assert result.line == net.line
