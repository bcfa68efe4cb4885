"""What onnx-ci costs beside other ways to check an export, on the same models and opsets, and which wrong models each notices.

The ways, each timed as whole commands, with all that they import:

- *script*: the plain script of gate.py: export, load, check, run, compare with a fixed tolerance.
- *polygraphy run*: a script exports, then ``polygraphy run FILE --onnxrt`` runs each file on Polygraphy's random inputs, with 1
  for each dynamic axis. Nothing is compared; a file that ONNX Runtime does not load or run fails.
- *polygraphy, compared*: the script also saves the example's inputs and the outputs of the model in Polygraphy's formats, and
  ``polygraphy run FILE --onnxrt --load-inputs … --load-outputs …`` compares each file with them. This is how it compares a file
  with a framework that it does not run itself. The tolerances are the script's, because Polygraphy's own, 1e-5 each, reject
  the right file of a ResNet-50 with random weights, whose outputs are as large as 100.
- *optimum*: ``optimum-cli export onnx``, which exports with TorchScript and compares the file with the model. Only for
  ``bert``, because it takes models of transformers. The other ways load the same weights from the same folder.
- *onnx-ci*: ``onnx-ci run`` with an empty cache; *again* with nothing changed.

They run alternately, ``--repeat`` times; numbers are medians, and ratios medians of the ratios within one turn. *within* is the
time within Python after the imports: of the script, of ``optimum.exporters.onnx.main_export``, and of ``onnx_ci.run``. All
export with TorchScript.

What is not equal: they do not check the same. The script and Polygraphy compare on one input, that of the export, and optimum
on another one of the same shape; each has fixed tolerances. onnx-ci runs cells in as many processes as there are cores, which
matters with several opsets. ``polygraphy run`` does not need torch, but imports it because it is installed. The scripts take
the models from recipes, which costs them the import of onnx_ci, less than 0.1 s. So it does optimum if the installed
torchvision does not belong to torch, because transformers imports it. accelerate is not installed, so optimum does not look for
weights that are in the file twice.

The last table has wrong models and the exit code of each way. Each model is a small BERT that does one thing besides; it is in
a folder with code of its own, which optimum loads with ``--trust-remote-code``. torch warns about some of what an export
freezes, which changes no exit code. If values differ, optimum *warns* and ends with 0.
Usage: ``python benchmarks/rivals.py [--repeat 3] [--opsets 17 9-17] [--models resnet50,lstm,bert] [--only costs,faults]``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from measuring import environment, in_turns, median, seconds, timed

BEGIN_OF_BERT = 14
"""The lowest opset of ``bert``: the exporter cannot translate its attention to lower ones."""

LIBRARY = {"alexnet": "alexnet", "lstm": "lstm", "resnet18": "resnet", "resnet50": "resnet"}
"""Recipes of the library, and their modules."""

HUGGING_FACE = '''
from pathlib import Path

import onnx_ci
import torch
from onnx_ci.recipes.models.torchvision_models import import_torchvision

import_torchvision()  # transformers imports it

import transformers

INPUTS, OUTPUTS = ["input_ids", "attention_mask", "token_type_ids"], ["last_hidden_state"]


class ByName(torch.nn.Module):
    """TorchScript passes all arguments by position."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return outputs.last_hidden_state


@onnx_ci.recipe(
    input_names=INPUTS,
    output_names=OUTPUTS,
    dynamic_axes={name: {0: "batch_size", 1: "sequence_length"} for name in INPUTS + OUTPUTS},
    weights="trained",
)
def {name}():
    model = transformers.AutoModel.from_pretrained(Path(__file__).parent / "{name}", trust_remote_code=True)
    shape = 2, 16
    mask = (torch.arange(16) < torch.tensor([[16], [10]])).long()
    return ByName(model), (torch.randint(0, model.config.vocab_size, shape), mask, torch.randint(0, 2, shape))
