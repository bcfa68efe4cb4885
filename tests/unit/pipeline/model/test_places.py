"""Whose code a file is: the user's, also where pip has installed a copy of it, or a library's."""

from __future__ import annotations

import pytest

from onnx_ci.pipeline.model.places import innermost, is_in_project


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The installed copy of a module whose original is yet to be written."""
    file = tmp_path / "environment" / "site-packages" / "zoo" / "net.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\ny = 2\n")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return file


@pytest.mark.parametrize("home", ["src/zoo/net.py", "zoo/net.py"])
@pytest.mark.parametrize("text", ["x = 1\ny = 2\n", "x = 1\ny = 3\n"], ids=["equal", "another"])
def test_an_installed_copy_of_a_file_of_the_project_is_that_file(installed, tmp_path, home, text):
    original = tmp_path / "project" / home
    original.parent.mkdir(parents=True)
    original.write_text(text)
    line, is_copy = innermost([(str(installed), 2)]), text == installed.read_text()
    assert line is not None
    assert (line.file, line.line, line.text) == (home if is_copy else installed.as_posix(), 2, "y = 2")
    assert is_in_project(str(installed)) == is_copy


def test_a_module_of_another_package_is_no_copy(installed, tmp_path):
    (tmp_path / "project" / "net.py").write_text(installed.read_text())
    assert not is_in_project(str(installed))
