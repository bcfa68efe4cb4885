"""Every kind of object that torch.onnx.export or torch.export takes is a model here, or is refused in a sentence."""

from __future__ import annotations

import copy
import functools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import onnx
import pytest
import torch
from onnx import helper
from toolbox.cells import errors, rules, run_one
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import onnx_ci
from onnx_ci.pipeline.model import module

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.(jit|ao)"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

KINDS = {}
"""The kinds of models by name."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a kind of model is made, and what is said where the file of an exporter is not right, as a part of the message."""

    build: Callable[[], object]
    torchscript: str = ""
    dynamo: str = ""
    remark: str = ""
    """A part of the note about it; empty if there is none."""
    factor: float = 1.01
    """The output of the wrong twin, divided by that of the right one."""
    is_static: bool = False
    """Whether the number of rows is fixed."""


def kind(**said):
    def add(build):
        KINDS[build.__name__] = Kind(build=build, **said)
        return build

    return add


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.second(self.first(x).relu())

    def encode(self, x):
        return self.first(x).tanh()


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


def example():
    return torch.linspace(-1, 2, 12).view(3, 4)


# --- captured by torch

ROWS = ({0: torch.export.Dim("rows")},)
OF_DYNAMO = "does not support ExportedProgram, the class of the model"
NOT_TRACED = "not part of the active trace"
NO_SCRIPTS = "dynamo exporter raised TorchExportError"


@kind()
def traced_by_fx():
    return torch.fx.symbolic_trace(Net())


@kind(dynamo=NO_SCRIPTS)
def scripted():
    return torch.jit.script(Net())


@kind(dynamo=NO_SCRIPTS)
def traced():
    return torch.jit.trace(Net(), example())


@kind(dynamo="object has no attribute 'training'")
def frozen():
    return torch.jit.freeze(torch.jit.script(Net().eval()))


@kind(torchscript=NOT_TRACED, dynamo=NO_SCRIPTS)
def scripted_inside():
    return Outer(torch.jit.script(Net()))


class Normed(nn.Module):
    """A layer whose BatchNorm is folded into its weight in the file."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Conv1d(4, 4, 1, bias=False), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.layer(x.unsqueeze(-1))).squeeze(-1)


class Either(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.low, self.high = part(), part()

    def forward(self, x):
        if bool(x.mean() > 0):
            return self.high(x)
        else:  # noqa: RET505 scripts return on each side
            return self.low(x)


def traced_part():
    return torch.jit.trace(Normed().eval(), example())


@kind(dynamo=NO_SCRIPTS)
def script_of_traced():
    return torch.jit.script(Either(traced_part).eval())


@kind(dynamo=NO_SCRIPTS)
def trace_of_a_script_of_traced():
    return torch.jit.trace(nn.Sequential(torch.jit.script(Either(traced_part).eval()), Normed()).eval(), example())


@kind(remark="of the class ScriptFunction")
def scripted_function():
    def double(x):
        return x.relu() * 2

    return torch.jit.script(double)


@kind(torchscript=OF_DYNAMO, is_static=True)
def program():
    return torch.export.export(Net().eval(), (example(),))


@kind(torchscript=OF_DYNAMO)
def program_with_dynamic_rows():
    return torch.export.export(Net().eval(), (example(),), dynamic_shapes=ROWS)


@kind(torchscript="train() is not supported", remark="train() fails for the model")
def module_of_program():
    return torch.export.export(Net().eval(), (example(),), dynamic_shapes=ROWS).module()


# --- compiled

COMPILED = "wrapped by torch.compile"


@kind(remark=f"the model is {COMPILED}")
def compiled():
    return torch.compile(Net())


@kind(remark=f"'inner' is {COMPILED}")
def compiled_inside():
    return Outer(torch.compile(Net()))


@kind(remark=f"the model is {COMPILED}")
def compiled_forward():
    model = Net()
    model.forward = torch.compile(model.forward)
    return model


# --- functions


@kind(remark="of the class function")
def function():
    def double(x):
        return x.relu() * 2

    return double


@kind(remark="of the class function")
def function_around_a_module():
    net = Net()
    return lambda x: net(x) + 1


@kind(remark="of the class partial")
def partial_with_a_tensor():
    def scale(x, pair, factor):
        return x * pair[0] + pair[1] * factor

    return functools.partial(scale, pair=(torch.arange(1.0, 5), torch.ones(4)), factor=2.5)


@kind(remark="of the class method")
def bound_method():
    return Net().encode


@kind(remark="of the class Pipeline")
def callable_object():
    class Pipeline:
        def __init__(self):
            self.net = Net()

        def __call__(self, x):
            return self.net(x).softmax(-1)

    return Pipeline()


# --- made in another way


@kind()
def class_made_by_exec():
    text = """
