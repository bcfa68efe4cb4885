"""``onnx-ci init --observe``: the recipes are those of the models that a program calls."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import onnx
import pytest

from onnx_ci.tools.observe.observe import observed_models, recipes_of

PASSED, FAILED, USAGE = 0, 1, 2
RANGE = 'torch.export.Dim("rows", min=2, max=64)'

NETS = """
    import dataclasses

    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(width, width)

        def forward(self, x):
            return x + self.layer(x).relu()

    class Base(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.head = nn.Linear(4, classes)

    class Scores(Base):
        def __init__(self, classes=5, *, scale: float = 1.5):
            super().__init__(classes)
            self.block, self.scale = Block(4), scale

        def forward(self, features, mask=None, scaled=False, power=1.0):
            made = self.head(self.block(features)) ** power
            made = made * mask[..., None] if mask is not None else made
            return made * self.scale if scaled else made

    class Plain(nn.Linear):
        pass

    class Usual(Scores):
        pass

    class Echo(Plain):
        def forward(self, output):
            return super().forward(output)

    class Ranged(Plain):
        pass

    class Compiled(Plain):
        pass

    class Parallel(Plain):
        pass

    class Unbiased(Plain):
        pass

    class Whole(nn.Module):
        def __init__(self, block, head, dtype=torch.float32):
            super().__init__()
            self.block, self.head = block, head(4, 2, dtype=dtype)

        def forward(self, x):
            return self.head(self.block(x))

    class Pair(Base):
        def forward(self, both, table):
            return self.head(both[0] + both[1]) + table["bias"]

    @dataclasses.dataclass
    class Config:
        classes: int = 3
        widths: tuple = (4, 8)

    class Options:
        def __init__(self, classes):
            self.classes = classes

    class Keywords(Base):
        def __init__(self, **options):
            super().__init__(options["classes"])

        def forward(self, x):
            return self.head(x)

    class Configured(Base):
        def __init__(self, options):
            super().__init__(options.classes)

        def forward(self, x):
            return self.head(x)
"""
MAIN = """import torch
from nets import *

if __name__ == "__main__":
"""


def write(project, lines, head=MAIN, name="serve.py"):
    (project.root / name).write_text(head + "".join(f"    {line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def recipes(project):
    """The recipes for what a program does with the networks, and what it prints."""
    project.write("nets.py", NETS)

    def recipes(*lines, head=MAIN):
        write(project, lines, head)
        done = project.command("onnx_ci", "init", "--no-github", "--observe", "python serve.py")
        assert done.returncode == PASSED, done.stdout + done.stderr
        return (project.root / "onnx_recipes.py").read_text(encoding="utf-8"), done

    return recipes


def test_the_recipe_builds_and_calls_the_model_as_the_program_does(project, recipes):
    text, done = recipes(
        "scores, loss = Scores(7, scale=2.0).eval(), torch.nn.MSELoss()",
        "for batch, length in ((1, 5), (2, 6), (3, 5)):",
        "    features, mask = torch.randn(batch, length, 4), torch.ones(batch, length)",
        "    loss(scores(features, mask, scaled=True), torch.zeros(batch, length, 7))",
        "print('served')",
    )
    assert "served\n" in done.stdout
    assert "wrote onnx_recipes.py: recipes for Scores\n" in done.stdout
    assert text == (
        '"""The models that must export to ONNX, as the program called them. Verified by `onnx-ci run`."""\n\n'
        "import onnx_ci\nimport torch\n\n\n"
        "@onnx_ci.recipe(\n"
        '    input_names=["features", "mask"],\n'
        '    output_names=["output"],\n'
        "    # The sizes that differed between 3 calls. Declare what else may vary, too.\n"
        "    # Axes whose sizes were equal in each call have one name.\n"
        '    dynamic_axes={"features": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}},\n'
        ")\n"
        "def scores():\n"
        "    from nets import Scores\n\n"
        "    # serve.py, line 5: scores, loss = Scores(7, scale=2.0).eval(), torch.nn.MSELoss()\n"
        "    model = Scores(classes=7, scale=2.0)\n"
        '    model = onnx_ci.adapt(model, inputs=["features", "mask"], fixed={"scaled": True, "power": 1.0})\n'
        "    return model, (torch.randn(2, 6, 4), torch.ones(2, 6))\n"
    )
    done = project.command("onnx_ci", "run", "--opsets=17")
    assert done.returncode == PASSED, done.stdout


def test_the_recipe_of_a_model_whose_weights_are_loaded_can_take_weights(project, recipes):
    text, _ = recipes(
        "made = Scores(7)",
        "torch.save({'ema': made.state_dict()}, 'all.pt')",
        "torch.save(made.state_dict(), 'scores.pt')",
        "scores = Scores(7).eval()",
        "scores.load_state_dict(torch.load('all.pt')['ema'])",
        "for batch in (2, 3):",
        "    scores(torch.randn(batch, 6, 4))",
    )
    assert "def scores(weights=None):\n" in text
    assert "    if weights is not None:  # serve.py, line 9: scores.load_state_dict(torch.load('all.pt')['ema'])\n" in text
    assert '        model.load_state_dict(torch.load(weights, map_location="cpu"))\n' in text
    for weights, code in (("scores=scores.pt", PASSED), ("scores=all.pt", FAILED)):
        done = project.command("onnx_ci", "run", "--opsets=17", f"--weights={weights}")
        assert done.returncode == code, done.stdout


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        (
            [
                'dynamo=False, input_names=["rows", "kept"], output_names=["scores"], opset_version=13,',
                'dynamic_axes={"rows": {0: "batch", 1: "n"}, "kept": [0, 1], "scores": {0: "batch"}}, do_constant_folding=False,',
            ],
            [
                'input_names=["rows", "kept"],',
                'output_names=["scores"],',
                'dynamic_axes={"rows": {0: "batch", 1: "n"}, "kept": [0, 1], "scores": {0: "batch"}},',
                "do_constant_folding=False,",
                'exporter="torchscript",',
                "opsets=13,",
            ],
        ),
        (
            ['dynamo=True, dynamic_shapes=({0: Dim("rows"), 1: "n"}, {0: Dim("rows"), 1: "n"}), verbose=False'],
            ['dynamic_shapes=({0: "rows", 1: "n"}, {0: "rows", 1: "n"}),', 'exporter="dynamo",', "opsets={opset},"],
        ),
        (
            [
                'dynamo=True, kwargs={"scaled": True}, verbose=False, opset_version=20,',
                'dynamic_shapes={"features": {0: Dim("rows", min=2, max=64)}, "mask": {0: Dim("rows", min=2, max=64)}, "scaled": None}',
            ],
            [
                f'dynamic_shapes={{"features": {{0: {RANGE}}}, "mask": {{0: {RANGE}}}}},',
                'exporter="dynamo",',
                "opsets=20,",
            ],
        ),
    ],
    ids=["torchscript", "dynamo", "ranges and a plain value"],
)
def test_an_export_becomes_the_recipe_as_it_stands(project, recipes, options, declared):
    text, _ = recipes(
        "from torch.onnx import export",
        "from torch.export import Dim",
        "scores = Scores(7).eval()",
        "scores(torch.zeros(1, 5, 4))",  # to warm up
        "export(scores, (torch.randn(2, 6, 4), torch.ones(2, 6)), 'scores.onnx',",
        *options,
        ")",
    )
    lines = text[text.index("@onnx_ci.recipe(") : text.index("\n)\n")].splitlines()[1:]
    (opset,) = (each.version for each in onnx.load(project.root / "scores.onnx").opset_import if not each.domain)
    assert [line.strip() for line in lines] == [line.replace("{opset}", str(opset)) for line in declared]
    assert "return model, (torch.randn(2, 6, 4), torch.ones(2, 6))\n" in text
    assert text.count("@onnx_ci.recipe(") == 1


@pytest.mark.slow
def test_the_exports_of_one_model_at_several_opsets_are_one_recipe(project, recipes):
    text, _ = recipes(
        "for opset in (17, 13):",
        "    torch.onnx.export(Plain(4, 2), (torch.randn(3, 4),), 'p.onnx', opset_version=opset, dynamo=False, input_names=['x'])",
    )
    assert "    opsets=[13, 17],\n" in text
    assert project.command("onnx_ci", "run").returncode == PASSED


def test_an_output_does_not_have_the_name_of_an_input(recipes):
    text, _ = recipes("Echo(4, 2)(torch.randn(3, 4))")
    assert 'input_names=["output"],\n    output_names=["output_out"],' in text


def test_the_range_of_a_large_input_is_that_of_a_part(recipes):
    text, _ = recipes("Plain(4, 2)(torch.rand(2**21, 4))")
    assert "torch.rand(2097152, 4)" in text


def test_a_call_with_zeros_is_not_the_example(recipes):
    text, _ = recipes("Plain(4, 2)(torch.zeros(5, 4))", "Plain(4, 2)(torch.randn(3, 4))")
    assert "torch.randn(3, 4)" in text


@pytest.mark.parametrize(
    ("lines", "obstacle"),
    [
        (["Configured(Options(2))(torch.randn(1, 4))"], "build the Configured as the program does, with its options"),
        (
            ["def net():", "    class Inner(Plain): pass", "    return Inner(4, 2)", "net()(torch.randn(1, 4))"],
            "net.<locals>.Inner",
        ),
    ],
)
def test_what_cannot_be_built_is_an_error_of_the_recipe_that_says_so(project, recipes, lines, obstacle):
    text, done = recipes(*lines)
    assert "raise NotImplementedError(" in text
    assert "  - write what onnx_recipes.py leaves open, where it raises NotImplementedError\n" in done.stdout
    done = project.command("onnx_ci", "run", "--opsets=17")
    assert done.returncode == FAILED
    assert obstacle in done.stdout


def test_a_class_of_a_script_that_runs_when_it_is_imported_is_not_imported(recipes):
    text, _ = recipes("Own(4, 2)(torch.randn(1, 4))", head="import torch\nclass Own(torch.nn.Linear): pass\nif 1:\n")
    assert (
        'NotImplementedError("move Own from serve.py, which runs when it is imported, to a module, and build it here")' in text
    )


CASES = {
    "a number is fixed, and what else it was is told": (
        ["for power in (2.0, 3.0):", "    Scores()(torch.randn(2, 3, 4), power=power)"],
        [
            '    # No size differed between 2 calls. Declare what may vary, such as the batch:\n    # dynamic_axes={"features"',
            "    # power was 3.0, too. A file has one value of it; declare a recipe for each.\n",
            'onnx_ci.adapt(model, inputs=["features"], fixed={"scaled": False, "power": 2.0})\n',
        ],
    ),
    "lists and dictionaries of tensors": (
        ["for n in (1, 2):", "    Pair(3)([torch.randn(n, 4), torch.rand(n, 4)], {'bias': torch.zeros(3)})"],
        [
            'dynamic_axes={"both.0": {0: "batch"}, "both.1": {0: "batch"}},',
            'return model, (), {"both": [torch.randn(2, 4), torch.rand(2, 4)], "table": {"bias": torch.zeros(3)}}',
        ],
    ),
    "an object that its attributes make": (
        [
            "Configured(Config(classes=2))(torch.randn(2, 4))",
            "Configured(Config(widths=(1, 2)))(torch.randn(2, 4))",
            'Configured(Namespace(classes=2, names={0: "a", 1: "b"}))(torch.randn(2, 4))',
        ],
        [
            "    from nets import Config, Configured\n",
            "    model = Configured(options=Config(classes=2))\n",
            "    model = Configured(options=Config(widths=(1, 2)))\n",
            "    from argparse import Namespace\n    from nets import Configured\n",
            "    model = Configured(options=Namespace(classes=2, names={0: 'a', 1: 'b'}))\n",
        ],
    ),
    "the usual arguments, and the others": (
        [
            "usual, features = Usual(), torch.randn(2, 3, 4)",
            "usual(features)",
            "usual(features, torch.ones(2, 3))",
            "usual(features, torch.rand(2, 3))",
        ],
        ["    # 1 call of 3 had 'features' instead: that is another recipe.\n", "torch.ones(2, 3)"],
    ),
    "keywords of a constructor": (
        ["Keywords(classes=3, name='a')(torch.randn(2, 4))"],
        ["Keywords(classes=3, name='a')"],
    ),
    "the range of a tensor": (
        ["Ranged(4, 2)(torch.tensor([[48.0, 64.0, 50.0, 60.0]]))"],
        ["torch.empty(1, 4).uniform_(48, 64)"],
    ),
    "a class without a constructor has that of its base": (
        ["Unbiased(4, 2, bias=False)(torch.randn(3, 4))"],
        ["model = Unbiased(in_features=4, out_features=2, bias=False, device=None, dtype=None)\n"],
    ),
    "the model in a wrapper": (
        ["torch.compile(Compiled(4, 2))(torch.randn(3, 4))", "torch.nn.DataParallel(Parallel(4, 2))(torch.randn(3, 4))"],
        ["def compiled():", "def parallel():"],
    ),
    "a module and a class as arguments": (
        ["Whole(Block(4), Plain)(torch.randn(3, 4))"],
        [
            "    from nets import Block, Plain, Whole\n",
            "model = Whole(block=Block(width=4), head=Plain, dtype=torch.float32)\n",
        ],
    ),
    "a factory of a library": (
        ["torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2), 1)(torch.randn(3, 1, 8))"],
        ["# serve.py, line 23: torch.nn.TransformerEncoder("],
    ),
}
"""The lines of a program, and parts of the recipes for what it calls there."""


@pytest.mark.slow
def test_each_model_has_a_recipe_that_builds_and_calls_it(project, recipes):
    text, _ = recipes("from argparse import Namespace", *(line for lines, _ in CASES.values() for line in lines))
    assert [(case, part) for case, (_, parts) in CASES.items() for part in parts if part not in text] == [], text
    project.command("onnx_ci", "run", "--opsets=17", "--effort=quick", "--report=r.json")
    cells = json.loads((project.root / "r.json").read_text(encoding="utf-8"))["cells"]
    assert len(cells) == text.count("@onnx_ci.recipe(") == 13
    assert [cell["recipe"] for cell in cells if cell["status"] != "passed"] == ["transformer_encoder"]


def test_calls_that_fail_are_not_noted_and_a_program_that_fails_is_used_up_to_there(project, capfd):
    project.write("nets.py", NETS)
    calls = ["call(torch.randn(3, 5))", "call(torch.randn(3, 4))", "net(torch.randn(3, 5))"]
    write(
        project,
        [
            "import contextlib",
            "def call(x):",
            "    with contextlib.suppress(RuntimeError):",
            "        net(x)",
            "net = Plain(4, 2)",
            *calls,
        ],
    )
    (model,) = observed_models("python serve.py", project.root)
    assert [call["input"]["shape"] for call in model.calls] == [[3, 4]]
    assert "Warning" not in capfd.readouterr().err


TRACES = """
    import io, torch
    from nets import Plain
    net, x = Plain(4, 2), torch.randn(3, 4)
    torch.manual_seed(0)
    print(torch.jit.trace(net, x).graph)
    print(torch.export.export(net, (x,), strict=False).graph)
    print(torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Sequential(net))).graph)
    torch.onnx.export(net, (x,), io.BytesIO(), dynamo=False)
    net(x)
