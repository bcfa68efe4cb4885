"""The folder of the cache holds regular files. What stands in their places is replaced, and never read."""

from __future__ import annotations

import os

import pytest

from onnx_ci.baseline.file import BaselineError
from onnx_ci.baseline.folder import BaselineFolder
from onnx_ci.cache.folder import MEMORY, Folder

PLACES = {
    "a pipe": lambda path: os.mkfifo(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a large file": lambda path: (path.touch(), os.truncate(path, 2**40)),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes pipes")
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_of_the_cache_is_absent_and_replaced(tmp_path, place):
    PLACES[place](tmp_path / MEMORY)
    folder = Folder(tmp_path)
    assert folder.read(MEMORY) is None
    folder.write(MEMORY, {"a": 1})
    assert folder.read(MEMORY) == {"a": 1}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes pipes")
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_is_no_baseline(tmp_path, place):
    PLACES[place](tmp_path / "net.toml")
    with pytest.raises(BaselineError, match="cannot be read"):
        BaselineFolder(tmp_path).load("net")
