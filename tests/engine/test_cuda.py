"""Cells on CUDA. The tests run on a machine made of this one's CPU and, with ``-m gpu`` and a GPU, once more for real."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from toolbox.cells import BATCH
from toolbox.fake_cuda import FakeCuda, in_tf32
from toolbox.projects import RIGHT, ROOT

import onnx_ci
from onnx_ci import Status
from onnx_ci.collection.discovery import Found
from onnx_ci.config.settings import load_settings
from onnx_ci.engine.events import Waiting
from onnx_ci.engine.scheduler import open_engine
from onnx_ci.environment.versions import version_of
from onnx_ci.matrix.plan import plan
from onnx_ci.pipeline.export import handling
from onnx_ci.pipeline.run import onnxruntime as runtime
from onnx_ci.results.verdict import decide

linux = pytest.mark.skipif(sys.platform != "linux", reason="cells have processes of their own on Linux only")
SIDES = ["PyTorch on cpu", "PyTorch on cuda", "ONNX Runtime on cpu", "ONNX Runtime on cuda"]


def why_no_gpu():
    """Why the tests cannot run for real, by what does not use CUDA: tests fork this process."""
    if not torch.cuda.device_count():
        return "torch finds no GPU here"
    if version_of("onnxruntime-gpu") is None:
        return "onnxruntime-gpu is not installed"
    if "onnxruntime" in sys.modules:
        return "ONNX Runtime was imported by another test, and may keep CUDA from forks; run pytest -m gpu tests/engine/test_cuda.py"
    return None


@pytest.fixture
def fake(monkeypatch):
    return FakeCuda().install(monkeypatch)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def machine(request):
    """A machine with a GPU."""
    if request.param == "fake":
        request.getfixturevalue("fake")
    elif reason := why_no_gpu():
        pytest.skip(reason)
    return request.param


class Product(torch.nn.Module):
    """A matrix product, which on the machine made of a CPU heeds the switch for TensorFloat-32, too."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 256))

    def forward(self, x):
        if not x.is_cuda and x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 and not torch.jit.is_tracing():
            x = in_tf32(x)
        return x @ self.weight.T


@onnx_ci.recipe(**BATCH)
def product():
    return Product(), (torch.randn(32, 256),)


def run_one(recipe, device="cuda", **options):
    (result,) = onnx_ci.run([recipe], **{"opsets": 13, "devices": device, **options}).cells
    return result


def told(result):
    return [(each.rule, each.severity.value) for each in result.findings]