'''

WRONG = """
import torch
from transformers import BertModel


class Wrong(BertModel):
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, **options):
        outputs = super().forward(input_ids, attention_mask, token_type_ids, **options)
        hidden = outputs.last_hidden_state
        {line}
        outputs.last_hidden_state = hidden
        return outputs
"""

FAULTS = {
    "right": ("nothing is wrong", "hidden = hidden * 1.5"),
    "operator": (
        "an operator that the exporter translates wrongly",
        "hidden = hidden + ((torch.arange(hidden.shape[1]) - 3) // 2)[:, None]",
    ),
    "value": ("a number of the example is in the file", "hidden = hidden + token_type_ids.float().mean().item()"),
    "branch": ("a branch of the example is in the file", "hidden = 2 * hidden if attention_mask.all() else hidden"),
    "size": ("a size of the example is in the file", "hidden = hidden.view(int(hidden.shape[0]), -1, hidden.shape[-1])"),
}
"""What is wrong with each model, and the line that it has besides; // is exported as a division that rounds toward zero."""

RTOL, ATOL = 1e-3, 1e-5
"""The tolerances of the torch.onnx documentation."""

COMPARED = ("--load-inputs", "inputs.json", "--load-outputs", "outputs.json", f"--rtol={RTOL}", f"--atol={ATOL}")
"""What makes Polygraphy compare a file with what was saved."""

# --- in processes of their own --------------------------------------------------------------------------------------------


def weights(names: Sequence[str]) -> None:
    """Write folders with seeded weights, as ``save_pretrained`` does: of a BERT-small, and of wrong models."""
    from onnx_ci.recipes.models.torchvision_models import import_torchvision

    import_torchvision()
    import torch
    import transformers

    for name in names:
        torch.manual_seed(0)
        if name == "bert":
            config = transformers.BertConfig(
                hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048
            )
        else:
            config = transformers.BertConfig(
                vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
            )
            config.auto_map = {"AutoModel": "modeling_wrong.Wrong"}
        transformers.BertModel(config).save_pretrained(name)
        if name != "bert":
            Path(name, "modeling_wrong.py").write_text(WRONG.format(line=FAULTS[name][1]), encoding="utf-8")


def recipe_of(name: str) -> Any:
    """The recipe of a model, from its file in the current folder."""
    sys.path.insert(0, str(Path.cwd()))
    return getattr(importlib.import_module(f"{name}_recipe"), name)


class Exported:
    """A model, its example and what it computes on that, as a script has them; times are measured from here on."""

    def __init__(self, name: str) -> None:
        import torch
        from torch.utils import _pytree as pytree

        self.recipe = recipe_of(name)
        self._start, self.exporting = time.perf_counter(), 0.0
        torch.manual_seed(0)
        self._model, self._args = self.recipe()
        self._model.eval()
        with torch.no_grad():
            outputs = pytree.tree_leaves(self._model(*self._args))
        self.inputs = dict(zip(self.recipe.input_names, (t.numpy() for t in pytree.tree_leaves(self._args)), strict=True))
        self.outputs = dict(zip(self.recipe.output_names, (t.numpy() for t in outputs), strict=True))

    def export(self, opset: int) -> Path:
        """Export the model at an opset."""
        import torch

        file, before = Path(f"opset{opset}.onnx"), time.perf_counter()
        torch.onnx.export(
            self._model, self._args, file, dynamo=False, opset_version=opset, input_names=list(self.inputs),
            output_names=list(self.outputs), dynamic_axes=self.recipe.dynamic_axes,
        )  # fmt: skip
        self.exporting += time.perf_counter() - before
        return file

    def figures(self) -> dict[str, float]:
        """The seconds so far, and those inside ``torch.onnx.export``."""
        return {"within": time.perf_counter() - self._start, "export": self.exporting}


def script(name: str, opsets: tuple[int, ...]) -> dict[str, float]:
    """The plain script."""
    import numpy
    import onnx
    import onnxruntime

    exported = Exported(name)
    for opset in opsets:
        file = exported.export(opset)
        onnx.checker.check_model(onnx.load(file))
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        for got, want in zip(session.run(None, exported.inputs), exported.outputs.values(), strict=True):
            numpy.testing.assert_allclose(got, want, rtol=RTOL, atol=ATOL)
    return exported.figures()


def export(name: str, opsets: tuple[int, ...]) -> dict[str, float]:
    """Only export the files."""
    return _exported(name, opsets).figures()


def export_and_save(name: str, opsets: tuple[int, ...]) -> dict[str, float]:
    """Export the files, and save what Polygraphy is to compare them with."""
    from polygraphy.comparator import RunResults
    from polygraphy.json import save_json

    exported = _exported(name, opsets)
    save_json([exported.inputs], "inputs.json")
    results = RunResults()
    results.add([exported.outputs], runner_name="torch")
    results.save("outputs.json")
    return exported.figures()


def _exported(name: str, opsets: tuple[int, ...]) -> Exported:
    exported = Exported(name)
    for opset in opsets:
        exported.export(opset)
    return exported


def optimum(name: str, opsets: tuple[int, ...]) -> dict[str, float]:
    """The export by optimum, with its validation, within Python."""
    from onnx_ci.recipes.models.torchvision_models import import_torchvision

    import_torchvision()
    import onnxruntime  # noqa: F401 # optimum imports it late
    from optimum.exporters.onnx import main_export

    start = time.perf_counter()
    for opset in opsets:
        main_export(name, output=f"opset{opset}", task="feature-extraction", opset=opset)
    return {"within": time.perf_counter() - start}


def gate(name: str, opsets: tuple[int, ...]) -> dict[str, float]:
    """Run onnx-ci within Python, twice."""
    import onnx_ci

    recipe, figures = recipe_of(name), {}
    shutil.rmtree("cache_within", ignore_errors=True)
    for figure in ("within", "again"):
        start = time.perf_counter()
        report = onnx_ci.run([recipe], opsets=opsets, exporters="torchscript", cache="cache_within")
        figures[figure] = time.perf_counter() - start
        assert report.verdict == "passed", report.counts
        assert all(cell.cached is (figure == "again") for cell in report.cells)
    return figures


SIDES = {"script": script, "export": export, "export-and-save": export_and_save, "optimum": optimum, "gate": gate}

# --- the commands ---------------------------------------------------------------------------------------------------------

WITH_TORCHVISION = """
from onnx_ci.recipes.models.torchvision_models import import_torchvision
import_torchvision()
from optimum.commands.optimum_cli import main
main()
"""


def installed(command: str) -> list[str]:
    """A command of this environment."""
    found = shutil.which(command, path=Path(sys.executable).parent)
    if found is None:
        sys.exit(f"{command} is not installed: tox run -e rivals installs what this benchmark needs")
    return [found]


def optimum_command() -> list[str]:
    """The command ``optimum-cli``; with help where the installed torchvision cannot be imported."""
    probe = "try: import torchvision\nexcept ModuleNotFoundError: pass"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False)
    return [sys.executable, "-c", WITH_TORCHVISION] if done.returncode else installed("optimum-cli")


def child(side: str, name: str, opsets: str) -> list[str]:
    """One side, in its own process."""
    return [sys.executable, str(Path(__file__).resolve()), "--side", side, "--models", name, "--opsets", opsets]


class Commands:
    """The commands of each side for one model, in the folder that has its recipe."""

    def __init__(self, folder: Path, name: str, opsets: str, optimum: Sequence[str]) -> None:
        from onnx_ci.opsets import parse_opsets

        self._folder, self._name, self._opsets, self._optimum = folder, name, opsets, optimum
        self._numbers = parse_opsets(opsets)
        self.figures: dict[str, list[float]] = {}

    def python(self, side: str) -> float:
        """Run a side of this file, and note what it measures."""
        taken, printed = timed(child(side, self._name, self._opsets), self._folder)
        for figure, value in json.loads(printed.splitlines()[-1]).items():
            self.figures.setdefault(f"{side}: {figure}", []).append(value)
        return taken

    def polygraphy(self, side: str, *options: str) -> float:
        """Export the files and run each in Polygraphy."""
        command = [*installed("polygraphy"), "run"]
        return self.python(side) + sum(
            timed([*command, f"opset{opset}.onnx", "--onnxrt", *options], self._folder)[0] for opset in self._numbers
        )

    def optimum(self) -> float:
        """Export and validate with optimum; its time within Python is measured afterwards."""
        taken = sum(timed([*self._optimum, *optimum_options(self._name, opset)], self._folder)[0] for opset in self._numbers)
        self.python("optimum")
        return taken

    def gate(self) -> float:
        """Run onnx-ci."""
        return seconds(gate_words(self._name, self._opsets), self._folder)

    def first_gate(self) -> float:
        """Run onnx-ci with an empty cache; its time within Python is measured before."""
        self.python("gate")
        shutil.rmtree(self._folder / "cache", ignore_errors=True)
        return self.gate()

    def sides(self) -> dict[str, Callable[[], float]]:
        """What to run, in this order."""
        sides: dict[str, Callable[[], float]] = {
            "script": lambda: self.python("script"),
            "polygraphy run": lambda: self.polygraphy("export"),
            "polygraphy, compared": lambda: self.polygraphy("export-and-save", *COMPARED),
            "optimum": self.optimum,
            "onnx-ci": self.first_gate,
            "onnx-ci, again": self.gate,
        }
        return {side: run for side, run in sides.items() if self._name == "bert" or side != "optimum"}


WITHIN = {
    "script": "script: within", "optimum": "optimum: within", "onnx-ci": "gate: within", "onnx-ci, again": "gate: again",
}  # fmt: skip
"""Sides that can run within Python, and where their figures are."""


def optimum_options(name: str, opset: int) -> list[str]:
    """The arguments of ``optimum-cli``."""
    return ["export", "onnx", "--model", name, "--task", "feature-extraction", "--opset", str(opset), f"opset{opset}"]


def gate_words(name: str, opsets: str, cache: str = "cache") -> list[str]:
    """The arguments of ``python -m``."""
    return ["onnx_ci", "run", "-q", f"{name}_recipe.py", f"--opsets={opsets}", "--exporters=torchscript", f"--cache={cache}"]


def project(folder: Path, names: Sequence[str]) -> None:
    """Write the recipe files of these models, and the weights of those that load them."""
    folder.mkdir()
    (folder / "pyproject.toml").touch()  # this folder is a project of its own, so that a run can be remembered
    for name in names:
        library = f"from onnx_ci.recipes.models.{LIBRARY.get(name)} import {name}\n"
        text = library if name in LIBRARY else HUGGING_FACE.replace("{name}", name)
        (folder / f"{name}_recipe.py").write_text(text, encoding="utf-8")
    made = [name for name in names if name not in LIBRARY]
    if made:
        timed(child("weights", ",".join(made), "17"), folder)


def costs(folder: Path, options: argparse.Namespace) -> None:
    """The first tables."""
    from onnx_ci.opsets import parse_opsets

    optimum_cli = optimum_command()
    for opsets in options.opsets:
        print(f"\nseconds at opset {opsets}, median of {options.repeat}")
        print(f"{'model':10}{'':24}{'command':>9}{'÷ script':>10}{'onnx-ci ÷ it':>14}{'within':>9}")
        for name in options.models.split(","):
            if name == "bert" and parse_opsets(opsets)[0] < BEGIN_OF_BERT:
                continue
            own = folder / f"{name}-{opsets}"
            project(own, [name])
            commands = Commands(own, name, opsets, optimum_cli)
            figures = in_turns(commands.sides(), options.repeat)
            print(f"{name:10}{'torch.onnx.export alone':24}{'':33}{median(commands.figures['script: export']):9.2f}")
            for side, taken in figures.items():
                to_script, from_gate = (
                    median([a / b for a, b in zip(one, other, strict=True)])
                    for one, other in ((taken, figures["script"]), (figures["onnx-ci"], taken))
                )
                within = f"{median(commands.figures[WITHIN[side]]):9.2f}" if side in WITHIN else ""
                print(f"{'':10}{side:24}{median(taken):9.2f}{to_script:10.2f}{from_gate:14.2f}{within}", flush=True)
            shutil.rmtree(own)


def faults(folder: Path, options: argparse.Namespace) -> None:
    """The last table."""
    own, optimum_cli = folder / "faults", optimum_command()
    project(own, list(FAULTS))

    def code(command: Sequence[str]) -> str:
        done = subprocess.run(command, cwd=own, env=environment(), capture_output=True, text=True, check=False)
        warns = "succeeded with the warning" in done.stderr
        return f"{done.returncode}, warns" if warns else str(done.returncode)

    polygraphy = [*installed("polygraphy"), "run", "opset17.onnx", "--onnxrt"]
    titles = ("script", "polygraphy run", "compared", "optimum", "onnx-ci")
    print(f"\nexit codes at opset 17\n{'':52}" + "".join(f"{title:>16}" for title in titles))
    for name, (title, _) in FAULTS.items():
        timed(child("export-and-save", name, "17"), own)
        codes = [
            code(child("script", name, "17")),
            code(polygraphy),
            code([*polygraphy, *COMPARED]),
            code([*optimum_cli, *optimum_options(name, 17), "--trust-remote-code"]),
            code([sys.executable, "-m", *gate_words(name, "17", cache="off")]),
        ]
        print(f"{title:52}" + "".join(f"{each:>16}" for each in codes), flush=True)


TABLES = {"costs": costs, "faults": faults}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--opsets", nargs="+", default=["17", "9-17"], help="one table each; bert is left out below 14")
    parser.add_argument("--models", default="resnet50,lstm,bert", help=f"of {', '.join(LIBRARY)} and bert")
    parser.add_argument("--only", default=",".join(TABLES), help="which tables: " + ", ".join(TABLES))
    parser.add_argument("--side", choices=(*SIDES, "weights"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "weights":
        weights(options.models.split(","))
        return
    if options.side:
        from onnx_ci.opsets import parse_opsets

        print(json.dumps(SIDES[options.side](options.models, parse_opsets(options.opsets[0]))))
        return
    packages = ("torch", "onnxruntime", "polygraphy", "optimum-onnx", "transformers")
    print(", ".join(f"{name} {metadata.version(name)}" for name in packages))
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"HF_HOME": str(Path(name, "hugging-face")), "HF_HUB_OFFLINE": "1"}
        for table in options.only.split(","):
            TABLES[table](Path(name), options)


if __name__ == "__main__":
    main()
