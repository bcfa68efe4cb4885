"""The lowest versions that are tested are those that pyproject.toml allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_lowest_versions_are_the_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    bounds = [re.split(r">=", each) for each in (*project["dependencies"], *extras["cpu"], *extras["vision"])]
    padded = {name: ".".join([*version.split("."), "0", "0"][:3]) for name, version in bounds}
    pins = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(pins) == padded