class Recurrence(torch.nn.Module):
    """A recurrent cell. TorchScript cannot export torch's own ones from a GPU, where each is a single fused operator."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(18, 12)

    def forward(self, x, h):
        return torch.tanh(self.linear(torch.cat((x, h), 1)))


def test_steps_are_run_on_the_gpu_as_on_the_cpu(machine):
    @onnx_ci.recipe(input_names=["x", "h"], output_names=["after"], feedback={"after": "h"}, steps=4)
    def cell():
        return Recurrence(), (torch.randn(2, 6), torch.zeros(2, 12))

    for device in ("cuda", "cpu"):
        result = run_one(cell, device)
        assert result.status is Status.PASSED
        assert [each.probe for each in result.outputs if "step" in each.probe] == ["step=1", "step=2", "step=3"]


def test_an_operator_that_stands_for_others_on_gpus_alone_is_avoided_on_the_cpu(fake, monkeypatch):
    def export(*args, **keywords):
        raise torch.onnx.errors.UnsupportedOperatorError("aten::_thnn_fused_gru_cell", 13, None)

    monkeypatch.setattr(torch.onnx, "export", export)
    result = run_one(product, isolation="none")
    assert told(result) == [("unsupported-operator", "error")]
    assert result.findings[0].remedy.endswith("the file runs on any device: export it there.")


@pytest.mark.gpu
@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell])
def test_torchs_own_cells_are_such_operators(cell):
    if reason := why_no_gpu():
        pytest.skip(reason)
    recipe = onnx_ci.recipe(name="cell", input_names=["x"])(lambda: (cell(6, 12), (torch.randn(2, 6),)))
    result = run_one(recipe)
    assert told(result) == [("unsupported-operator", "error")]
    assert "export it there" in result.findings[0].remedy
    assert run_one(recipe, "cpu").status is Status.PASSED


# --- four ways


def test_a_right_export_passes_and_all_four_sides_agree(machine):
    result = run_one(product)
    assert (result.status, result.findings) == (Status.PASSED, ())
    (ways,) = result.cpu_vs_gpu
    assert (ways.name, list(ways.errors), ways.apart) == ("y", SIDES, ())
    assert run_one(product, "cpu").cpu_vs_gpu == ()


def test_the_second_gpu_is_asked_by_its_number(fake):
    assert run_one(product, "cuda:1", isolation="none").status is Status.PASSED
    assert {each["device_id"] for each in fake.options} == {"1"}
    result = run_one(product, "cuda:2")
    assert (result.status, result.reason) == (
        Status.SKIPPED, "no cuda:2: torch finds 2 CUDA devices, counted from cuda:0",
    )  # fmt: skip


def test_a_wrong_file_is_wrong_on_both_sides_of_onnx_runtime(machine):
    class Frozen(Product):
        def forward(self, x):
            return x @ self.weight.T * (1.001 if torch.jit.is_tracing() else 1.0)

    wrong = onnx_ci.recipe(name="wrong", **BATCH)(lambda: (Frozen(), (torch.randn(32, 256),)))
    result = run_one(wrong)
    assert result.status is Status.FAILED
    assert result.cpu_vs_gpu[0].apart == ("ONNX Runtime on cpu", "ONNX Runtime on cuda")
    first = next(each for each in result.findings if each.rule == "numeric-drift")
    assert "; ONNX Runtime on cpu and ONNX Runtime on cuda deviate from the others" in first.message
    assert "TF32" not in first.message + first.remedy  # the CPU has none


def test_a_side_that_cannot_compute_is_left_out(fake, monkeypatch):
    class OnlyHere(Product):
        def forward(self, x):
            if self.moved:
                raise RuntimeError("made for one device")
            return super().forward(x)

        moved = False

        def cpu(self):
            self.moved = True
            return super().cpu()

    only = onnx_ci.recipe(name="only", **BATCH)(lambda: (OnlyHere(), (torch.randn(32, 256),)))
    result = run_one(only, isolation="none")
    assert result.status is Status.PASSED
    assert list(result.cpu_vs_gpu[0].errors) == SIDES[1:]


@pytest.mark.parametrize(
    ("errors", "apart"), [((0, 0, 0, 0), ""), ((0, 1, 0, 1), "bd"), ((0, 0, 0, 1), "d"), ((0, 0, 1, 3), "cd")]
)
def test_who_stands_apart_with_integers(errors, apart):
    from onnx_ci.pipeline.compare.cpu_vs_gpu import deviating_sides

    assert deviating_sides(dict(zip("abcd", errors, strict=True)), limit=0, unit=1) == tuple(apart)


@pytest.mark.parametrize(
    ("errors", "apart"),
    [
        ((1e-7, 1e-7, 2e-7, 3e-7), ""),
        ((1e-7, 1e-7, 1e-3, 1.0), "cd"),
        ((1e-7, 1e-2, 2e-7, 1e-7), "b"),
        ((1e-7, 1e-2, 1e-7, 2e-2), "bd"),
        ((0.0, 1e-2, 2e-2, 1e-2), "bcd"),
        ((0.0, 0.0, 0.0, 1e-7), ""),  # a unit in the last place
        ((0.0, 0.0, 0.0, float("inf")), "d"),
    ],
)
def test_who_stands_apart(errors, apart):
    from onnx_ci.pipeline.compare.cpu_vs_gpu import deviating_sides

    assert deviating_sides(dict(zip("abcd", errors, strict=True)), limit=16, unit=1e-7) == tuple(apart)


def test_pytorch_itself_standing_alone_is_noted(fake):
    class OffOnItsOwn(Product):
        """Rounds coarsely, but for the file, for float64 and on the CPU's side."""

        coarse = True

        def forward(self, x):
            return in_tf32(x @ self.weight.T) if self.coarse and not torch.jit.is_tracing() else x @ self.weight.T

        def cpu(self):
            self.coarse = False
            return super().cpu()

    off = onnx_ci.recipe(name="off", **BATCH)(lambda: (OffOnItsOwn(), (torch.randn(32, 256),)))
    result = run_one(off, isolation="none", effort="quick")
    note = next(each for each in result.findings if each.rule == "vacuous")
    assert note.severity == "note"
    assert note.message.startswith("PyTorch on cuda deviates from the others on output 'y'")


