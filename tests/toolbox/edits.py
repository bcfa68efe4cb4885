"""Edits of a project with ``onnx_recipes.py`` and ``helper.py``; after each of them, what is remembered is out of date."""

from __future__ import annotations


def edited_recipe(root):
    file = root / "onnx_recipes.py"
    file.write_text(file.read_text() + "\n# changed\n")


def edited_helper(root):
    (root / "helper.py").write_text("SCALE = 2\n")


def new_package(root):
    """A package that is imported instead of the module of the same name."""
    (root / "helper").mkdir()
    (root / "helper/__init__.py").write_text("SCALE = 3\n")
