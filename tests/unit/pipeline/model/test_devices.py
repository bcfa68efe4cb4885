"""What is asked of GPUs, and what is set while they compute: on a machine with or without one."""

from __future__ import annotations

import os
import types

import pytest
import torch
from toolbox.fake_cuda import FakeCuda
from toolbox.torch_switches import switches
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from onnx_ci.cache.places import Places
from onnx_ci.cache.variables import Variables
from onnx_ci.environment.this_process import NVML_CHECK
from onnx_ci.pipeline.model import devices
from onnx_ci.pipeline.model.build import moved
from onnx_ci.pipeline.model.call import Call
from onnx_ci.pipeline.model.devices import exact_arithmetic, missing_device, ran_out_of_memory
from onnx_ci.pipeline.prepare.observability import observe
from onnx_ci.pipeline.run import onnxruntime as runtime

# torch 2.9 warns of the older of its two kinds of switches, which torch.export reads.
pytestmark = pytest.mark.filterwarnings("ignore:Please use the new API settings to control TF32:UserWarning")


# --- who is here


def test_the_cpu_is_never_missing():
    assert missing_device("cpu") is None


@pytest.fixture
def for_cuda(monkeypatch):
    """A torch that is built for CUDA, whose start ends as the test says."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.setattr(devices, "gpus", devices.Gpus())

    def starts(error=None, count=1):
        def init():
            if error is not None:
                raise error

        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return starts


def test_why_a_gpu_is_missing_is_told_in_torchs_own_words(for_cuda, monkeypatch):
    for_cuda(RuntimeError("Found no NVIDIA driver on your system.\nPlease check"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert missing_device("cuda") == "torch cannot use CUDA: Found no NVIDIA driver on your system."
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert missing_device("cuda").endswith(" (CUDA_VISIBLE_DEVICES is '')")


@pytest.mark.parametrize(
    ("device", "count", "missing"), [("cuda", 1, False), ("cuda:0", 1, False), ("cuda:1", 1, True), ("cuda:1", 2, False)]
)
def test_gpus_are_counted_from_0(for_cuda, device, count, missing):
    for_cuda(count=count)
    assert (missing_device(device) is not None) == missing
    if missing:
        assert missing_device(device) == "torch finds 1 CUDA device, counted from cuda:0"


def test_what_identifies_a_gpu_needs_nothing_private_of_torch(for_cuda, monkeypatch):
    for_cuda()
    properties = types.SimpleNamespace(name="H100", major=9, minor=0, total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(devices, "newest_cuda", lambda: "13.0")
    described = devices.gpus.describe("cuda")
    assert (described["gpu"], described["driver"]) == (f"H100 9.0 {80 * 2**30}", "13.0")


def test_a_torch_without_cuda_says_so(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert missing_device("cuda") == f"this torch ({torch.__version__}) is built without CUDA"


def test_a_fork_of_a_process_that_used_cuda_says_what_to_do(for_cuda, monkeypatch):
    for_cuda()
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert "run with isolation=none" in missing_device("cuda")


def test_how_cuda_is_asked_for_changes_no_key_of_a_verdict():
    environment = {NVML_CHECK: "1", "CUBLAS_WORKSPACE_CONFIG": ":0:0"}
    assert [*Variables(environment, (), Places("/nets", environment)).digests] == ["CUBLAS_WORKSPACE_CONFIG"]


def test_onnx_runtime_for_the_cpu_names_the_remedy(monkeypatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "install onnx-ci[cuda] instead of onnx-ci[cpu]" in runtime.OnnxRuntime().missing_device("cuda:1")


# --- exactness


def test_the_users_own_workspace_of_cublas_stays(monkeypatch):
    FakeCuda().install(monkeypatch)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with exact_arithmetic(for_reference=True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    with exact_arithmetic(for_reference=True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


class Operators(TorchDispatchMode):
    """Records the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **kwargs or {})