def test_a_reference_runtime_without_the_device_falls_back_to_the_cpu(fake):
    heard = onnx_ci.recipe(name="heard", runtimes=("onnxruntime", "reference"), **BATCH)(product.function)
    result = run_one(heard)
    assert (result.status, {each.runtime for each in result.outputs}) == (Status.PASSED, {"onnxruntime", "reference"})
    alone = onnx_ci.recipe(name="alone", runtimes="reference", **BATCH)(product.function)
    assert run_one(alone).reason == "no cuda: ONNX's reference evaluator runs on the CPU only"


# --- exactness


def force_tf32(monkeypatch):
    options = runtime.cuda_options
    monkeypatch.setattr(runtime, "cuda_options", lambda device, *, tf32: options(device, tf32=True))


def test_tf32_that_is_on_by_force_is_named_among_the_causes(machine, monkeypatch):
    force_tf32(monkeypatch)
    result = run_one(product)
    assert result.status is Status.FAILED
    drift = next(each for each in result.findings if each.rule == "numeric-drift")
    assert "TF32 causes errors of this size; ONNX Runtime on cuda deviates from the others" in drift.message
    assert "tf32=True" in drift.remedy
    assert drift.details["causes"] == ["TF32"]
    assert result.cpu_vs_gpu[0].apart == ("ONNX Runtime on cuda",)


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU])
def test_a_recurrent_layer_is_compared_as_sharply_on_the_gpu_as_on_the_cpu(machine, layer):
    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer(10, 20)

        def forward(self, x):
            return self.layer(x)[0]

    axes = {"x": {0: "length"}, "y": {0: "length"}}
    recurrent = onnx_ci.recipe(name="recurrent", **{**BATCH, "dynamic_axes": axes})(
        lambda: (Recurrent(), (torch.randn(5, 3, 10),))
    )
    on_gpu, on_cpu = run_one(recurrent), run_one(recurrent, "cpu")
    assert (on_gpu.status, [each for each in told(on_gpu) if each not in told(on_cpu)]) == (Status.PASSED, [])
    assert on_gpu.outputs[0].noise < 8 * on_cpu.outputs[0].noise


def test_an_error_too_large_for_tf32_is_not_put_down_to_it(machine):
    class Frozen(Product):
        def forward(self, x):
            return x @ self.weight.T * (3 if torch.jit.is_tracing() else 1)

    result = run_one(onnx_ci.recipe(name="frozen", **BATCH)(lambda: (Frozen(), (torch.randn(32, 256),))))
    drift = next(each for each in result.findings if each.rule == "numeric-drift")
    assert "TF32" not in drift.message + drift.remedy


def test_a_recipe_that_asks_for_tf32_gets_its_noise_and_passes(machine):
    coarse = onnx_ci.recipe(name="coarse", tf32=True, **BATCH)(product.function)
    exact, asked = run_one(product), run_one(coarse)
    assert (asked.status, {*told(asked)} - {("vacuous", "note")}) == (Status.PASSED, set())  # small values prove nothing then
    assert asked.outputs[0].noise > 100 * exact.outputs[0].noise


def test_the_provider_computes_exactly_and_the_same_each_time(fake):
    run_one(product, isolation="none")
    assert {(each["use_tf32"], each["cudnn_conv_algo_search"]) for each in fake.options} == {("0", "DEFAULT")}
    fake.options.clear()
    run_one(onnx_ci.recipe(name="coarse", tf32=True, **BATCH)(product.function), isolation="none")
    assert {(each["use_tf32"], each["cudnn_conv_algo_search"]) for each in fake.options} == {("1", "DEFAULT")}


