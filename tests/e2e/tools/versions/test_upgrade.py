"""``onnx-ci upgrade`` says what newer versions break, and which version of which package does."""

from __future__ import annotations

import pytest
from e2e.tools.versions.stand_in import BESIDE_OLD_LENS, RAISES, WRONG

CELLS = "scale at opsets 13-14 on cpu with mirror"


def upgrade(cli, *words, **more):
    return cli("upgrade", "--opsets=13,14", *words, **more)


def blames(done):
    return [line for line in done.stdout.splitlines() if " break" in line]


@pytest.mark.slow
def test_the_first_version_that_breaks_a_cell_is_named_and_what_is_right_is_silent(cli, index):
    index.mirror("1.0")
    index.mirror("1.1")
    index.mirror("1.2", **RAISES)
    index.mirror("1.3", **WRONG)
    index.other("glass", "1.0")
    index.install("mirror==1.0")
    broken = upgrade(cli)
    assert (broken.returncode, broken.stderr) == (1, "")
    lines = broken.stdout.splitlines()
    assert lines[0] == "mirror 1.0 → 1.3"
    assert lines[1] == "broke: scale: failed at opsets 13-14 on cpu with mirror"
    assert lines[2] == "    onnx_recipes.py:11: numeric-drift"
    assert blames(broken) == lines[-1:] == [f"mirror 1.2 breaks {CELLS} (right with 1.1)"]
    right = upgrade(cli, "--to=mirror==1.1", "--to=glass==1.0")
    said = "nothing changed in 2 cells: mirror 1.0 → 1.1 and glass absent → 1.0\n"
    assert (right.returncode, right.stdout, right.stderr) == (0, said, "")


@pytest.mark.slow
def test_a_pair_is_blamed_where_neither_package_breaks_a_cell_alone(cli, index):
    index.mirror("1.0")
    index.mirror("1.1", **BESIDE_OLD_LENS)
    index.lens("1.0", turns=False)
    index.lens("2.0", turns=True)
    index.install("mirror==1.0", "lens==1.0")
    done = upgrade(cli, "--to=mirror", "--to=lens")
    assert done.returncode == 1
    assert done.stdout.startswith("mirror 1.0 → 1.1 and lens 1.0 → 2.0\n")
    assert blames(done) == [f"mirror 1.1 and lens 2.0 together break {CELLS}"]


@pytest.mark.slow
def test_what_a_package_needs_is_told_apart_from_it(cli, index):
    index.mirror("1.0", **BESIDE_OLD_LENS)
    index.mirror("1.1", "lens>=2", **BESIDE_OLD_LENS)
    index.lens("1.0", turns=False)
    index.lens("2.0", turns=True)
    index.install("mirror==1.0", "lens==1.0")
    done = upgrade(cli)
    assert done.stdout.startswith("mirror 1.0 → 1.1, with lens 1.0 → 2.0\n")
    assert blames(done) == [f"mirror 1.1 (with lens 2.0, which it needs) breaks {CELLS} (right with 1.0)"]
    both = upgrade(cli, "--to=mirror", "--to=lens")
    assert blames(both) == [f"lens 2.0 breaks {CELLS} (right with 1.0)"]


@pytest.mark.slow
def test_what_gets_better_is_said_and_is_no_failure(project, cli, index):
    index.mirror("1.0", **WRONG)
    index.mirror("1.1")
    index.install("mirror==1.0")
    done = upgrade(cli)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["mirror 1.0 → 1.1", f"fixed: {CELLS}"])
    recipes = project.root / "onnx_recipes.py"
    known = 'exporter="mirror", expect={"13-14": onnx_ci.known_failure("numeric-drift", "it is known")}'
    recipes.write_text(recipes.read_text().replace('exporter="mirror"', known))
    done = upgrade(cli)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1:] == [f"fixed: {CELLS}: no longer fails as its recipe expects, so remove the expectation"]


@pytest.mark.slow
def test_a_file_that_changes_and_stays_right_is_told_and_is_no_failure(cli, index):
    index.mirror("1.0")
    index.mirror("1.1", change="model.graph.node.append(onnx.helper.make_node('Identity', ['x'], ['unused']))")
    index.install("mirror==1.0")
    done = upgrade(cli)
    assert done.returncode == 0
    assert "changed: scale cpu mirror at opset 13-14: +1 Identity" in done.stdout.splitlines()
    assert blames(done) == []


@pytest.mark.slow
def test_a_version_with_which_nothing_runs_breaks_everything(cli, index):
    index.mirror("1.0")
    index.mirror("1.1", imports="raise ImportError('the glass is gone')")
    index.install("mirror==1.0")
    done = upgrade(cli)
    assert done.returncode == 1
    assert "broke: " in done.stdout.splitlines()[1]
    assert "the glass is gone" in done.stdout.splitlines()[1]
    assert blames(done) == [f"mirror 1.1 breaks {CELLS} (right with 1.0)"]


def test_without_anything_newer_one_line_is_all(cli, index):
    index.mirror("1.0")
    index.mirror("2.0rc1")
    index.install("mirror==1.0")
    done = upgrade(cli, "--to=mirror")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "nothing to compare: what is allowed is installed already: mirror 1.0\n",
        "",
    )


@pytest.mark.parametrize("retries", ["0", "1"])
def test_what_an_index_has_that_cannot_be_reached_is_not_said_to_be_installed_already(cli, index, retries):
    index.mirror("1.0")
    index.mirror("1.1")  # what is found elsewhere is not all that there is
    index.install("mirror==1.0")
    unreachable = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": retries}
    done = upgrade(cli, "--to=mirror", **unreachable)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("onnx-ci: the package index cannot be reached: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to=mirror==7"], "no wheel of mirror==7 for Python"),
        (["--to=mirror=7"], "name packages with versions, such as onnxruntime==1.22.0 or torch==2.15.*"),
        (["--to=torch==1.0"], "onnx-ci needs torch>="),
        (["--constraint=pyproject.toml", "--select=nothing", "--to=mirror==1.1"], "with what is installed, nothing runs: "),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(cli, index, words, said):
    index.mirror("1.0")
    index.mirror("1.1")
    index.install("mirror==1.0")
    done = upgrade(cli, *words)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert said in done.stderr


@pytest.mark.slow
def test_what_holds_the_newest_version_back_is_said(cli, index, tmp_path):
    index.mirror("1.0")
    index.mirror("1.1")
    index.install("mirror==1.0")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("mirror<1.1\n")
    done = upgrade(cli, f"--constraint={constraints}")
    assert (done.returncode, done.stderr) == (0, "")
    nothing, held_back = done.stdout.splitlines()
    assert nothing.startswith("nothing to compare: ")
    assert held_back.startswith("mirror 1.1 was not tried: ") and "a constraint requires mirror<1.1" in held_back
    assert "was not tried" not in upgrade(cli, "--to=mirror==1.0").stdout  # the user has named the version


@pytest.mark.slow
def test_what_an_upgrade_renames_is_told_as_that(cli, index):
    index.mirror("1.0")
    rename = "model.graph.node[-1].output[0] = model.graph.output[0].name = 'cache.y'"
    index.mirror("1.1", change=rename)
    index.install("mirror==1.0")
    done = upgrade(cli)
    assert done.returncode == 1
    assert "    with these versions, output 'y' renamed to 'cache.y'" in done.stdout.splitlines(), done.stdout
