"""What a verdict depends on: each thing, changed alone, shows in its own part, and nothing else shows anywhere."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

import onnx_ci
from onnx_ci.cache import import_closure as sources
from onnx_ci.cache.fingerprint import NotCacheableError, fingerprint
from onnx_ci.collection.discovery import import_file
from onnx_ci.collection.recipe import Recipe
from onnx_ci.collection.recipe import recipe as declare
from onnx_ci.config.settings import Settings, load_settings
from onnx_ci.environment import libraries
from onnx_ci.environment import versions as environment
from onnx_ci.matrix.plan import plan_cell
from onnx_ci.recipes.models import alexnet, lstm, resnet
from onnx_ci.results.records import Cell
from onnx_ci.stages.prepare.live_model import Call, build

NET = """
    import torch
    import onnx_ci
    from helpers import clip

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4))
            self.register_buffer("offset", torch.randn(4))
            self.power = 2

        def forward(self, x):
            return clip(x * self.weight + self.offset) ** self.power

    @onnx_ci.recipe(input_names=["x"], dynamic_axes={"x": {0: "batch"}})
    def net():
        return Net(), (torch.randn(3, 4),)
"""
HELPERS = """
    import torch
    LARGEST = 1.0

    def clip(x):
        return torch.clamp(x, max=LARGEST)