def test_a_recipe_that_switches_tf32_on_is_compared_without_it(machine):
    @onnx_ci.recipe(**BATCH)
    def switches():
        torch.set_float32_matmul_precision("high")
        return Product(), (torch.randn(32, 256),)

    result = run_one(switches)
    assert result.status is Status.PASSED
    assert ("global-state", "note") in told(result)
    assert result.outputs[0].noise == run_one(product).outputs[0].noise


class Wide(Product):
    """Computes in float32 what it takes and gives in half: the CPU's provider has no product of bfloat16."""

    def forward(self, x):
        return (x.float() @ self.weight.float().T).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_noise_is_measured_in_the_recipes_own_type(machine, dtype):
    kind = Wide if machine == "fake" and dtype == torch.bfloat16 else Product
    half = onnx_ci.recipe(name="half", **BATCH)(lambda: (kind().to(dtype), (torch.randn(32, 256, dtype=dtype),)))
    result = run_one(half)
    assert (result.status, {each.dtype for each in result.outputs}) == (Status.PASSED, {str(dtype).removeprefix("torch.")})
    assert result.outputs[0].noise > 100 * run_one(product).outputs[0].noise


# --- honesty


def test_a_session_that_fell_back_to_the_cpu_is_a_mismatch(fake):
    fake.falls_back = True
    result = run_one(product)
    assert told(result) == [("provider-mismatch", "error")]
    assert result.findings[0].message == "onnxruntime ran on cpu, but cuda was requested"


def test_nodes_that_run_on_the_cpu_are_noted(fake):
    fake.without_kernels_for = ("MatMul", "Gemm")
    result = run_one(product)
    assert (result.status, told(result)) == (Status.PASSED, [("provider-mismatch", "note")])
    assert result.findings[0].message.startswith("onnxruntime ran 1 node on cpu, but cuda was requested: MatMul '")


def test_a_recipe_can_say_that_all_nodes_must_run_on_the_device(fake):
    strict = onnx_ci.recipe(name="strict", all_on_device=True, **BATCH)(product.function)
    assert run_one(strict).status is Status.PASSED
    fake.without_kernels_for = ("MatMul", "Gemm")
    assert told(run_one(strict)) == [("provider-mismatch", "error")]
    fake.writes_profiles = False
    result = run_one(strict)
    assert (told(result), run_one(product).status) == ([("provider-mismatch", "error")], Status.PASSED)
    assert "does not report which nodes ran on cuda" in result.findings[0].message


def test_onnx_runtime_does_not_try_again_with_other_options(fake):
    fake.no_session = RuntimeError("Invalid device ID: 0")
    result = run_one(product)
    told_by = {each.rule: each.message for each in result.findings if each.severity == "error"}
    if Version(version_of("onnxruntime-gpu") or version_of("onnxruntime")) < Version("1.23"):  # always tries again on the CPU
        assert told_by == {"provider-mismatch": "onnxruntime ran on cpu, but cuda was requested"}
    else:
        assert told_by == {"load-error": "onnxruntime cannot load the file: Invalid device ID: 0"}


def test_onnx_runtime_does_not_run_on_the_cpu_after_all(fake):
    from onnxruntime.capi.onnxruntime_pybind11_state import EPFail

    fake.provider_error = EPFail("[ONNXRuntimeError] : 11 : EP_FAIL : no plan for the convolution")
    result = run_one(product)
    assert {each.rule for each in result.findings if each.severity == "error"} == {"run-error"}


def test_arithmetic_on_sizes_may_stay_on_the_cpu(fake):
    class Flat(torch.nn.Module):
        def forward(self, x):
            return x.reshape(x.shape[0] * 2, -1) / torch.scalar_tensor(x.shape[0])

    fake.without_kernels_for = ("Shape", "Gather", "Mul", "Concat", "Unsqueeze", "Cast", "Constant")
    axes = {"x": {0: "batch"}, "y": {0: "rows"}}
    flat = onnx_ci.recipe(name="flat", all_on_device=True, **{**BATCH, "dynamic_axes": axes})(
        lambda: (Flat(), (torch.randn(32, 256),))
    )
    assert told(run_one(flat)) == []


