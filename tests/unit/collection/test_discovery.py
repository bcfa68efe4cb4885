from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from toolbox.discovered import discover

from onnx_ci import ConfigurationError
from onnx_ci.config.settings import load_settings

RECIPE = """
import onnx_ci

@onnx_ci.recipe
def {name}():
    ...
"""


@pytest.fixture
def find(project, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def find(*paths: str, **flags: str):
        settings = load_settings(project.root, flags=flags, environment={})
        return discover(settings, [Path(path) for path in paths])

    return find


def recipe_file(project, path, *names):
    return project.write(path, *(RECIPE.format(name=name) for name in names))


def test_recipe_files_are_found_by_name_and_sorted(find, project):
    recipe_file(project, "b/onnx_recipes.py", "late")
    recipe_file(project, "a/onnx_recipes.py", "second", "first")
    recipe_file(project, "a/other.py", "hidden")
    recipe_file(project, ".venv/onnx_recipes.py", "in_environment")
    recipe_file(project, "env/onnx_recipes.py", "in_other_environment")
    project.write("env/pyvenv.cfg", "")
    assert [(name, found.source) for name, found in find().recipes.items()] == [
        ("second", "a/onnx_recipes.py"),
        ("first", "a/onnx_recipes.py"),
        ("late", "b/onnx_recipes.py"),
    ]


NET = RECIPE.format(name="net")


@pytest.mark.parametrize(
    ("files", "paths", "flags"),
    [
        ({"exports/net.py": NET, "deep/exports/net.py": NET}, [], {"recipe_files": "exports/*.py"}),
        ({"exports/net.py": NET}, [], {"recipe_files": "exports/**/*.py"}),
        ({"exports/deep/net.py": NET}, [], {"recipe_files": "**/deep/*.py"}),
        ({"onnx_recipes.py": f"class WrongSizeError(Exception): ...\n{NET}"}, [], {}),  # which is no mark of pytest
        ({"anything.py": NET}, ["anything.py"], {}),
        ({"conftest.py": NET, "sub/conftest.py": "raise RuntimeError('imported')"}, [], {}),  # which has no recipes
    ],
    ids=["folder in pattern", "any folder or none", "folder anywhere", "exception beside it", "named file", "conftest"],
)
def test_the_one_recipe_is_found_without_a_problem(find, project, files, paths, flags):
    for path, content in files.items():
        project.write(path, content)
    found = find(*paths, **flags)
    assert (list(found.recipes), found.problems) == (["net"], [])


def test_a_link_that_leads_nowhere_is_no_recipe_file(find, project):
    recipe_file(project, "exports/net.py", "net")
    for name in ("exports/.#net.py", "exports/conftest.py"):  # an editor's lock, and the file of a tool that is gone
        (project.root / name).symlink_to("gone")
    found = find(recipe_files="exports/*.py,conftest.py")
    assert (list(found.recipes), found.problems) == (["net"], [])


def test_a_file_imports_its_neighbours_and_a_package_its_own_modules(find, project):
    project.write("neighbour_of_recipes.py", "value = 1")
    project.write("onnx_recipes.py", "import neighbour_of_recipes", RECIPE.format(name="net"))
    project.write("scratch_package/__init__.py", "")
    project.write("scratch_package/shared.py", "value = 1")
    project.write("scratch_package/onnx_recipes.py", "from .shared import value", RECIPE.format(name="packaged"))
    catalogue = find()
    assert catalogue.problems == []
    assert set(catalogue.recipes) == {"net", "packaged"}


def test_a_module_that_imports_another_on_use_is_left_alone(find, project, monkeypatch):
    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            raise ImportError("a module that is not installed")

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    recipe_file(project, "onnx_recipes.py", "net")
    catalogue = find()
    assert (list(catalogue.recipes), catalogue.problems) == (["net"], [])


def test_an_imported_recipe_counts_once(find, project):
    recipe_file(project, "library_of_recipes.py", "net")
    project.write("a/onnx_recipes.py", "from library_of_recipes import net")
    project.write("b/onnx_recipes.py", "from library_of_recipes import net")
    sys.path.insert(0, str(project.root))
    catalogue = find()
    assert (list(catalogue.recipes), catalogue.problems) == (["net"], [])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows lets few users make links")
@pytest.mark.parametrize("order", [1, -1])
def test_a_file_and_a_link_to_it_are_imported_once(find, project, order):
    recipe_file(project, "onnx_recipes.py", "net")
    (project.root / "linked.py").symlink_to("onnx_recipes.py")
    catalogue = find(*["onnx_recipes.py", "linked.py"][::order])
    assert (list(catalogue.recipes), catalogue.problems) == (["net"], [])


def test_two_recipes_of_one_name_are_a_problem_that_names_both_places(find, project):
    recipe_file(project, "a/onnx_recipes.py", "net")
    recipe_file(project, "b/onnx_recipes.py", "net", "other")
    catalogue = find()
    assert list(catalogue.recipes) == ["net", "other"]
    (problem,) = catalogue.problems
    assert problem.source == "b/onnx_recipes.py"
    assert "'net' (b/onnx_recipes.py, line 4) is already used by a/onnx_recipes.py, line 4" in problem.message
    assert "name=" in problem.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nowhere_at_all", "cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_all' (onnx_recipes.py, line 1)"),
        ("import pathlib\npathlib.Path('labels').read_text()", "No such file or directory: 'labels' (onnx_recipes.py, line 2)"),
        ("import json\njson.loads('{')", "(char 1) (onnx_recipes.py, line 2)"),
        ("x = 1 / 0", "ZeroDivisionError: division by zero (onnx_recipes.py, line 1)"),
        ("def (", "SyntaxError: invalid syntax (onnx_recipes.py, line 1)"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import onnx_ci\n@onnx_ci.recipe(opset=9)\ndef net(): ...", "@recipe has no keyword 'opset'; did you mean 'opsets'? (onnx_recipes.py, line 2)"),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_message_and_costs_no_other_file_its_recipes(find, project, text, said):
    project.write("onnx_recipes.py", text)
    recipe_file(project, "good/onnx_recipes.py", "net")
    catalogue = find()
    assert list(catalogue.recipes) == ["net"]
    (problem,) = catalogue.problems
    assert said in problem.message
    assert "\n" not in problem.message


def test_a_path_that_does_not_exist_names_the_nearest(find, project):
    recipe_file(project, "recipes/net.py", "net")
    with pytest.raises(ConfigurationError, match="there is no recipe; did you mean 'recipes'"):
        find("recipe")


def test_a_package_is_searched_where_no_path_is_given(find, project):
    project.write("scratch_library/__init__.py", "")
    recipe_file(project, "scratch_library/net.py", "net")
    recipe_file(project, "scratch_library/_private.py", "private")
    sys.path.insert(0, str(project.root))
    assert list(find(packages="scratch_library").recipes) == ["net"]


def test_a_package_that_is_not_installed_is_an_error(find):
    with pytest.raises(ConfigurationError, match="--packages: the package 'nowhere_at_all' is not installed"):
        find(packages="nowhere_at_all")


LOOP = """
import onnx_ci

for name in ["first", "second", "third"]:

    @onnx_ci.recipe(name=name)
    def family():
        ...
"""
LIST = """
import onnx_ci

def make(name):
    @onnx_ci.recipe(name=name)
    def family():
        ...

    return family

recipes = [make("first"), make("second")]
make("third")
"""


THREADS = """
import threading
import onnx_ci

def make(name):
    @onnx_ci.recipe(name=name)
    def family():
        ...

for name in ["first", "second", "third"]:
    thread = threading.Thread(target=make, args=[name])
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("content", [LOOP, LIST, THREADS], ids=["loop", "list", "threads"])
def test_a_recipe_without_a_name_of_its_own_in_the_file_is_found(find, project, content):
    project.write("onnx_recipes.py", content)
    assert list(find().recipes) == ["first", "second", "third"]


def test_a_recipe_that_a_module_of_the_project_declares_is_found(find, project):
    project.write("nets/made.py", RECIPE.format(name="in_module"))
    project.write("nets/__init__.py", "")
    project.write("onnx_recipes.py", "import nets.made", RECIPE.format(name="own"))
    found = find()
    assert {name: each.source for name, each in found.recipes.items()} == {
        "own": "onnx_recipes.py",
        "in_module": "onnx_recipes.py",
    }
    assert not found.problems


def test_a_factory_of_another_module_declares_recipes_of_the_file_that_calls_it(find, project):
    project.write("factory.py", LIST.replace("recipes = ", "").replace('[make("first"), make("second")]\nmake("third")', ""))
    project.write(
        "a/onnx_recipes.py", "import sys", f"sys.path.insert(0, {str(project.root)!r})", "import factory", "factory.make('a')"
    )
    project.write("b/onnx_recipes.py", "import factory", "factory.make('b')")
    assert {name: each.source for name, each in find().recipes.items()} == {"a": "a/onnx_recipes.py", "b": "b/onnx_recipes.py"}


def test_a_recipe_file_does_not_collect_those_of_another_that_it_imports(find, project):
    recipe_file(project, "onnx_recipes.py", "one", "two")
    project.write("other/onnx_recipes.py", "import sys", f"sys.path.insert(0, {str(project.root)!r})", "import onnx_recipes")
    assert list(find("other/onnx_recipes.py").recipes) == []
    assert list(find("onnx_recipes.py").recipes) == ["one", "two"]


def test_two_functions_of_one_name_are_a_problem_at_the_line_of_the_second(find, project):
    recipe_file(project, "onnx_recipes.py", "net", "net")
    found = find()
    (problem,) = found.problems
    assert (list(found.recipes), problem.file, problem.line) == (["net"], "onnx_recipes.py", 11)
    assert "the recipe name 'net' (onnx_recipes.py, line 11) is already used by onnx_recipes.py, line 4" in problem.message


@pytest.mark.parametrize(
    ("decorators", "message"),
    [
        (
            "@pytest.mark.parametrize('depth', [18, 50])\n@onnx_ci.recipe\ndef net(depth): ...",
            "net takes depth, but a recipe's",
        ),
        ("@onnx_ci.recipe\n@pytest.mark.parametrize('depth', [18])\ndef net(depth): ...", "net has a mark of pytest"),
        ("@pytest.mark.slow\n@onnx_ci.recipe\ndef net(): ...", "the mark of pytest on net does not apply to recipes"),
        ("@onnx_ci.recipe\ndef net(tmp_path): ...", "pytest's fixtures and parameters do not apply to it"),
    ],
)
@pytest.mark.filterwarnings("ignore:Unknown pytest.mark.slow")
def test_what_pytest_does_to_tests_is_refused_with_the_right_form(find, project, decorators, message):
    project.write("onnx_recipes.py", "import onnx_ci, pytest", decorators)
    (problem,) = find().problems
    assert message in problem.message
    assert "for several recipes of one function use @onnx_ci.recipe(each={...})" in problem.message
    assert problem.line is not None


def test_cases_are_recipes_of_their_own(find, project):
    project.write(
        "onnx_recipes.py",
        "import onnx_ci",
        "@onnx_ci.recipe(tags='nets', max_drift=4, each={'small': {}, 'large': {'max_drift': 32, 'opsets': '13-', 'tags': 'big'}})",
        "def family(size): raise AssertionError('no model is built')",
    )
    small, large = (each.recipe for each in find().recipes.values())
    assert (small.name, small.max_drift, small.opsets, small.tags) == ("family-small", 4, None, ("nets",))
    assert (large.name, large.max_drift, large.opsets[0], large.tags) == ("family-large", 32, 13, ("nets", "big"))