class Made(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x).relu()
"""
    namespace = {"torch": torch}
    exec(text, namespace)
    return namespace["Made"]()


@kind()
def built_in_inference_mode():
    with torch.inference_mode():
        return Net()


@kind()
def with_a_buffer_of_inference_mode():
    model = Net()
    with torch.inference_mode():
        model.register_buffer("unused", torch.ones(2))
    return model


@kind()
def lazy():
    return nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2))


@kind(torchscript="DataParallel is not supported by ONNX exporter")
def data_parallel():
    return nn.DataParallel(Net())


@kind()
def parametrized():
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).T

    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer, parametrizations.weight_norm(nn.Linear(4, 4)))


@kind()
def pruned():
    model = Net()
    prune.l1_unstructured(model.first, "weight", 0.5)
    return model


@kind()
def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


@kind(dynamo=NO_SCRIPTS, is_static=True, factor=1.5)
def quantized_in_eager_mode():
    model = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Linear(4, 3), torch.ao.quantization.DeQuantStub()).eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig("x86")
    torch.ao.quantization.prepare(model, inplace=True)
    model(example())
    return torch.ao.quantization.convert(model, inplace=True)


@kind()
def checkpointed():
    class Checkpointed(Net):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    return Checkpointed()


# --- weights that are not like others


@kind()
def sparse_buffer():
    model = Net()
    model.register_buffer("unused", torch.eye(3).to_sparse())
    return model


@kind(torchscript="aten::_sparse_mm", dynamo="No ONNX function found", is_static=True)
def sparse_weight():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(4).to_sparse())

        def forward(self, x):
            return torch.sparse.mm(self.weight, x.T)

    return Sparse()


@kind(dynamo="KeyError: torch.uint4")
def buffer_of_uint4():
    model = Net()
    model.register_buffer("unused", torch.ones(3, dtype=torch.uint8).view(torch.uint4))
    return model


@kind()
def unused_layer_on_meta():
    model = Net()
    model.unused = nn.Linear(3, 3, device="meta")
    return model


@kind(torchscript="Attempted to use an uninitialized parameter")
def parameter_without_values():
    model = Net()
    model.unused = nn.UninitializedParameter()
    return model


class Tagged(torch.Tensor):
    pass


@kind()
def weight_of_a_subclass():
    model = Net()
    model.first.weight = nn.Parameter(model.first.weight.detach().as_subclass(Tagged))
    return model


# --- what cannot be copied, or is in a mode of its own


@kind()
def copies_are_the_model_itself():
    class Alone(Net):
        def __deepcopy__(self, memo):
            return self

    return Alone()


@kind()
def copies_are_in_training_mode():
    class Forgetful(Net):
        def __deepcopy__(self, memo):
            copied = Forgetful()
            copied.load_state_dict(self.state_dict())
            return copied

        def forward(self, x):
            return super().forward(nn.functional.dropout(x, training=self.training))

    return Forgetful()


@kind()
def holds_a_lock():
    model = Net()
    model.lock = threading.Lock()
    return model


@kind(torchscript="NotImplementedError: no modes", remark="train() fails for the model")
def has_no_modes():
    class Modeless(Net):
        def train(self, mode=True):
            raise NotImplementedError("no modes")

    return Modeless()


@pytest.fixture
def deep_calls():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20000)
    yield
    sys.setrecursionlimit(before)


# --- the tests

EXPORTERS = {"torchscript": 17, "dynamo": 18}


def recipe_of_kind(name):
    declared = {} if KINDS[name].is_static else {"dynamic_axes": {"x": {0: "rows"}, "y": {0: "rows"}}}
    return onnx_ci.recipe(name=name, input_names=["x"], output_names=["y"], **declared)(
        lambda: (KINDS[name].build(), (example(),))
    )


def remarks_of(result):
    return [each.message for each in result.findings if each.rule == "model-kind"]


def cases(*, is_right):
    """The kinds with each exporter that takes them, or with each that does not. dynamo takes seconds, so few are quick."""
    for name, of in KINDS.items():
        for exporter in EXPORTERS:
            if bool(getattr(of, exporter)) is not is_right:
                marks = [pytest.mark.slow] if exporter == "dynamo" and name not in QUICK else []
                yield pytest.param(name, exporter, marks=marks, id=f"{name}-{exporter}")


QUICK = ("traced_by_fx", "program_with_dynamic_rows", "compiled", "bound_method")


@pytest.mark.parametrize(("name", "exporter"), [*cases(is_right=True)])
def test_a_kind_that_the_exporter_takes_passes_and_its_wrong_twin_fails(name, exporter, tmp_path):
    recipe, opset = recipe_of_kind(name), EXPORTERS[exporter]
    result = run_one(recipe, opsets=opset, exporters=exporter)
    assert (rules(result), result.status) == ([], onnx_ci.Status.PASSED), [each.message for each in result.findings]
    remarks = remarks_of(result)
    assert bool(remarks) is bool(KINDS[name].remark)
    assert all(KINDS[name].remark in remark for remark in remarks)
    right = onnx_ci.export(recipe, opset=opset, exporter=exporter, path=tmp_path / "right.onnx")
    wrong = with_a_fault(onnx.load(right.path), KINDS[name].factor)
    judged = onnx_ci.verify(wrong.SerializeToString(), recipe, opset=opset, exporter=exporter, isolation="none")
    assert rules(judged) == ["numeric-drift"]


@pytest.mark.parametrize(("name", "exporter"), [*cases(is_right=False)])
def test_a_kind_that_the_exporter_does_not_take_is_told_in_words(name, exporter):
    result = run_one(recipe_of_kind(name), opsets=EXPORTERS[exporter], exporters=exporter)
    assert set(rules(result)) <= {"export-error", "unsupported-operator"}
    [message] = {each.message for each in result.findings if each.severity is onnx_ci.Severity.ERROR}
    assert getattr(KINDS[name], exporter) in message


def with_a_fault(model, factor):
    """The file with its output multiplied by a factor."""
    [output] = model.graph.output
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["right" if each == output.name else each for each in names]
    model.graph.initializer.append(helper.make_tensor("factor", output.type.tensor_type.elem_type, [], [factor]))
    model.graph.node.append(helper.make_node("Mul", ["right", "factor"], [output.name]))
    return model


@pytest.mark.slow
def test_modules_may_be_nested_as_deeply_as_python_allows(deep_calls):
    model = nn.Linear(4, 3)
    for _ in range(400):
        model = Outer(model)
    result = run_one(onnx_ci.recipe(name="deep")(lambda: (model, (example(),))))
    assert (rules(result), result.status) == ([], onnx_ci.Status.PASSED)


def test_modules_that_are_nested_more_deeply_are_refused():
    class Chain(nn.Module):
        def __init__(self, rest):
            super().__init__()
            self.linear, self.rest = nn.Linear(4, 4), rest

        def forward(self, x):
            return self.linear(x)

    model = None
    for _ in range(1500):
        model = Chain(model)
    message, remedy = refusal(lambda: (model, (example(),)))
    assert "Chain cannot list its modules and weights: RecursionError" in message
    assert "sys.setrecursionlimit" in remedy


def refusal(build):
    """The message and the remedy for a recipe that is refused."""
    result = run_one(onnx_ci.recipe(name="refused")(build))
    [error] = errors(result)
    assert error.rule == "recipe-error"
    return error.message, error.remedy


class Dense(nn.Module):
    def forward(self, x):
        return x.to_dense() * 2


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class ListsNothing(Net):
    def named_parameters(self, *args, **kwargs):
        raise RuntimeError("ask somebody else")


def on_meta():
    with torch.device("meta"):
        return Net()


REFUSED = {
    "function of inference mode": (
        lambda: (around_inference_mode(), (example(),)),
        "the model has weights of torch.inference_mode, which cannot be changed outside of it, and cannot be copied",
    ),
    "sparse input": (lambda: (Dense(), (example().to_sparse(),)), "the argument x is sparse (torch.sparse_coo)"),
    "nested input": (lambda: (Dense(), (torch.nested.nested_tensor([torch.ones(2)]),)), "the argument x is a nested tensor"),
    "quantized input": (
        lambda: (Dense(), (torch.quantize_per_tensor(example(), 0.1, 0, torch.quint8),)),
        "the argument x is quantized (torch.quint8)",
    ),
    "uint4 input": (
        lambda: (Dense(), (torch.ones(3, dtype=torch.uint8).view(torch.uint4),)),
        "the argument x has the data type torch.uint4, with which PyTorch cannot compute",
    ),
    "input on meta": (lambda: (Net(), (example().to("meta"),)), "the argument x is on the device meta"),
    "sparse output": (lambda: (Returns(torch.Tensor.to_sparse), (example(),)), "what the model returns is sparse"),
    "nested output": (
        lambda: (Returns(lambda x: {"a": torch.nested.as_nested_tensor([x[0], x[1]])}), (example(),)),
        "the output a is a nested tensor",
    ),
    "model on meta": (lambda: (on_meta(), (example(),)), "the model raised"),
    "lists nothing": (lambda: (ListsNothing(), (example(),)), "ListsNothing cannot list its modules and weights: RuntimeError"),
    "a class": (lambda: (Net, (example(),)), "not a torch.nn.Module but the class Net"),
    "weights": (lambda: (Net().state_dict(), (example(),)), "not a torch.nn.Module but OrderedDict"),
}


def around_inference_mode():
    with torch.inference_mode():
        net = Net()
    return lambda x: net(x)


@pytest.mark.parametrize(("build", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_compared_is_refused_in_words(build, said):
    message, remedy = refusal(build)
    assert said in message
    assert remedy


def test_a_model_on_meta_is_told_how_it_gets_values():
    _, remedy = refusal(lambda: (on_meta(), (example(),)))
    assert "model.to_empty(device='cpu')" in remedy


def test_the_same_model_each_time_is_refused_if_it_cannot_be_copied():
    net = Net()
    message, _ = refusal(lambda: ((lambda x: net(x)), (example(),)))
    assert message == "the recipe returns the same model every time, and it cannot be copied"


@pytest.mark.parametrize("kwargs", [{}, {"bias": torch.ones(3), "mask": None}], ids=["by position", "by name"])
def test_an_argument_may_be_none_and_axes_keep_their_names(kwargs):
    class Masked(Net):
        def forward(self, x, mask=None, bias=None):
            y = super().forward(x if mask is None else x * mask)
            return y if bias is None else y + bias

    args = (example(),) if kwargs else (example(), None, torch.ones(3))
    recipe = onnx_ci.recipe(name="masked", input_names=["x", "bias"], dynamic_axes={"x": {0: "rows"}})
    result = run_one(recipe(lambda: (Masked(), args, kwargs)), opsets="18", exporters="dynamo")
    assert (rules(result), result.status) == ([], onnx_ci.Status.PASSED), [each.message for each in result.findings]


def test_a_graph_module_needs_names_for_dynamic_axes():
    recipe = onnx_ci.recipe(name="net", input_names=["x"], dynamic_axes={"x": {0: "rows"}})
    result = run_one(recipe(lambda: (torch.fx.symbolic_trace(Net()), (example(),))))
    assert rules(result) == ["export-error"]
    assert any("declare them" in each.remedy for each in result.findings)


def test_a_function_keeps_the_names_of_its_parameters():
    def blend(image, weight, *, factor=1.0):
        return image * weight * factor

    recipe = onnx_ci.recipe(name="blend")(lambda: (functools.partial(blend, factor=2.0), (example(), example() + 3)))
    result = run_one(recipe)
    assert rules(result) == []
    error = refusal(lambda: (blend, (example(),)))[0]
    assert "(image, weight, *, factor=1.0)" in error


def test_a_fixed_tensor_is_a_buffer_of_the_adapter():
    class Biased(nn.Module):
        def forward(self, x, bias, pair):
            return x + bias + pair[0] * pair[1]

    def adapted():
        bias = torch.arange(4.0)
        return onnx_ci.adapt(Biased(), inputs="x", fixed={"bias": bias, "pair": (torch.full((4,), 2.0), 3)})

    model = adapted()
    assert [each.dtype for each in copy.deepcopy(model).double().buffers()] == [torch.float64, torch.float64]
    assert torch.equal(model(example()), example() + torch.arange(4.0) + 6)
    result = run_one(onnx_ci.recipe(name="biased", input_names=["x"])(lambda: (adapted(), (example(),))))
    assert (rules(result), [each.rule for each in result.findings]) == ([], [])


def test_a_model_may_scan():
    """torch's scan returns what it should only as compiled code (torch 2.13)."""

    class Sums(Net):
        def forward(self, x):
            from torch._higher_order_ops import scan

            def step(states, row):
                total, largest = states
                return (total + row, torch.maximum(largest, row)), total + largest

            (total, largest), rows = scan(step, (x[0].clone(), x[0].clone()), x)
            return super().forward(rows + total + largest)

    recipe = onnx_ci.recipe(name="net", input_names=["x"])(lambda: (Sums(), (example(),)))
    result = run_one(recipe, opsets=18, exporters="dynamo")
    assert (rules(result), result.status) == ([], onnx_ci.Status.PASSED)


