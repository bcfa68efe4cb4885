"""Inputs in files: read as what a model takes, or refused with the file, the array, and what is expected."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from onnx_ci import ConfigurationError
from onnx_ci.onnx_model.saved_inputs import ExpectedInput, file_name, find_inputs, read_inputs, write_inputs

X = ExpectedInput(name="x", dtype=np.dtype(np.float32), dims=(None, 4))
IDS = ExpectedInput(name="ids", dtype=np.dtype(np.int64), dims=(None,))
GOOD = {"x": np.ones((3, 4), np.float32), "ids": np.arange(3)}


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("keys", [("x", "ids"), ("ids", "x"), ("0", "1"), ("arr_0", "arr_1"), ("x", "1")])
def test_keys_are_names_or_positions(tmp_path, keys):
    arrays = {key: GOOD[{"0": "x", "arr_0": "x", "1": "ids", "arr_1": "ids"}.get(key, key)] for key in keys}
    x, ids = read_inputs(write(tmp_path / "a.npz", **arrays), [X, IDS])
    assert (x.tolist(), ids.tolist()) == (GOOD["x"].tolist(), GOOD["ids"].tolist())


def test_a_folder_of_onnxs_own_tests_is_read_by_position(tmp_path):
    for place, array in enumerate(GOOD.values()):
        (tmp_path / f"input_{place}.pb").write_bytes(numpy_helper.from_array(array, "any").SerializeToString())
    (tmp_path / "output_0.pb").write_bytes(b"ignored")
    x, ids = read_inputs(tmp_path, [X, IDS])
    assert (x.shape, ids.dtype) == ((3, 4), np.int64)
    (tmp_path / "input_1.pb").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=r"input_1\.pb cannot be read as a tensor"):
        read_inputs(tmp_path, [X, IDS])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": GOOD["x"]}, r"a\.npz has no array 'ids'; the inputs are x: float32\[\?, 4\], ids: int64\[\?\]"),
        ({**GOOD, "idx": GOOD["ids"]}, r"a\.npz has an array 'idx'; did you mean 'ids'\?; the inputs are x"),
        ({**GOOD, "2": GOOD["ids"]}, r"a\.npz has an array '2'; the inputs are x"),
        ({**GOOD, "0": GOOD["x"]}, r"a\.npz has two arrays for input 0"),
        ({**GOOD, "x": GOOD["x"].astype(np.float64)}, r"the array 'x' is float64\[3, 4\] and should be float32\[\?, 4\]"),
        ({**GOOD, "x": GOOD["x"][0]}, r"the array 'x' is float32\[4\] and should be float32\[\?, 4\]"),
        ({**GOOD, "x": np.ones((3, 5), np.float32)}, r"the array 'x' is float32\[3, 5\] and should be float32\[\?, 4\]"),
        ({**GOOD, "ids": np.array(["a"])}, r"the array 'ids' is <U1\[1\] and should be int64\[\?\]"),
        ({**GOOD, "ids": np.array([{}])}, r"a\.npz: the array 'ids' is pickled, and pickled arrays are never loaded"),
    ],
    ids=["missing", "unknown", "position", "twice", "type", "rank", "size", "text", "pickled"],
)
def test_what_does_not_fit_names_the_array_and_what_is_expected(tmp_path, arrays, said):
    with pytest.raises(ConfigurationError, match=said):
        read_inputs(write(tmp_path / "a.npz", **arrays), [X, IDS])


def test_a_pickle_is_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path / "sprung").touch, ()

    with pytest.raises(ConfigurationError, match="is pickled"):
        read_inputs(write(tmp_path / "a.npz", x=np.array([Trap()], dtype=object)), [X])
    (tmp_path / "b.npz").write_bytes(__import__("pickle").dumps(Trap()))
    with pytest.raises(ConfigurationError, match=r"b\.npz cannot be read"):
        read_inputs(tmp_path / "b.npz", [X])
    assert not (tmp_path / "sprung").exists()


def test_files_that_are_something_else_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    whole = write(tmp_path / "whole.npz", **GOOD).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:100])
    for name in ("text.npz", "cut.npz"):
        with pytest.raises(ConfigurationError, match=rf"{name} cannot be read: .*it must be a file of numpy\.savez"):
            read_inputs(tmp_path / name, [X])
    np.save(tmp_path / "one.npy", GOOD["x"])
    with pytest.raises(ConfigurationError, match=r"one\.npy contains one array without a name"):
        read_inputs(tmp_path / "one.npy", [X])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"empty has no file input_0\.pb"):
        read_inputs(tmp_path / "empty", [X])


def test_what_is_written_reads_back_whatever_it_is_named_and_typed(tmp_path):
    half = ExpectedInput(name="file", dtype=np.dtype(ml_dtypes.bfloat16), dims=(2,))
    flag = ExpectedInput(name=None, dtype=np.dtype(bool), dims=())
    arrays = {"file": np.array([1.5, -2], ml_dtypes.bfloat16), "1": np.array(True)}
    write_inputs(tmp_path / "deep" / "a.npz", arrays)
    one, other = read_inputs(tmp_path / "deep" / "a.npz", [half, flag])
    assert (one.dtype, one.tolist(), other.dtype, other.tolist()) == (ml_dtypes.bfloat16, [1.5, -2], bool, True)


def test_only_files_that_onnx_ci_wrote_are_replaced(tmp_path):
    own = write(tmp_path / "batch=4.npz", **GOOD).read_bytes()
    (tmp_path / "batch=4-2.npz").mkdir()
    for value in (1.0, 2.0):
        write_inputs(tmp_path / "batch=4.npz", {"x": np.full((2, 4), value, np.float32)})
        write_inputs(tmp_path / "new.npz", {"x": np.full((2, 4), value, np.float32)})
    assert (tmp_path / "batch=4.npz").read_bytes() == own
    assert sorted(each.name for each in tmp_path.iterdir()) == ["batch=4-2.npz", "batch=4-3.npz", "batch=4.npz", "new.npz"]
    for name in ("batch=4-3.npz", "new.npz"):
        assert read_inputs(tmp_path / name, [X])[0].max() == 2.0


def test_patterns_are_relative_to_the_folder_and_match_in_order(tmp_path):
    for name in ("b.npz", "a.npz", "c.txt"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).touch()
    assert list(find_inputs(tmp_path, ["data/*.npz"])) == ["data/a.npz", "data/b.npz"]
    assert list(find_inputs(tmp_path / "data", ["../data/a.npz", str(tmp_path / "data" / "b.npz")])) == ["a.npz", "b.npz"]
    with pytest.raises(ConfigurationError, match=r"inputs: there is no file data/\*\.npy in "):
        find_inputs(tmp_path, ["data/*.npz", "data/*.npy"])


def test_names_of_probes_become_names_of_files():
    assert file_name("batch=4,length=7") == "batch=4,length=7.npz"
    assert file_name("floats large") == "floats_large.npz"
    assert file_name("../data/a.npz") == ".._data_a.npz"
