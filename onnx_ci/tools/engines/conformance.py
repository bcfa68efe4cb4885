"""What a runtime must get right, and how it must fail, on small files: the tests of ``pytest --onnx-runtime=NAME``.

If the runtime refuses a file with an error of its own, the test is skipped with that error: to refuse a file is not a fault.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from onnx_ci.errors import first_line
from onnx_ci.onnx_model.files import save
from onnx_ci.pipeline.run.runtime import BrokenRuntimeError, Runtime, Session, make_runtime

_SECONDS = 30.0
"""How long a runtime may take for one answer, unless it has a time limit of its own."""
_ROUNDING = 2e-5, 1e-6
"""The largest relative and absolute error of floats."""
_TYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


class Candidate:
    """The runtime that is tested.

    Attributes:
        hangs: what it did not answer in an earlier test. It is not asked again, because each time takes long.
    """

    hangs = ""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self.runtime, self.folder = runtime, folder
        self._numbers = itertools.count()

    def fail(self, what: str) -> None:
        """Fail the test, with the name of the runtime."""
        pytest.fail(f"{self.runtime.name} {what}", pytrace=False)

    def file(self, graph: str, **weights: torch.Tensor) -> Path:
        """A file with a graph of opset 17, in a folder of its own. ``weights`` are its initializers."""
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
        model.graph.initializer.extend(onnx.numpy_helper.from_array(each.numpy(), name) for name, each in weights.items())
        path = self.folder / str(next(self._numbers)) / "net.onnx"
        path.parent.mkdir()
        save(model, path)
        return path

    def load(self, graph: str | Path, **weights: torch.Tensor) -> Session:
        """A session of a file, or of the graph of one. The test is skipped if the runtime refuses it."""
        path = graph if isinstance(graph, Path) else self.file(graph, **weights)
        with self._refusal_skips("load"):
            session: Session = self.answer(lambda: self.runtime.load(path, "cpu"))
        return session

    def run(self, session: Session, **inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """The outputs of a session. The test is skipped if the runtime refuses to run it."""
        with self._refusal_skips("run"):
            outputs: Sequence[torch.Tensor] = self.answer(lambda: session.run(inputs))
        return outputs

    def answer(self, act: Callable[[], Any]) -> Any:
        """What ``act`` returns. Fails the test if the runtime crashes, hangs or breaks a promise; raises its other errors."""
        if Candidate.hangs:
            self.fail(f"{Candidate.hangs} in an earlier test")
        try:
            return act()
        except BrokenRuntimeError as error:
            broken = error
        if broken.rule == "timeout":
            Candidate.hangs = str(broken)
        return self.fail(str(broken))

    @contextlib.contextmanager
    def _refusal_skips(self, verb: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each runtime raises its own classes
            pytest.skip(f"{self.runtime.name} does not {verb} the file: {first_line(error)}")

    def must_raise(self, what: str, act: Callable[[], Any]) -> None:
        """Fail the test unless the runtime raises an error of its own; ``what`` says what it is given."""
        try:
            self.answer(act)
        except Exception:  # each runtime raises its own classes
            return
        self.fail(f"raises no error for {what}")

    def compare(self, outputs: Sequence[torch.Tensor], *expected: torch.Tensor) -> None:
        """Fail the test unless outputs are the expected ones: in number, types and shapes, and but for rounding in values."""
        if len(outputs) != len(expected):
            self.fail(f"returns {len(outputs)} outputs instead of {len(expected)}")
        for number, (output, right) in enumerate(zip(outputs, expected, strict=True)):
            if (output.dtype, output.shape) != (right.dtype, right.shape):
                given, wanted = (f"{each.dtype} of shape {tuple(each.shape)}" for each in (output, right))
                self.fail(f"returns output {number} as {given} instead of {wanted}")
            rtol, atol = _ROUNDING if right.is_floating_point() else (0.0, 0.0)
            is_right = torch.equal(output, right) if not rtol else torch.allclose(output.double(), right.double(), rtol, atol)
            if not is_right:
                self.fail(f"returns output {number} as {output.tolist()} instead of {right.tolist()}")


@pytest.fixture
def candidate(request: pytest.FixtureRequest, tmp_path: Path) -> Candidate:
    """The runtime that ``--onnx-runtime`` names; in processes of its own where these can be forked."""
    runtime = make_runtime(request.config.getoption("onnx_runtime"), seconds=_SECONDS if sys.platform == "linux" else math.inf)
    if reason := runtime.missing_device("cpu"):
        pytest.skip(reason)
    return Candidate(runtime, tmp_path)


# --- what it must get right -----------------------------------------------------------------------------------------------

_MUL = "net (float[n, 3] x) => (float[n, 3] y) { y = Mul(x, w) }"


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_it_has_the_name_of_its_entry_point(candidate: Candidate, request: pytest.FixtureRequest) -> None:
    """Messages and reports call it so."""
    if candidate.runtime.name != (name := request.config.getoption("onnx_runtime")):
        candidate.fail(f"is the name of the runtime that the entry point calls {name}")


def test_it_answers_about_devices(candidate: Candidate) -> None:
    """``missing_device`` returns a reason or ``None``, and raises nothing."""
    for device in ("cpu", "cuda", "cuda:1"):
        answer = candidate.answer(functools.partial(candidate.runtime.missing_device, device))
        if not (answer is None or isinstance(answer, str)):
            candidate.fail(f"answers missing_device({device!r}) with {answer!r}")


def test_sums_are_as_exact_as_float32(candidate: Candidate) -> None:
    """A product of matrices in float32, compared with float64."""
    x, w = _numbers(4, 64), _numbers(64, 5, seed=1)
    session = candidate.load("net (float[n, 64] x) => (float[n, 5] y) { y = MatMul(x, w) }", w=w)
    candidate.compare(candidate.run(session, x=x), (x.double() @ w.double()).float())


@pytest.mark.parametrize("kind", _TYPES)
def test_values_keep_their_type(candidate: Candidate, kind: str) -> None:
    """Elements are moved, and none is changed."""
    x = (torch.arange(6).reshape(2, 3) * 17 - 3).to(_TYPES[kind])
    session = candidate.load(f"net ({kind}[n, 3] x) => ({kind}[n, 6] y) {{ y = Concat <axis = 1> (x, x) }}")
    candidate.compare(candidate.run(session, x=x), torch.cat([x, x], dim=1))


def test_large_integers_are_exact(candidate: Candidate) -> None:
    """Beyond 2**53, which float64 rounds."""
    x = torch.tensor([2**53, -(2**62)])
    session = candidate.load("net (int64[n] x) => (int64[n] y) { y = Add(x, one) }", one=torch.tensor([1]))
    candidate.compare(candidate.run(session, x=x), x + 1)


def test_special_values_are_kept(candidate: Candidate) -> None:
    """NaN, infinities and the sign of zero."""
    x = torch.tensor([[math.nan, math.inf, -math.inf, -0.0, 1e-40]])
    (y,) = candidate.run(candidate.load("net (float[n, 5] x) => (float[n, 5] y) { y = Identity(x) }"), x=x)
    if not (torch.equal(y.isnan(), x.isnan()) and torch.equal(y[0, 1:3], x[0, 1:3])):
        candidate.fail(f"returns {y.tolist()} for {x.tolist()}")


def test_a_scalar(candidate: Candidate) -> None:
    """A tensor without axes goes in and comes out."""
    path = candidate.file("net (float[1] x) => (float[1] y) { y = Mul(x, w) }", w=torch.tensor(3.0))
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.ClearField("dim")
    onnx.save(model, path)
    candidate.compare(candidate.run(candidate.load(path), x=torch.tensor(2.0)), torch.tensor(6.0))


def test_no_rows(candidate: Candidate) -> None:
    """A tensor without elements goes in and comes out."""
    session = candidate.load(_MUL, w=torch.tensor([1.0, 2.0, 3.0]))
    candidate.compare(candidate.run(session, x=torch.empty(0, 3)), torch.empty(0, 3))


def test_one_session_takes_several_sizes(candidate: Candidate) -> None:
    """A dynamic axis, with one size after the other."""
    w = torch.tensor([1.0, 2.0, 3.0])
    session = candidate.load(_MUL, w=w)
    for rows in (3, 1, 5, 2, 3):
        x = _numbers(rows, 3, seed=rows)
        candidate.compare(candidate.run(session, x=x), x * w)


def test_each_run_has_its_own_values(candidate: Candidate) -> None:
    """A second run with other values gives other outputs, and leaves those of the first one as they were."""
    w = torch.tensor([1.0, 2.0, 3.0])
    session, (first, second) = candidate.load(_MUL, w=w), (_numbers(2, 3, seed=seed) for seed in (1, 2))
    before, after = candidate.run(session, x=first), candidate.run(session, x=second)
    candidate.compare(after, second * w)
    candidate.compare(before, first * w)


def test_inputs_go_by_their_names(candidate: Candidate) -> None:
    """Whatever the order in which they are given."""
    first, second = _numbers(2, 3), _numbers(2, 3, seed=1)
    session = candidate.load("net (float[n, 3] b, float[n, 3] a) => (float[n, 3] y) { y = Sub(b, a) }")
    candidate.compare(candidate.run(session, a=second, b=first), first - second)


def test_outputs_come_in_the_order_of_the_graph(candidate: Candidate) -> None:
    """Several of them, of different types and shapes, that are computed in another order."""
    x = _numbers(2, 3)
    graph = """net (float[n, 3] x) => (float[n, 3] z, bool[n, 3] b, float[n, 3] a)
        { a = Neg(x)  b = Greater(x, zero)  z = Mul(a, two) }"""
    session = candidate.load(graph, zero=torch.zeros(1), two=torch.full((1,), 2.0))
    candidate.compare(candidate.run(session, x=x), -2 * x, x > 0, -x)


def test_external_data(candidate: Candidate) -> None:
    """Weights in another file; a runtime that reads none says so: ``reads_external_data = False``."""
    x, w = _numbers(2, 64), _numbers(64, 8, seed=1)
    path = candidate.file("net (float[n, 64] x) => (float[n, 8] y) { y = MatMul(x, w) }", w=w)
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="net.onnx.data", size_threshold=0)
    candidate.compare(candidate.run(candidate.load(path), x=x), x @ w)


def test_two_sessions_at_once(candidate: Candidate) -> None:
    """With different weights, in turn."""
    x, (w, v) = _numbers(2, 3), (_numbers(3, seed=seed) for seed in (1, 2))
    first, second = candidate.load(_MUL, w=w), candidate.load(_MUL, w=v)
    for _ in range(2):
        candidate.compare(candidate.run(first, x=x), x * w)
        candidate.compare(candidate.run(second, x=x), x * v)


def test_a_seed_is_accepted(candidate: Candidate) -> None:
    """``run`` takes one, whether the runtime can be seeded or not."""
    session = candidate.load(_MUL, w=torch.ones(3))
    candidate.compare(candidate.answer(lambda: session.run({"x": torch.ones(1, 3)}, seed=1)), torch.ones(1, 3))


# --- how it must fail -----------------------------------------------------------------------------------------------------

_WRONG_FILES: Mapping[str, Callable[[bytes], bytes]] = {
    "an empty file": lambda _: b"",
    "a text": lambda _: b"no model\n" * 40,
    "half a file": lambda content: content[: len(content) // 2],
    "an operator that does not exist": lambda content: content.replace(b"Mul", b"Mxl"),
}


@pytest.mark.parametrize("what", _WRONG_FILES)
def test_a_file_that_it_cannot_load_is_an_error(candidate: Candidate, what: str) -> None:
    """It raises one, when it loads or runs the file, and does not crash."""
    path = candidate.file(_MUL, w=torch.ones(3))
    path.write_bytes(_WRONG_FILES[what](path.read_bytes()))
    candidate.must_raise(what, lambda: candidate.runtime.load(path, "cpu").run({"x": torch.ones(1, 3)}))


def test_a_file_that_is_missing_is_an_error(candidate: Candidate) -> None:
    """It raises one."""
    candidate.must_raise("a file that is missing", lambda: candidate.runtime.load(candidate.folder / "none.onnx", "cpu"))


@pytest.mark.parametrize(("what", "names"), [("a wrong name of an input", ("z",)), ("no inputs", ())])
def test_other_inputs_than_the_files_are_an_error(candidate: Candidate, what: str, names: Sequence[str]) -> None:
    """It raises one, and the session can be used again."""
    session = candidate.load(_MUL, w=torch.ones(3))
    candidate.must_raise(what, lambda: session.run({name: torch.ones(1, 3) for name in names}))
    candidate.compare(candidate.run(session, x=torch.ones(1, 3)), torch.ones(1, 3))


def test_a_session_goes_on_after_an_error(candidate: Candidate) -> None:
    """A size that the file cannot take is an error, and the next run is right."""
    session = candidate.load("net (float[n, 2] x) => (float[3, 2] y) { y = Reshape(x, s) }", s=torch.tensor([3, 2]))
    right = _numbers(3, 2)
    candidate.compare(candidate.run(session, x=right), right)
    candidate.must_raise("a size that a Reshape cannot take", lambda: session.run({"x": _numbers(4, 2)}))
    candidate.compare(candidate.run(session, x=right), right)
