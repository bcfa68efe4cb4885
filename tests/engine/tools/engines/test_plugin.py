"""What a plug-in's class may declare, and sessions in processes of their own."""

from __future__ import annotations

import math
import os
import sys
import time

import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from onnx_ci.onnx_model.files import has_external_data
from onnx_ci.pipeline.run.runtime import BrokenRuntimeError
from onnx_ci.tools.engines.own_process import OwnProcess
from onnx_ci.tools.engines.plugin import PluginRuntime, guarded

FORKS = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


class Fake:
    """ONNX's evaluator, with what a test gives it instead."""

    name = "fake"
    is_deployed = True
    provider = "cpu"
    nodes_on_cpu = ("Add 'last'",)

    def __init__(self, run=None, **attributes):
        self.loaded = []
        self.other_run = run
        vars(self).update(attributes)

    def missing_device(self, device):
        return None

    def load(self, path, device):
        self.loaded.append((path, has_external_data(path)))
        self.evaluator = ReferenceEvaluator(str(path))
        return self

    def run(self, inputs, *, seed=None):
        if self.other_run is not None:
            return self.other_run(inputs)
        return [
            torch.as_tensor(each) for each in self.evaluator.run(None, {name: each.numpy() for name, each in inputs.items()})
        ]


@pytest.fixture
def path(tmp_path):
    """A file that adds two numbers to each row, which are in another file."""
    text = '<ir_version: 8, opset_import: ["" : 17]> net (float[n, 2] x) => (float[n, 2] y) { y = Add(x, w) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(torch.tensor([1.0, 2.0]).numpy(), "w"))
    onnx.save_model(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    return tmp_path / "net.onnx"


X, Y = torch.zeros(1, 2), torch.tensor([[1.0, 2.0]])


@pytest.mark.parametrize("reads", [True, False])
def test_a_runtime_that_reads_no_external_data_gets_a_file_without(path, reads):
    fake = Fake(reads_external_data=reads)
    [y] = PluginRuntime("fake", fake).load(path, "cpu").run({"x": X})
    assert torch.equal(y, Y)
    [(loaded, has_data)] = fake.loaded
    assert (has_data, loaded == path, loaded.name) == (reads, reads, "net.onnx")
    assert loaded.exists() is reads  # the copy is removed


def test_a_file_that_cannot_be_without_external_data_says_so(path, monkeypatch):
    def too_large(*_):
        raise ValueError("the message exceeds 2 GB")

    monkeypatch.setattr(onnx, "save_model", too_large)
    with pytest.raises(ValueError, match="it reads no external data, and a file with these weights would exceed 2 GB"):
        PluginRuntime("fake", Fake(reads_external_data=False)).load(path, "cpu")


@pytest.mark.parametrize(("declared", "is_right"), [({"float": "double"}, True), ({"float": "float16"}, False), ({}, False)])
def test_another_type_is_a_fault_unless_it_is_declared(path, declared, is_right):
    session = PluginRuntime("fake", Fake(lambda _: [Y.double()], other_types=declared)).load(path, "cpu")
    if is_right:
        [y] = session.run({"x": X})
        assert torch.equal(y, Y)
        assert y.dtype == torch.float32
        return
    with pytest.raises(BrokenRuntimeError, match="returned output 'y' as double, and the file declares float"):
        session.run({"x": X})


def test_a_session_is_closed_when_nothing_uses_it(path):
    closed = []
    session = PluginRuntime("fake", Fake(close=lambda: closed.append(True))).load(path, "cpu")
    assert closed == []
    del session
    assert closed == [True]


def test_a_session_that_lacks_something_is_told(path):
    runtime = Fake()
    runtime.load = lambda *_: object()
    with pytest.raises(TypeError, match=r"what load\(\) returns has no 'run'"):
        PluginRuntime("fake", runtime).load(path, "cpu")


# --- processes ------------------------------------------------------------------------------------------------------------


def own(fake, seconds=60.0):
    return OwnProcess(PluginRuntime("fake", fake), seconds)


@FORKS
def test_a_process_of_its_own_computes_the_same(path):
    parent = os.getpid()
    session = own(Fake()).load(path, "cpu")
    assert (session.provider, session.nodes_on_cpu) == ("cpu", ("Add 'last'",))
    for rows in (1, 3, 0):
        [y] = session.run({"x": torch.zeros(rows, 2)}, seed=1)
        assert torch.equal(y, Y.expand(rows, 2))
    [pid] = own(Fake(lambda _: [torch.full((1, 2), float(os.getpid()))])).load(path, "cpu").run({"x": X})
    assert pid[0, 0] != parent


@FORKS
def test_the_process_can_compute_with_threads_that_its_parent_has_used(path):
    """OpenMP ties its threads to the one that first used them; a fork of that would wait for them forever."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        large = torch.ones(2**20, 2)
        assert float(large.clone().sum()) == 2.0**21
        [y] = own(Fake(), 20.0).load(path, "cpu").run({"x": large})
    finally:
        torch.set_num_threads(before)
    assert torch.equal(y, large + Y)


@FORKS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_tensors_of_any_type_reach_the_process_and_come_back(path, dtype):
    # The guard would refuse them, because the file has another type.
    [y] = OwnProcess(Fake(lambda inputs: [inputs["x"]]), 60.0).load(path, "cpu").run({"x": torch.ones(2).to(dtype)})
    assert (y.dtype, y.float().tolist()) == (dtype, [1.0, 1.0])


def raises(error):
    def run(_):
        raise error

    return run


class OddError(Exception):
    """Cannot be pickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.kept = lambda: None


@FORKS
def test_an_error_of_the_runtime_is_told_in_its_words_and_the_session_goes_on(path):
    session = own(Fake(lambda inputs: raises(OddError("this", "that"))(inputs) if len(inputs["x"]) == 1 else [Y])).load(
        path, "cpu"
    )
    with pytest.raises(RuntimeError, match=r"^this and that$"):
        session.run({"x": X})
    assert torch.equal(session.run({"x": torch.zeros(2, 2)})[0], Y)
    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError$"):
        own(Fake(raises(ZeroDivisionError()))).load(path, "cpu").run({"x": X})


@FORKS
@pytest.mark.parametrize(
    ("run", "rule", "words"),
    [
        (lambda _: os.abort(), "crash", "was killed by SIGABRT"),
        (lambda _: os._exit(3), "crash", "ended by itself with exit code 3"),
        (raises(SystemExit(4)), "crash", "ended by itself with exit code 1"),
        (lambda _: time.sleep(100), "timeout", "did not answer within 0.5 s"),
        (lambda _: None, "run-error", "returned None instead of a list of torch tensors"),
    ],
)
def test_a_process_that_dies_is_a_fault_of_the_runtime(path, run, rule, words):
    session = own(Fake(run), 60.0 if rule != "timeout" else 0.5).load(path, "cpu")
    with pytest.raises(BrokenRuntimeError, match=words) as raised:
        session.run({"x": X})
    assert raised.value.rule == rule


@FORKS
def test_a_process_that_dies_while_it_loads_is_a_fault_of_the_runtime(path):
    fake = Fake()
    fake.load = lambda *_: os.abort()
    with pytest.raises(BrokenRuntimeError, match="was killed by SIGABRT"):
        own(fake).load(path, "cpu")


@FORKS
def test_the_process_closes_its_session_and_ends(path, tmp_path):
    closed = tmp_path / "closed"
    session = own(Fake(close=closed.touch)).load(path, "cpu")
    pid = session._process.pid
    del session
    assert closed.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@FORKS
def test_what_the_process_opens_is_heard_here(path, tmp_path):
    (tmp_path / "weights.txt").write_text("1")
    heard = []
    sys.addaudithook(lambda event, arguments: heard.append(arguments[0]) if event == "open" else None)
    session = own(Fake(lambda _: [Y] if (tmp_path / "weights.txt").read_text() else [])).load(path, "cpu")
    session.run({"x": X})
    assert str(tmp_path / "weights.txt") in map(str, heard)


def test_without_a_time_limit_there_is_no_process(path):
    assert not isinstance(guarded("openvino", math.inf), OwnProcess)
    assert isinstance(guarded("openvino", 1.0), OwnProcess)