def test_profiles_leave_nothing_behind(fake, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_one(product, isolation="none")
    fake.falls_back = True
    run_one(product, isolation="none")
    assert list(tmp_path.glob("onnx-ci*")) == []


# --- resources


def out_of_memory(text="CUDA out of memory. Tried to allocate 1024.00 GiB."):
    raise torch.OutOfMemoryError(text)


class Greedy(Product):
    """Needs more than any GPU has: when it runs, or only when it is exported."""

    def __init__(self, only_when_exported=False):
        super().__init__()
        self.only_when_exported = only_when_exported

    def forward(self, x):
        if not self.only_when_exported or torch.jit.is_tracing():
            if x.is_cuda:
                torch.empty(2**50, device=x.device)
            elif x.dtype == torch.float32:
                out_of_memory()
        return super().forward(x)


def greedy(**options):
    return onnx_ci.recipe(name="greedy", **BATCH)(lambda: (Greedy(**options), (torch.randn(32, 256),)))


@onnx_ci.recipe(name="greedy_from_the_start")
def greedy_from_the_start():
    torch.empty(2**50, device="cuda") if torch.cuda.is_initialized() else out_of_memory()


@pytest.mark.parametrize(
    ("recipe", "isolation"),
    [
        pytest.param(greedy(), "fork", marks=linux),
        (greedy(only_when_exported=True), "none"),
        pytest.param(greedy_from_the_start, "fork", marks=linux),
    ],
)
def test_a_gpu_without_room_is_the_cells_finding_and_the_next_cell_starts_clean(fake, recipe, isolation):
    report = onnx_ci.run([recipe, product], opsets="12-13", devices="cuda", isolation=isolation)
    assert [each.status for each in report.cells] == ["failed", "failed", "passed", "passed"]
    for result in report.cells[:2]:
        assert told(result) == [("out-of-memory", "error")]
        assert result.findings[0].message == "cuda ran out of memory: CUDA out of memory. Tried to allocate 1024.00 GiB."
        assert "nvidia-smi" in result.findings[0].remedy


@pytest.mark.gpu
def test_a_real_gpu_without_room_is_the_cells_finding():
    if reason := why_no_gpu():
        pytest.skip(reason)
    report = onnx_ci.run([greedy(), product], opsets="12-13", devices="cuda")
    assert [each.status for each in report.cells] == ["failed", "failed", "passed", "passed"]
    assert told(report.cells[0]) == [("out-of-memory", "error")]


@pytest.mark.parametrize(
    "said",
    [
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code: BFCArena: Failed to allocate memory for requested buffer of size 9",
        "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
    ],
)
def test_onnx_runtime_without_room_says_so_in_its_own_words(fake, said):
    fake.error = RuntimeError(said)
    result = run_one(product)
    assert told(result) == [("out-of-memory", "error")]
    assert said in result.findings[0].message
    fake.error = RuntimeError("no such kernel")
    assert ("run-error", "error") in told(run_one(product))


class Words(torch.nn.Module):
    """Ends the use of the GPU for its whole process when an index is out of range, as CUDA's kernels do."""

    dead = False

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(7, 16)
        self.on_gpu = True

    def cpu(self):
        self.on_gpu = False
        return super().cpu()

    def forward(self, x):
        if self.on_gpu and not x.is_cuda:
            if not torch.jit.is_tracing() and not bool(((x >= 0) & (x < 7)).all()):
                Words.dead = True
            if Words.dead:
                raise RuntimeError("CUDA error: device-side assert triggered")
        return self.table(x)


@pytest.mark.parametrize("ids", [torch.arange(12).reshape(3, 4) % 7, torch.full((3, 4), 6)], ids=["all", "the last alone"])
def test_an_index_out_of_range_is_tried_on_the_cpu_first(machine, monkeypatch, ids):
    monkeypatch.setattr(Words, "dead", False)
    words = onnx_ci.recipe(name="words", **BATCH)(lambda: (Words(), (ids,)))
    result = run_one(words)
    assert (result.status, told(result)) == (Status.PASSED, [])
    assert any(each.probe.startswith("batch=") for each in result.outputs)


def test_memory_is_given_back_after_each_cell(fake, monkeypatch):
    given_back = []
    monkeypatch.setattr(fake, "free", lambda: given_back.append(True))
    onnx_ci.run([product], opsets="12-13", devices="cpu,cuda", isolation="none")
    assert len(given_back) == 2


@pytest.mark.slow
@linux
def test_one_cell_at_a_time_has_a_gpu_however_many_run_at_once(fake, tmp_path):
    settings = load_settings(tmp_path, flags={"opsets": "12-14", "devices": "cpu,cuda,cuda:1", "jobs": 4}, environment={})
    seen = []
    cells = plan([Found(product, "here.py")], settings).cells
    with open_engine(settings) as engine:
        engine.expect(cells)
        waiting = {spec.cell.id for spec in cells}
        while waiting:
            spec = next(spec for spec in cells if spec.cell.id in waiting)
            for event in engine.events(spec):
                if isinstance(event, Waiting):
                    seen.append(event.doing)
                else:
                    assert decide(event.evidence).status is Status.PASSED
                    waiting.remove(event.evidence.cell.id)
    on_gpus = [[each for each in doing if re.search(r"-cuda(:1)?$", each)] for doing in seen]
    assert max(sum(each.endswith("-cuda") for each in doing) for doing in on_gpus) == 1
    assert max(sum(each.endswith("-cuda:1") for each in doing) for doing in on_gpus) == 1


@pytest.mark.parametrize(("installed", "imported"), [("onnxruntime", True), ("onnxruntime-gpu", False)])
def test_no_process_that_forks_imports_onnx_runtime_for_cuda(monkeypatch, installed, imported):
    names = []
    monkeypatch.setattr(handling, "version_of", lambda name: "1.31.1" if name == installed else None)
    monkeypatch.setattr(handling.importlib, "import_module", names.append)
    handling.preload.__wrapped__("dynamo")
    assert ("onnxruntime" in names, "onnx" in names) == (imported, True)


@linux
def test_a_fork_without_cuda_is_not_told_of_it(monkeypatch):
    users = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: bool(users) and os.getpid() not in users)

    class Compiled(Product):
        """As torch's compiler, uses CUDA wherever there is any, and be it for a model on the CPU."""

        def forward(self, x):
            if torch.cuda.is_available():
                if torch.cuda._is_in_bad_fork():
                    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
                users.append(os.getpid())
            return super().forward(x)

    compiled = onnx_ci.recipe(name="compiled", **BATCH)(lambda: (Compiled(), (torch.randn(32, 256),)))
    for used_here in (False, True):
        users[:] = [os.getpid()] if used_here else []
        for opsets in ("13", "12-13"):  # a cell alone is not forked
            report = onnx_ci.run([compiled], opsets=opsets, devices="cpu")
            assert {each.status for each in report.cells} == {Status.PASSED}
    assert torch.cuda.is_available()