def test_the_operators_of_references_are_the_models_own(monkeypatch):
    FakeCuda().install(monkeypatch)
    with FakeTensorMode(), exact_arithmetic(for_reference=True), Operators() as called:
        image = torch.empty(1, 3, 4, 4, device="cuda")  # without values
        called.names.clear()
        torch.nn.functional.interpolate(image, scale_factor=2, mode="bilinear")
        torch.nn.functional.pad(image, (1, 1, 1, 1), mode="replicate")
    assert [name for name in called.names if name != "device"] == ["upsample_bilinear2d", "replication_pad2d"]


@pytest.mark.parametrize(
    ("arithmetic", "expected"),
    [
        pytest.param({"for_reference": True}, False, id="reference"),
        pytest.param({"for_reference": True, "tf32": True}, True, id="reference as coarse as production"),
        pytest.param({}, True, id="export"),
    ],
)
def test_references_alone_leave_cudnn_out_and_in_recurrent_layers_alone(monkeypatch, arithmetic, expected):
    FakeCuda().install(monkeypatch)
    uses_cudnn = []

    class Recurrent(torch.nn.GRU):
        def forward(self, x):
            uses_cudnn.append(torch.backends.cudnn.enabled)
            return super().forward(x)

    class Convolution(torch.nn.Conv1d):
        def forward(self, x):
            uses_cudnn.append(torch.backends.cudnn.enabled)
            return super().forward(x[0])

    model = torch.nn.Sequential(Recurrent(3, 4), Convolution(5, 4, 1))
    with exact_arithmetic(**arithmetic):
        model(torch.randn(2, 5, 3))
        assert uses_cudnn == [expected, True]
        with pytest.raises(RuntimeError, match="Expected 3"):
            model[0](torch.randn(2, 5, 99))
        assert torch.backends.cudnn.enabled
    model(torch.randn(2, 5, 3))
    assert uses_cudnn[-2:] == [True, True]


def test_without_a_gpu_nothing_is_set(monkeypatch):
    FakeCuda(number=0).install(monkeypatch)
    before = switches()
    with exact_arithmetic(for_reference=True):
        assert switches() == before


# --- memory


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("any words"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("BFCArena::AllocateRawInternal(size_t) Failed to allocate memory for requested buffer of size 4"), True),
        (RuntimeError("CUDA failure 2: out of memory ; GPU=0 ; hostname=x"), True),
        (RuntimeError("CUDA failure 222: unsupported toolchain"), False),
        (RuntimeError("the shop ran out of memory"), False),
        (None, False),
    ],
)
def test_what_speaks_of_a_gpu_without_room(error, is_memory):
    assert ran_out_of_memory(error) == is_memory
    wrapped = ValueError("the exporter failed")
    wrapped.__cause__ = error
    assert ran_out_of_memory(wrapped) == is_memory


def test_giving_memory_back_needs_no_gpu():
    devices.gpus.free()


def test_a_gpu_that_an_error_has_ended_has_no_memory_to_give_back(for_cuda, monkeypatch):
    def ended():
        raise RuntimeError("CUDA error: device-side assert triggered")

    for_cuda()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", ended)
    devices.gpus.free()


# --- models


def test_a_model_that_its_recipe_puts_on_a_gpu_is_on_the_cpu_for_the_cpu():
    with FakeTensorMode():  # tensors without values, which may be on any device
        model, x = torch.nn.Module(), torch.empty(4, 3, device="cuda")
        model.register_buffer("mean", torch.empty(3, device="cuda"))
        assert (model.mean.device.type, x.device.type) == ("cuda", "cuda")
        call = moved(Call(model=model, args=(x,), kwargs={"y": [x]}), "cpu")
    tensors = [call.model.mean, *call.args, *call.kwargs["y"]]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}


def test_a_recurrent_layer_is_observed_without_cudnn_which_has_its_gradients_in_training_only():
    class OnCudnn(torch.nn.LSTM):
        def forward(self, x):
            if torch.backends.cudnn.enabled and torch.is_grad_enabled() and not self.training:
                raise RuntimeError("cudnn RNN backward can only be called in training mode")
            return super().forward(x)

    call = Call(model=OnCudnn(3, 4).eval(), args=(torch.randn(2, 5, 3),), kwargs={})
    observability = observe(call, [1e-7] * 3, [16.0] * 3)
    assert observability is not None
    assert observability.share == 1.0
    assert torch.backends.cudnn.enabled