def test_a_program_is_moved_with_the_devices_that_its_graph_names():
    class Shifted(Net):
        def forward(self, x):
            return super().forward(x) + torch.arange(3.0, device=x.device)

    program = torch.export.export(Shifted().eval(), (example(),))
    model, _ = module.as_model(program)
    moved = module.to_device(model, torch.device("meta"))
    assert {weight.device.type for weight in moved.parameters()} == {"meta"}
    assert moved(example().to("meta")).device.type == "meta"
    nodes = module.exportable(moved).graph.nodes
    assert {str(node.kwargs["device"]) for node in nodes if "device" in node.kwargs} == {"meta"}
    assert {node.meta["val"].device.type for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)} == {"meta"}


class Refusing(torch.Tensor):
    """A tensor of the project's own, with which no function of torch works."""

    error: Exception

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        raise cls.error


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize(
    ("error", "rule", "said"),
    [(RuntimeError("not a function"), "recipe-error", "not a function"), (MemoryError("no room"), "out-of-memory", "no room")],
)
def test_what_code_of_the_project_raises_is_a_finding_of_the_cell(exporter, error, rule, said):
    kind = type("OfProject", (Refusing,), {"error": error})

    @onnx_ci.recipe(name="refusing", input_names=["x"], output_names=["y"])
    def refusing():
        return nn.Identity(), (torch.ones(3).as_subclass(kind),)

    result = run_one(refusing, opsets="18", exporters=exporter)
    assert rules(result) == [rule]
    assert said in result.findings[0].message


def test_a_program_has_its_own_dynamic_axes():
    class Scaled(Net):
        def forward(self, batch, *, scale):
            return super().forward(batch["x"]) * scale

    def net():
        rows = {0: torch.export.Dim.DYNAMIC}
        args, kwargs = ({"x": example()},), {"scale": torch.ones(len(example()), 1)}
        shapes = {"batch": {"x": rows}, "scale": rows}
        return torch.export.export(Scaled().eval(), args, kwargs, dynamic_shapes=shapes), args, kwargs

    result = run_one(onnx_ci.recipe(net), opsets=18, exporters="dynamo")
    assert (rules(result), result.status) == ([], onnx_ci.Status.PASSED)
    assert any("=" in output.probe for output in result.outputs)  # other sizes were tried
