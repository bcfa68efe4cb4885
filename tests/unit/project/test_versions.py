"""The lowest versions that are tested are those that pyproject.toml allows, and the newest are known where onnx-ci runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from onnx_ci.environment.versions import TESTED, describe_untested

ROOT = Path(__file__).parents[3]


def test_the_lowest_versions_are_the_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    bounds = [re.split(r">=", each) for each in (*project["dependencies"], *extras["cpu"], *extras["vision"])]
    padded = {name: ".".join([*version.split("."), "0", "0"][:3]) for name, version in bounds}
    pins = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(pins) == padded


def test_the_newest_versions_are_those_that_are_tested_together():
    pins = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert TESTED.items() <= dict(pins).items()


def test_what_is_newer_than_any_tested_version_is_told_once():
    tested = TESTED["torch"]
    older = {"torch": f"{tested}+cpu", "onnx": "1.18.0", "onnxruntime": "none"}
    assert describe_untested(older) == ""
    newer = describe_untested(older | {"torch": f"{tested} and 99.1.0.dev20990101+cpu"})  # merged runs
    assert newer.startswith("newer than what onnx-ci ") and newer.endswith(f": torch 99.1.0 (tested: {tested})")