def test_the_choice_of_gpus_is_the_users(machine, monkeypatch, tmp_path):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    told_in = tmp_path / "told"

    class Tells(Product):
        def forward(self, x):
            with told_in.open("a") as file:
                file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "unset") + "\n")
            return super().forward(x)

    tells = onnx_ci.recipe(name="tells", **BATCH)(lambda: (Tells(), (torch.randn(32, 256),)))
    assert run_one(tells).status is Status.PASSED
    assert set(told_in.read_text().splitlines()) == {visible}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


# --- pytest and the command


@pytest.mark.slow
def test_a_gpu_has_one_worker(project):
    project.recipes("from toolbox import fake_cuda\nfake_cuda.install_for_good()", RIGHT, RIGHT.replace("right", "other"))
    done = project.command(
        *("pytest", "-p", "no:cacheprovider", "--onnx-export", "-n", "3", "-v"),
        *("--onnx-opsets=12-13", "--onnx-devices=cpu,cuda,cuda:1"),
        PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")])),
    )
    assert done.returncode == 0, done.stdout
    workers = {}
    for worker, device in re.findall(r"^\[(gw\d)\].*PASSED.* \S+::opset\d+-([\w:]+)", done.stdout, re.MULTILINE):
        workers.setdefault(device, []).append(worker)
    assert {device: len(each) for device, each in workers.items()} == {"cpu": 4, "cuda": 4, "cuda:1": 4}
    assert len(set(workers["cuda"])) == len(set(workers["cuda:1"])) == 1