"""


CELL = Cell(source="onnx_recipes.py", recipe="net", exporter="torchscript", opset=13, device="cpu")


@pytest.fixture
def settings(project) -> Settings:
    return load_settings(project.root)


@pytest.fixture
def own_modules(project) -> Iterator[None]:
    """Modules that a test imports from its project are gone after it."""
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(project.root)):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def recipe(project, own_modules, monkeypatch) -> Recipe:
    """A recipe whose files count as written before this process began."""
    monkeypatch.setattr(sources, "process_started", lambda: float("inf"))
    project.write("helpers.py", HELPERS)
    return import_file(project.write("onnx_recipes.py", NET)).net


@pytest.fixture
def look(settings) -> Callable[..., Mapping[str, str]]:
    def look(recipe: Recipe, call: Call | None = None, settings: Settings = settings) -> Mapping[str, str]:
        return fingerprint(plan_cell(CELL, recipe, settings), call or build(recipe, None)).parts

    return look


def differ(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if one[name] != other[name]}


def test_nothing_changed_gives_the_same_parts(recipe, look):
    assert look(recipe) == look(recipe)


def test_the_call_is_left_as_it_was(recipe, look):
    class Counting(torch.nn.BatchNorm1d):
        runs = 0

        def forward(self, x):
            self.runs += 1
            x.zero_()
            return super().forward(x)

    call = Call(model=Counting(4), args=(torch.ones(3, 4),), kwargs={})
    before = torch.get_rng_state()
    look(recipe, call)
    assert call.model.runs == 0
    assert call.model.num_batches_tracked == 0
    assert call.args[0].sum() == 12
    assert torch.equal(torch.get_rng_state(), before)


def test_cells_differ_in_exporter_opset_and_device(recipe, settings):
    made = fingerprint(plan_cell(CELL, recipe, settings), build(recipe, None))
    keys = [made.for_cell(dataclasses.replace(CELL, **change)) for change in ({}, {"opset": 14}, {"exporter": "dynamo"})]
    assert len({tuple(sorted(key.items())) for key in keys}) == 3
    assert all(isinstance(text, str) for text in keys[0].values())


def _ulp(call: Call) -> None:
    value = call.model.weight.data
    value[2] = torch.nextafter(value[2], torch.tensor(torch.inf))


def _offset(call: Call) -> None:
    call.model.offset[0] += 1


def _frozen(call: Call) -> None:
    call.model.weight.requires_grad_(False)


def _half(call: Call) -> None:
    call.model.offset = call.model.offset.half()


def _power(call: Call) -> None:
    call.model.power = 3


def _training(call: Call) -> None:
    call.model.train()


def _unused(call: Call) -> None:
    call.model.options = {"a": [1, {2.5, "b"}], "c": torch.float16}


def _hook(call: Call) -> None:
    call.model.register_forward_hook(lambda module, args, made: made)


def _value(call: Call) -> None:
    call.args[0][0, 0] += 1


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (_ulp, {"weights"}),
        (_offset, {"weights"}),
        (_frozen, {"weights"}),
        (_half, {"weights"}),
        (_power, {"model", "program"}),
        (_training, {"model"}),
        (_unused, {"model"}),
        (_value, {"arguments"}),
        (_hook, {"model", "code", "globals"}),
    ],
)
def test_a_change_of_the_model_or_its_arguments_shows_in_its_part(recipe, look, change, parts):
    call = build(recipe, None)
    before = look(recipe, call)
    change(call)
    assert differ(before, look(recipe, call)) == parts


def test_weights_that_are_one_are_told_from_weights_that_are_equal(recipe, look):
    def of(tied: bool) -> Mapping[str, str]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        torch.nn.init.ones_(model[0].weight)
        model[1].weight = model[0].weight if tied else torch.nn.Parameter(model[0].weight.detach().clone())
        for layer in model:
            torch.nn.init.zeros_(layer.bias)
        return look(recipe, Call(model=model, args=(torch.ones(3, 4),), kwargs={}))

    assert of(True) == of(True)
    assert "weights" in differ(of(True), of(False))


def test_hooks_elsewhere_in_the_process_change_nothing(recipe, look):
    def hooked() -> Mapping[str, str]:
        call = build(recipe, None)
        _hook(call)
        return look(recipe, call)

    before = hooked()
    torch.nn.Identity().register_forward_hook(print)
    assert hooked() == before


@pytest.mark.parametrize(
    "change",
    [
        {"dynamic_axes": {"x": {0: "rows"}}},
        {"dynamic_axes": {}},
        {"output_names": ("y",)},
        {"seed": 1},
        {"max_drift": 64.0},
        {"allow": ("vacuous",)},
        {"dynamic_sizes": {"batch": (2,)}},
        {"dynamic_sizes": {"batch": range(8, 65, 8)}},
        {"dynamic_sizes": {"batch": onnx_ci.multiple_of(8)}},
        {"feedback": {"y": "x"}},
        {"steps": 4},
        {"export_options": {"do_constant_folding": False}},
        {"export_options": {"custom_translation_table": {torch.ops.aten.clamp.default: lambda x: x}}},
    ],
)
def test_a_change_of_the_declaration_shows_there(recipe, look, change):
    call = build(recipe, None)
    found = differ(look(recipe, call), look(dataclasses.replace(recipe, **change), call))
    with_code = {"code", "globals"} if "custom_translation_table" in str(change) else set()
    with_limit = {"settings"} if "max_drift" in change else set()  # which is the planned cell's, too
    assert found == {"declaration", *with_code, *with_limit}


def test_the_order_of_axes_does_not_matter(recipe, look):
    one = dataclasses.replace(recipe, dynamic_axes={"x": {0: "a", 1: "b"}, "y": {0: "a"}})
    other = dataclasses.replace(recipe, dynamic_axes={"y": {0: "a"}, "x": {1: "b", 0: "a"}})
    assert look(one) == look(other)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"max_drift": 8}, {"settings"}),
        ({"skip_stages": "side-effects"}, {"settings"}),
        ({"allow": "untaken-branch"}, {"settings"}),  # then no inputs are sought for it
        ({"allow": "vacuous"}, set()),
        ({"weights": "net=DEFAULT"}, {"settings"}),
        ({"weights": "other=DEFAULT"}, set()),
        (
            {
                "report": "out.json",
                "artifacts": "out",
                "opsets": "9",
                "select": "n*",
                "devices": "cuda",
                "require_devices": True,
            },
            set(),
        ),
    ],
)
def test_only_settings_that_can_change_a_verdict_matter(recipe, look, settings, flags, parts):
    assert differ(look(recipe), look(recipe, settings=load_settings(settings.root, flags=flags))) == parts


def test_the_code_of_what_is_imported_matters_and_no_other(recipe, look, project):
    before = look(recipe)
    project.write("others.py", "x = 1")
    assert look(recipe) == before
    project.write("helpers.py", HELPERS, "# a word more")
    assert differ(before, look(recipe)) == {"code"}


def test_the_recipes_own_file_matters(recipe, look, project):
    before = look(recipe)
    project.write("onnx_recipes.py", NET, "# a word more")
    assert differ(before, look(recipe)) == {"code"}


def test_a_module_of_the_same_name_in_another_folder_does_not_take_its_place(look, project, own_modules, monkeypatch):
    monkeypatch.setattr(sources, "process_started", lambda: float("inf"))
    monkeypatch.setitem(sys.modules, "onnx_recipes", import_file(project.write("other/onnx_recipes.py", "x = 1")))
    project.write("m/helpers.py", HELPERS)
    recipe = import_file(project.write("m/onnx_recipes.py", NET, "import onnx_recipes")).net
    before = look(recipe)
    for changed in ("m/onnx_recipes.py", "other/onnx_recipes.py"):
        path = project.root / changed
        text = path.read_text()
        path.write_text(f"{text}\n# a word more")
        assert differ(before, look(recipe)) == {"code"}
        path.write_text(text)


def test_imports_are_followed_through_packages_functions_and_cycles(project, own_modules, look, monkeypatch):
    monkeypatch.setattr(sources, "process_started", lambda: float("inf"))
    files = {
        "nets/__init__.py": "from .first import *",
        "nets/first.py": "import nets.inner.second as second",
        "nets/inner/__init__.py": "",
        "nets/inner/second.py": "def act(x):\n    from .. import late\n    return late.act(x)",
        "nets/late.py": "import nets.first\n\ndef act(x):\n    try:\n        import absent_for_now\n    except ImportError:\n        pass\n    return x.relu()",
        "aside.py": "",
    }  # fmt: skip
    for name, text in files.items():
        project.write(name, text)
    path = project.write(
        "onnx_recipes.py",
        """
        import torch
        import onnx_ci
        import nets

        class Net(torch.nn.Module):
            def forward(self, x):
                return nets.second.act(x)

        @onnx_ci.recipe
        def net():
            return Net(), (torch.ones(2),)
        """,
    )
    recipe = import_file(path).net
    before = look(recipe)
    for name, text in files.items():
        project.write(name, text + "\n# more")
        assert differ(before, look(recipe)) == (set() if name == "aside.py" else {"code"}), name
        project.write(name, text)
    assert look(recipe) == before
    project.write("absent_for_now.py", "")
    assert "code" in differ(before, look(recipe))


def test_a_global_that_was_set_since_the_import_matters(recipe, look, monkeypatch):
    before = look(recipe)
    monkeypatch.setattr(sys.modules["helpers"], "LARGEST", 2.0)
    assert differ(before, look(recipe)) == {"globals", "program"}


HOLDS = """
    import collections, contextlib, contextvars, dataclasses, enum, functools, json, logging, math, re, sys, threading, typing
    from pathlib import Path
    import numpy
    import torch
    import onnx_ci

    VALUE = json.loads(Path(__file__).with_name("value.json").read_text())

    @dataclasses.dataclass
    class Config:
        limit: int

    class Point(typing.NamedTuple):
        x: int

    def made(limit):
        return lambda x: x + limit

    def context(function):
        @contextlib.contextmanager
        def around(limit=VALUE):
            yield limit
        return around

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x
"""
HELD = [
    "CONFIG = Config(VALUE)",
    "CONFIG = [[[[[[VALUE]]]]]]",
    "CONFIG = numpy.full((2,), VALUE)",
    "CONFIG = torch.full((2,), VALUE)",
    "CONFIG = torch.nn.Linear(2, VALUE)",
    "CONFIG = collections.OrderedDict(limit=VALUE)",
    "CONFIG = Point(VALUE)",
    "CONFIG = Path('/there') / str(VALUE)",
    "CONFIG = functools.partial(max, VALUE)",
    "CONFIG = re.compile('a' * VALUE)",
    "CONFIG = made(VALUE)",
    "CONFIG = contextvars.ContextVar('limit', default=VALUE)",
    "CONFIG = enum.Enum('Limits', {'LIMIT': VALUE})",
    "CONFIG = [json, re][VALUE - 1]",
    "__CONFIG = VALUE",
    "def CONFIG(x, limit=VALUE): pass",
    "@context\ndef CONFIG(): pass",
    "class CONFIG:\n    limit = VALUE",
    "class CONFIG(torch.nn.Module):\n    def forward(self, x, limit=VALUE): pass",
]
"""Ways in which a module holds what it read."""
USES = """
    class Net(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.shape[0] > 1000 and (CONFIG, __CONFIG, json) else x

    @onnx_ci.recipe
    def net():
        return Net(), (torch.ones(2),)
"""


@pytest.fixture
def holding(project, own_modules, monkeypatch) -> Callable[..., Recipe]:
    """A recipe in a module that holds something, newly imported."""
    monkeypatch.setattr(sources, "process_started", lambda: float("inf"))
    project.write("value.json", "1")

    def holding(*lines: str, uses: str = USES) -> Recipe:
        path = project.write("onnx_recipes.py", HOLDS, *lines, "del VALUE", uses)
        for name in [name for name in sys.modules if getattr(sys.modules[name], "__file__", None) == str(path)]:
            del sys.modules[name]
        return import_file(path).net

    return holding


@pytest.mark.parametrize("line", HELD)
def test_what_a_module_read_at_its_import_matters(holding, look, project, line):
    before, again = look(holding(line)), look(holding(line))
    assert before == again
    project.write("value.json", "2")
    assert "globals" in differ(before, look(holding(line)))


UNREADABLE = ["CONFIG = iter([VALUE])", "CONFIG = memoryview(b'a')", "CONFIG = [Config(iter([VALUE]))]"]


@pytest.mark.parametrize("line", [*UNREADABLE, "class CONFIG:\n    limit = iter([VALUE])\n    def f(self): return self.limit"])
def test_what_cannot_be_read_is_refused_where_code_refers_to_it(holding, look, line):
    with pytest.raises(NotCacheableError, match=r"onnx_recipes\.CONFIG.*cannot be read"):
        look(holding(line))


def test_a_name_in_a_string_is_a_reference(holding, look):
    with pytest.raises(NotCacheableError, match=r"onnx_recipes\.CONFIG"):
        look(holding(UNREADABLE[0], uses=USES.replace("(CONFIG, __CONFIG, json)", "globals()['CONFIG']")))


@pytest.mark.parametrize("line", [*UNREADABLE, "class CONFIG:\n    nobodys = iter([VALUE])"])
def test_what_cannot_be_read_and_no_code_refers_to_is_left_out(holding, look, line):
    uses = USES.replace("CONFIG", "VALUE")
    assert look(holding(line, uses=uses)) == look(holding(line, uses=uses))


def test_what_is_no_data_is_no_hindrance(holding, look):
    lines = (
        "CONFIG = [logging.getLogger('a'), logging.StreamHandler(), torch.library.Library('onnx_ci_tests_no_data', 'FRAGMENT')]",
        "CONFIG += [typing.TypeVar('T'), typing.Optional[int], typing.Callable[[int], 'Config'], list[int], int | None]",
        "CONFIG += [torch._C._jit_pass_lint, torch._C.Graph, math.sin, threading.Lock(), threading.RLock(), threading.Event(), object(), Backward, json, print, numpy.float32]",
        "from onnxscript import opset18 as __CONFIG",
        "import __future__; annotations = __future__.annotations",
    )
    used = USES.replace("CONFIG, ", "CONFIG, annotations, Backward, ")
    assert look(holding(*lines, uses=used)) == look(holding(*lines, uses=used))


def test_code_that_comes_with_a_value_matters(holding, look, project, monkeypatch):
    monkeypatch.syspath_prepend(project.root)
    project.write("helpers.py", HELPERS)
    project.write("hidden.py", "class Limit:\n    limit = 1")
    line = "sys.path.insert(0, str(Path(__file__).parent)); CONFIG = __builtins__['__imp' + 'ort__']('hidden').Limit()"
    before = look(holding(line))
    project.write("hidden.py", "class Limit:\n    limit = 1\n# more")
    assert "code" in differ(before, look(holding(line)))


@pytest.mark.parametrize("recipe", [alexnet.alexnet, lstm.lstm, resnet.resnet18], ids=lambda each: each.name)
def test_the_recipes_of_onnx_ci_can_be_kept(look, monkeypatch, recipe):
    monkeypatch.setattr(sources, "process_started", lambda: float("inf"))
    assert look(recipe) == look(recipe)


def test_an_installed_class_with_a_function_of_somebody_else_matters(recipe, look, monkeypatch):
    call = Call(model=torch.nn.ReLU(), args=(torch.ones(2),), kwargs={})
    before = look(recipe, call)
    monkeypatch.setattr(torch.nn.ReLU, "forward", lambda self, x: torch.relu(x))
    assert "model" in differ(before, look(recipe, call))


def test_a_file_that_changed_since_the_process_began_is_refused(project, own_modules, look):
    project.write("helpers.py", HELPERS)
    recipe = import_file(project.write("onnx_recipes.py", NET)).net
    with pytest.raises(NotCacheableError, match="changed after this process started"):
        look(recipe)


def function_from(text: str, **names: object) -> Callable[..., object]:
    """A function that lives in no file."""
    exec(text, names)
    return names["made"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def made(): return Net(), (torch.full((3, 4), 1 + 1),)", {}),
        ("def made(size=4): return Net(), (torch.full((3, size), 1),)", {}),
        ("def made(): return Net(), (torch.full((3, size), 1),)", {"size": 4}),
        ("def outer(size):\n    return lambda: (Net(), (torch.full((3, size), 1),))\nmade = outer(4)", {}),
    ],
)
def test_a_recipe_that_lives_in_no_file_is_known_by_its_bytecode(recipe, look, text, names):
    call = build(recipe, None)
    known = {"torch": torch, "Net": type(call.model)}
    one, again = (look(declare(name="made")(function_from(text, **known, **names)), call) for _ in range(2))
    assert one == again
    text, names = text.replace("4)", "5)").replace("=4", "=5"), dict.fromkeys(names, 5)
    other = look(declare(name="made")(function_from(text.replace("(3,", "(2,"), **known, **names)), call)
    assert differ(one, other) == {"code"}


def test_a_custom_symbolic_function_matters_with_its_body_and_what_it_closes_over(recipe, look):
    def registered(operator: str, factor: int) -> Mapping[str, str]:
        text = f"def outer(factor):\n    return lambda g, x: g.op({operator!r}, x, factor_i=factor)\nmade = outer({factor})"
        torch.onnx.register_custom_op_symbolic("mine::op", function_from(text), 13)
        try:
            return look(recipe)
        finally:
            torch.onnx.unregister_custom_op_symbolic("mine::op", 13)

    without = look(recipe)
    first = registered("Relu", 1)
    assert registered("Relu", 1) == first
    assert (
        differ(without, first) == differ(first, registered("Relu", 2)) == differ(first, registered("Tanh", 1)) == {"operators"}
    )
    assert look(recipe) == without


def test_a_file_that_teaches_operators_matters_though_no_recipe_imports_it(recipe, look, project):
    text = "import torch.library\n\nOPERATOR = 'onnx_ci_tests::twice'"
    before = look(recipe)
    import_file(project.write("conftest.py", text))
    taught = look(recipe)
    assert differ(before, taught) == {"operators"}
    project.write("conftest.py", text, "# more")
    assert differ(taught, look(recipe)) == {"operators"}


def test_versions_matter_and_the_build_of_the_kernel_does_not(recipe, look, monkeypatch):
    before, versions = look(recipe), environment.versions()
    monkeypatch.setattr(environment, "versions", lambda: {**versions, "platform": "another kernel"})
    assert look(recipe) == before
    monkeypatch.setattr(environment, "versions", lambda: {**versions, "onnxruntime": "0.0.1"})
    assert differ(before, look(recipe)) == {"versions"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("flags\t\t: fpu avx2 avx512_vnni amx_int8 avx512f", "amx_int8 avx512_vnni"),
        ("Features\t: fp asimd bf16 i8mm asimddp", "asimddp bf16 i8mm"),
        ("flags\t\t: fpu", ""),
    ],
)
def test_what_the_processor_can_do_matters(tmp_path, line, told):
    from onnx_ci.cache import installed

    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\n{line} sve\n")
    assert installed.processor_features(file) == {"processor features": told}
    assert installed.processor_features(tmp_path / "none") == {}
    if Path("/proc/cpuinfo").exists():
        assert "processor features" in installed.versions()


@pytest.fixture
def checkout(project, monkeypatch) -> Iterator[Path]:
    """The folder of a library that is not installed, and that this process has not imported so far."""
    from onnx_ci.cache import installed

    for module in (libraries, installed):
        monkeypatch.setattr(module, "LIBRARIES", libraries.LIBRARIES | {"lib_of_tests"})
    monkeypatch.syspath_prepend(project.root)
    project.write("lib_of_tests/__init__.py", "")
    project.write("lib_of_tests/inner/ops.py", "x = 1")
    monkeypatch.setattr(installed, "process_started", lambda: float("inf"))
    installed.checkout_digest.cache_clear()
    yield project.root / "lib_of_tests"
    sys.modules.pop("lib_of_tests", None)
    installed.checkout_digest.cache_clear()


@pytest.mark.parametrize("loaded", [False, True])
def test_a_library_that_is_not_installed_counts_by_its_files(recipe, look, checkout, loaded):
    from onnx_ci.cache import installed

    if loaded:
        exec("import lib_of_tests")
    before = look(recipe)
    (checkout / "inner" / "ops.py").write_text("x = 2")
    installed.checkout_digest.cache_clear()
    edited = look(recipe)
    assert differ(before, edited) == {"versions"}
    (checkout / "kernels.so").write_bytes(b"machine code")
    installed.checkout_digest.cache_clear()
    assert differ(edited, look(recipe)) == {"versions"}


def test_a_library_that_changed_since_the_process_began_is_refused(recipe, look, checkout, monkeypatch):
    from onnx_ci.cache import installed

    monkeypatch.setattr(installed, "process_started", lambda: 1.0)
    with pytest.raises(NotCacheableError, match=r"lib_of_tests.* changed after this process started"):
        installed.checkout_digest("lib_of_tests", str(checkout / "__init__.py"))


def test_torch_that_is_not_installed_is_not_read(checkout):
    from onnx_ci.cache import installed

    def digest() -> str:
        installed.checkout_digest.cache_clear()
        return installed.checkout_digest("torch", str(checkout / "__init__.py"))

    file = checkout / "inner" / "ops.py"
    before, status = digest(), file.stat()
    file.write_text("x = 3")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digest() == before
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert digest() != before


FORKS = """
import os, sys, time
time.sleep(0.2)
import onnx_ci.cache.import_closure
known = onnx_ci.cache.import_closure.process_started.cache_info().currsize
child = os.fork()
if not child:
    os._exit(onnx_ci.cache.import_closure.process_started.cache_info().currsize + 10 * known)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
reader, writer = os.pipe()
child = os.fork()
if not child:
    os.write(writer, repr(onnx_ci.cache.import_closure.process_started()).encode())
    os._exit(0)
os.waitpid(child, 0)
print(float(os.read(reader, 100)) == onnx_ci.cache.import_closure.process_started())
"""


def test_a_fork_knows_when_the_process_began_that_imported_the_recipes(project):
    paths = os.pathsep.join([str(Path(onnx_ci.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", FORKS], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["11", "True"], ran.stderr


def test_onnx_cis_own_files_matter(recipe, look, monkeypatch):
    from onnx_ci.cache import installed

    before = look(recipe)
    own = installed.own_files()
    assert {"engine/engine.py", "report/text.py"} <= own.keys()
    monkeypatch.setattr(installed, "own_files", lambda: {**own, "engine.py": "0"})
    assert differ(before, look(recipe)) == {"onnx-ci"}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ORT_SOMETHING", {"flags"}),
        ("PYTORCH_JIT_X", {"flags"}),
        ("TORCH_HOME", set()),
        ("ONNX_CI_MAX_DRIFT", set()),
        ("OTHER", set()),
    ],
)
def test_variables_that_torch_and_the_runtimes_read_matter(recipe, look, monkeypatch, name, parts):
    before = look(recipe)
    monkeypatch.setenv(name, "1")
    assert differ(before, look(recipe)) == parts


def test_switches_of_torch_matter(recipe, look, monkeypatch):
    call = build(recipe, None)
    before = look(recipe, call)
    torch.set_default_dtype(torch.float64)
    try:
        assert differ(before, look(recipe, call)) == {"flags"}
    finally:
        torch.set_default_dtype(torch.float32)
    assert look(recipe, call) == before


def test_what_cannot_be_read_is_refused_with_its_place(recipe, look, project):
    call = build(recipe, None)
    with (
        (project.root / "helpers.py").open() as call.model.source,
        pytest.raises(NotCacheableError, match=r"the model\.source"),
    ):
        look(recipe, call)
    call = build(recipe, None)
    call.model.numbers = [iter([1, 2])]
    with pytest.raises(NotCacheableError, match=r"the model\.numbers\[0\] is a builtins\.list_iterator"):
        look(recipe, call)
    call = build(recipe, None)
    call.model.sparse = torch.eye(3).to_sparse()
    with pytest.raises(NotCacheableError, match=r"the model\.sparse"):
        look(recipe, call)
    call, deep = build(recipe, None), []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotCacheableError, match="too deeply"):
        look(recipe, Call(model=call.model, args=(deep,), kwargs={}))
    while deep:
        deep = deep[0]


class Config:
    """An object of Python's own, with a cycle, slots, sets and a lock."""

    __slots__ = ("__dict__", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.own = self
        self.names = {"one", "two", "three"}
        self.lock = threading.Lock()


def test_objects_are_read_in_full(recipe, look):
    def of(config: Config) -> Mapping[str, str]:
        call = build(recipe, None)
        call.model.config = config
        return look(recipe, call)

    changed = Config(1)
    changed.names = {"one", "two"}
    assert of(Config(1)) == of(Config(1))
    assert differ(of(Config(1)), of(Config(2))) == differ(of(Config(1)), of(changed)) == {"model"}


class Hashed:
    """Remembers its own hash to notice changes, as the GenerationConfig of transformers does."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.hash_before = hash(self)

    def __hash__(self) -> int:
        return int(os.environ["SALT"]) * 2**40 + self.length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self.length == other.length


def test_the_hash_of_an_object_which_each_process_computes_anew_is_left_out(recipe, look, monkeypatch):
    def of(config: Hashed) -> Mapping[str, str]:
        call = build(recipe, None)
        call.model.config = config
        return look(recipe, call)

    monkeypatch.setenv("SALT", "1")
    one, longer = of(Hashed(20)), of(Hashed(21))
    changed = Hashed(21)
    changed.length = 20
    after_the_change = of(changed)
    monkeypatch.setenv("SALT", "2")
    assert of(Hashed(20)) == one
    assert differ(one, longer) == differ(one, after_the_change) == {"model"}


class Frozen(collections.OrderedDict[str, object]):
    """As the configuration of diffusers' models, which has its items as attributes, too."""

    __module__ = "diffusers.configuration_utils"

    def __init__(self, **items: object) -> None:
        super().__init__(items)
        vars(self).update(items)


def test_a_list_that_a_library_makes_from_a_set_counts_without_its_order(recipe, look):
    def of(**items: object) -> Mapping[str, str]:
        call = build(recipe, None)
        call.model.config = Frozen(**items)
        return look(recipe, call)

    one = of(_use_default_values=["size", "channels"], layers=["first", "second"])
    assert of(_use_default_values=["channels", "size"], layers=["first", "second"]) == one
    assert differ(of(_use_default_values=["size"], layers=["first", "second"]), one) == {"model"}
    assert differ(of(_use_default_values=["size", "channels"], layers=["second", "first"]), one) == {"model"}


class Negated(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x


class Raised(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_a_model_that_torch_scripted_is_known_by_what_torch_saves(recipe, look):
    def of(model: torch.nn.Module) -> Mapping[str, str]:
        return look(recipe, Call(model=torch.jit.script(model), args=(torch.ones(2),), kwargs={}))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit says that it is deprecated
        assert of(Negated()) == of(Negated())
        assert "model" in differ(of(Negated()), of(Raised()))


def test_a_model_that_cannot_be_copied_is_built_again_and_never_run_itself(recipe, look):
    call = build(recipe, None)
    scale = torch.ones(4)
    call.model.closure = lambda x: x * scale  # a copy would go on using the same tensor
    assert look(recipe, call) == look(recipe, call)
    with pytest.raises(NotCacheableError, match="the same model every time"):
        look(dataclasses.replace(recipe, function=lambda: (call.model, call.args)), call)


def test_a_graph_of_torch_fx_is_known_by_its_code(recipe, look):
    def of(model: torch.nn.Module) -> Mapping[str, str]:
        return look(recipe, Call(model=torch.fx.symbolic_trace(model), args=(torch.ones(2),), kwargs={}))

    assert of(Negated()) == of(Negated())
    assert "model" in differ(of(Negated()), of(Raised()))


SHOW = """
import json, sys
from pathlib import Path
from onnx_ci.stages.prepare.live_model import build
from onnx_ci.config.settings import load_settings
from onnx_ci.collection.discovery import import_file
from onnx_ci.cache.fingerprint import fingerprint
from onnx_ci.matrix.plan import plan_cell
from onnx_ci.results.records import Cell
recipe = import_file(Path("onnx_recipes.py").absolute()).net
cell = Cell(source="onnx_recipes.py", recipe="net", exporter="torchscript", opset=13, device="cpu")
planned = plan_cell(cell, recipe, load_settings(Path.cwd()))
print(json.dumps(dict(fingerprint(planned, build(recipe, None)).parts)))
"""


@pytest.mark.slow
def test_fresh_processes_in_other_folders_with_other_hashes_agree(project):
    paths = os.pathsep.join([str(Path(onnx_ci.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    running = []
    for seed in ("1", "2"):
        project.write(f"at{seed}/helpers.py", HELPERS)
        project.write(
            f"at{seed}/onnx_recipes.py", NET.replace("self.power = 2", 'self.power = 2; self.names = {"a", "b", "c"}')
        )
        variables = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        started = subprocess.Popen(
            [sys.executable, "-c", SHOW], cwd=project.root / f"at{seed}", env=variables, stdout=subprocess.PIPE, text=True
        )
        running.append(started)
    one, other = (json.loads(each.communicate(timeout=120)[0]) for each in running)
    assert one == other
    assert len(one) == 14


def test_whether_building_the_model_loads_weights_matters(recipe, look):
    call = build(recipe, None)
    assert differ(look(recipe, call), look(recipe, dataclasses.replace(call, loaded_with=("torch.load",)))) == {"loaded with"}