"""


@pytest.mark.slow
def test_a_program_that_traces_its_model_gets_the_same_graph(project, capfd):
    project.write("nets.py", NETS)
    project.write("serve.py", TRACES)
    subprocess.run([sys.executable, "serve.py"], cwd=project.root, check=True)
    usual = capfd.readouterr().out
    models = observed_models("python serve.py", project.root)
    observed = capfd.readouterr()
    assert (re.sub(r"%\d+", "%", observed.out), "TracerWarning" in observed.err) == (re.sub(r"%\d+", "%", usual), False)
    assert {model.name for model in models} == {"Plain"}
    assert [model.built["arguments"]["out_features"] for model in models if not model.obstacle] == [{"plain": "2"}]


def test_the_model_of_a_script_is_not_built(recipes):
    text, _ = recipes("torch.jit.script(Base(2).head)(torch.randn(3, 4))")
    assert 'NotImplementedError("return the Linear that the program builds, or build it as the program does")' in text


def test_models_that_were_built_with_other_arguments_have_recipes_of_their_own(project, recipes):
    project.write("others.py", "import torch\nclass Plain(torch.nn.Linear):\n    pass\n")
    text, _ = recipes(
        "import others",
        "for net in (Plain(4, 2), Plain(4, 2), Plain(6, 2), others.Plain(6, 2)):",
        "    net(torch.randn(3, net.in_features))",
    )
    assert re.findall(r"def (.*)\(\):\n    from (.*) import Plain\n", text) == [
        ("plain", "nets"),
        ("plain_2", "nets"),
        ("plain_3", "others"),
    ]
    assert "length" not in text
    assert project.command("onnx_ci", "run", "--opsets=17").returncode == PASSED


def test_classes_of_a_module_that_python_runs_are_imported_from_it(project):
    project.write("package/__init__.py", "")
    project.write("package/serve.py", "import torch\nclass Own(torch.nn.Linear): pass\nif __name__ == '__main__':\n")
    with (project.root / "package/serve.py").open("a", encoding="utf-8") as script:
        script.write("    Own(4, 2)(torch.randn(3, 4))\n")
    assert "    from package.serve import Own\n" in recipes_of(observed_models("python -m package.serve", project.root))


def test_a_script_without_a_name_that_can_be_imported_is_told(project):
    write(
        project, ["Own(4, 2)(torch.randn(3, 4))"], "import torch\nclass Own(torch.nn.Linear): pass\nif __name__:\n", "my-net.py"
    )
    assert "rename my-net.py, which has no name that can be imported" in recipes_of(
        observed_models("python my-net.py", project.root)
    )


def test_a_server_is_ended_by_ctrl_c(project):
    project.write("nets.py", NETS)
    write(project, ["import time", "Plain(4, 2)(torch.randn(3, 4))", "print('ready', flush=True)", "time.sleep(600)"])
    command = [sys.executable, "-m", "onnx_ci", "init", "--no-github", "--observe", "python serve.py"]
    with subprocess.Popen(command, cwd=project.root, start_new_session=True, stdout=subprocess.PIPE, text=True) as init:
        assert init.stdout.readline() == "ready\n"
        os.killpg(init.pid, signal.SIGINT)  # as a terminal does
        assert "wrote onnx_recipes.py: recipes for Plain\n" in init.communicate()[0]
    assert init.returncode == PASSED


def test_a_file_that_exists_is_not_changed_and_the_recipe_is_printed(project, recipes):
    project.recipes()
    before = (project.root / "onnx_recipes.py").read_text(encoding="utf-8")
    text, done = recipes("Plain(4, 2)(torch.randn(3, 4))")
    assert text == before
    assert "add to your recipes:" in done.stdout
    assert "def plain():" in done.stdout


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "--observe needs a command"),
        ("no-such-program serve.py", "no-such-program cannot be started: No such file or directory"),
        (
            "python -c pass",
            "python -c pass called or exported no model with parameters; it must run a Python in which torch is installed",
        ),
        ("python -c 'exit(3)'", "ended with exit code 3 and called or exported no model"),
    ],
)
def test_a_command_without_models_is_an_error(project, command, said):
    done = project.command("onnx_ci", "init", "--no-github", "--observe", command)
    assert done.returncode == USAGE
    assert said in done.stderr
    assert not (project.root / "onnx_recipes.py").exists()


def test_the_environment_keeps_its_own_startup(project, monkeypatch):
    project.write("own/sitecustomize.py", "import builtins\nbuiltins.OWN = 7\n")
    project.write("serve.py", "import torch\nassert OWN == 7\ntorch.nn.Linear(4, OWN)(torch.randn(3, 4))\n")
    monkeypatch.setenv("PYTHONPATH", str(project.root / "own"))
    (model,) = observed_models(f"{sys.executable} serve.py", project.root)
    assert "out_features=7" in recipes_of([model])