@pytest.fixture
def no_gpu():
    if torch.cuda.device_count():
        pytest.skip("this machine has a GPU")


WHY_NO_GPU = "this torch (" if torch.version.cuda is None else "torch cannot use CUDA: "


@pytest.mark.slow
def test_an_absent_gpu_is_told_once(project, no_gpu):
    project.recipes(RIGHT)
    for done in (
        project.command("pytest", "-p", "no:cacheprovider", "--onnx-export", "--onnx-opsets=12-14", "--onnx-devices=cpu,cuda"),
        project.command("onnx_ci", "run", "--opsets=12-14", "--devices=cpu,cuda"),
    ):
        assert done.returncode == 0, done.stdout
        (line,) = [line for line in done.stdout.splitlines() if "no cuda: " in line]
        assert line.startswith(f"skipped 3 cells: no cuda: {WHY_NO_GPU}")


@pytest.mark.slow
@pytest.mark.parametrize("door", ["flag", "variable", "file"])
def test_an_absent_gpu_that_is_required_ends_with_4(project, no_gpu, door):
    project.recipes(RIGHT)
    flags = {"flag": ("--{}require-devices",)}.get(door, ())
    environment = {"ONNX_CI_REQUIRE_DEVICES": "1"} if door == "variable" else {}
    if door == "file":
        project.write("pyproject.toml", "[tool.onnx-ci]\nrequire-devices = true\n")
    for words, prefix in ((("pytest", "-p", "no:cacheprovider", "--onnx-export"), "onnx-"), (("onnx_ci", "run"), "")):
        asked = [f"--{prefix}opsets=13", f"--{prefix}devices=cpu,cuda", *(each.format(prefix) for each in flags)]
        done = project.command(*words, *asked, **environment)
        assert done.returncode == 4, done.stdout
        last = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("onnx-ci: ")][-1]
        assert last.startswith(f"onnx-ci: a required device is missing: no cuda: {WHY_NO_GPU}")
        assert "1 passed" in done.stdout


@pytest.mark.slow
def test_what_is_wrong_besides_ends_with_1(project, no_gpu):
    project.recipes(RIGHT)
    for words, prefix in ((("pytest", "-p", "no:cacheprovider", "--onnx-export"), "onnx-"), (("onnx_ci", "run"), "")):
        flags = [f"--{prefix}{flag}" for flag in ("opsets=13", "devices=cpu,cuda", "require-devices", "max-drift=1e-9")]
        assert project.command(*words, *flags).returncode == 1
    project.write("test_own.py", "def test_own():\n    assert False\n")
    done = project.command(
        "pytest", "-p", "no:cacheprovider", "--onnx-export", "--onnx-opsets=13", "--onnx-devices=cuda", "--onnx-require-devices"
    )
    assert done.returncode == 1


def test_a_word_that_is_no_device_is_one_message(project):
    for flag in ("gpu", "cuda:x"):
        done = project.command("onnx_ci", "run", f"--devices={flag}")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert f"unknown device {flag!r}; use cpu, cuda or cuda:1" in done.stderr
    with pytest.raises(onnx_ci.ConfigurationError, match="unknown device 'gpu'"):
        onnx_ci.export(product, opset=13, device="gpu")


def test_a_machine_is_asked_only_through_the_seam():
    sources = {path: path.read_text(encoding="utf-8") for path in Path(onnx_ci.__file__).parent.rglob("*.py")}
    asking = {path.name for path, text in sources.items() if re.search(r"(?<!`)torch\.cuda\.\w+\(", text)}
    assert asking == {"devices.py", "packages.py"}
