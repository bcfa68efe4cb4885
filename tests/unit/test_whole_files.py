"""A file is written whole or not at all."""

from __future__ import annotations

import os

import pytest

from onnx_ci.whole_files import remove_unfinished, write_whole


def test_an_existing_file_is_replaced(tmp_path):
    path = tmp_path / "r.json"
    write_whole(path, [b"old"])
    write_whole(path, [b"n", b"ew"])
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("r.json", b"new")]


def test_a_new_file_never_replaces_another(tmp_path):
    path = tmp_path / "r.json"
    write_whole(path, [b"old"], is_new=True)
    with pytest.raises(FileExistsError):
        write_whole(path, [b"new"], is_new=True)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("r.json", b"old")]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path):
    def pieces():
        yield b"new"
        raise KeyboardInterrupt

    path = tmp_path / "r.json"
    write_whole(path, [b"old"])
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, pieces())
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("r.json", b"old")]


def test_what_a_killed_process_left_half_written_is_removed_later(tmp_path):
    old, new, other, foreign = names = (".r.json.0123abcd.tmp", ".r.json.0123abce.tmp", ".s.json.0123abcd.tmp", ".r.json.tmp")
    for name in names:
        (tmp_path / name).touch()
    for name in (old, other, foreign):
        os.utime(tmp_path / name, (0, 0))
    remove_unfinished(tmp_path, "r.json")
    assert {file.name for file in tmp_path.iterdir()} == {new, other, foreign}
    remove_unfinished(tmp_path, seconds=0)
    assert {file.name for file in tmp_path.iterdir()} == {foreign}
