"""``onnx-ci doctor``: what is here, asked and not assumed; and each thing that cannot work, with its remedy."""

from __future__ import annotations

import dataclasses
import json
import os
from importlib.metadata import version

import pytest

from onnx_ci.config.settings import load_settings
from onnx_ci.environment.packages import Package, facts_on_cuda, inspect_packages
from onnx_ci.tools.doctor.diagnosis import SMALL_DISK, EnvironmentFacts, describe, diagnose, examine

PASSED, ENVIRONMENT = 0, 4
HEAVY = {"torch", "onnx", "onnxruntime", "numpy", "onnxscript", "torchvision"}


@pytest.fixture
def doctor(project):
    return lambda *arguments, **environment: project.command("onnx_ci", "doctor", *arguments, **environment)


def instead(project, **modules):
    """An environment in which modules of the project come before the installed ones."""
    for name, text in modules.items():
        project.write(f"instead/{name}.py", text)
    return {"PYTHONPATH": os.pathsep.join([str(project.root / "instead"), os.environ.get("PYTHONPATH", "")])}


# --- the command


def test_here_the_run_can_work_and_every_package_is_told(doctor):
    import onnx
    import onnxruntime

    done = doctor(PYTHONPROFILEIMPORTTIME="1")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (PASSED, "Cells can run here.")
    rows = {line.split()[0]: line for line in done.stdout.partition("\n\n")[0].splitlines()}
    assert f"{version('torch')}, TorchScript for opsets 7-" in rows["torch"]  # a wheel's own may lack "+cu130"
    assert f"{onnx.__version__}, opsets up to {onnx.defs.onnx_opset_version()}, IR versions up to" in rows["onnx"]
    assert f"{onnxruntime.__version__}, opsets up to " in rows.get("onnxruntime", rows.get("onnxruntime-gpu"))
    assert {"onnx-ci", "python", "platform", "processors", "memory", "disk", "devices", "isolation", "pytest"} <= set(rows)
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "onnx_ci" in imported
    assert not imported & HEAVY


@pytest.mark.slow
def test_json_has_everything(doctor):
    told = json.loads(doctor("--json").stdout)
    assert told["works"] is True
    assert told["packages"]["onnx"]["facts"]["opset"] >= 17
    assert told["environment"]["devices"].startswith("cpu")


@pytest.mark.slow
def test_a_torch_for_cuda_is_usable_without_a_driver(project, doctor):
    done = doctor(**instead(project, sitecustomize="import torch.version\ntorch.version.cuda = '13.0'"))
    assert "Cells can run here." in done.stdout, done.stdout
    assert "error torch" not in done.stdout


def test_an_error_without_a_message_is_told_with_what_was_printed_before_it(project, doctor):
    """ONNX Runtime 1.18 beside numpy 2."""
    module = "import sys\nprint('AttributeError: _ARRAY_API not found', file=sys.stderr)\nraise ImportError"
    done = doctor(**instead(project, onnxruntime=module))
    assert "cannot be imported: ImportError: AttributeError: _ARRAY_API not found" in done.stdout
    assert "It is incompatible with the installed numpy: upgrade both." in done.stdout


def test_what_stops_the_run_is_exit_4_with_the_remedy(project, doctor):
    done = doctor(**instead(project, torch="raise ImportError('libcudart.so.12: cannot open shared object file')"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (ENVIRONMENT, "Cells cannot run here.")
    assert "error torch: torch " in done.stdout
    assert "cannot be imported: ImportError: libcudart.so.12: cannot open" in done.stdout
    assert "    remedy: Install the CUDA libraries, or the CPU build." in done.stdout


@pytest.mark.slow
def test_wrong_settings_are_told_with_the_rest(project, doctor):
    project.write("pyproject.toml", "[tool.onnx-ci]\nopset = 9\n")
    done = doctor("--cache=off")
    assert done.returncode == ENVIRONMENT
    assert "error settings: [tool.onnx-ci] has no setting 'opset'" in done.stdout
    assert "torch " in done.stdout


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("import os; print('last words', file=__import__('sys').stderr, flush=True); os.abort()", "the process that imports it was killed by SIGABRT: last words"),
        ("import os; os._exit(7)", "the process that imports it ended by itself with exit code 7"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("import time; time.sleep(600)", "the process that imports it did not end within 3 s"),
        ("print('{}')", ""),
    ],
)  # fmt: skip
def test_a_package_that_dies_hangs_or_prints_is_looked_at_from_outside(project, monkeypatch, module, error):
    for name, value in instead(project, onnxscript=module).items():
        monkeypatch.setenv(name, value)
    assert inspect_packages(["onnxscript"], timeout=3 if "sleep" in module else 120)["onnxscript"].error == error


def test_the_current_directory_is_no_place_for_packages(project):
    project.write("onnxscript.py", "raise SystemExit('the wrong one')")
    assert inspect_packages(["onnxscript"])["onnxscript"].error == ""


def test_what_is_not_installed_is_not_looked_at():
    assert inspect_packages(["surely-not-installed"]) == {}


# --- what follows from the facts


RUNTIME = Package(version="1.31.1", facts={"providers": ["CPUExecutionProvider"], "opset": 26})
GPU_RUNTIME = Package(version="1.31.1", facts={"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"], "opset": 26})
FALLS_BACK = Package(version="1.31.1", facts={**GPU_RUNTIME.facts, "runs_on_cuda": False})
OTHER_CUDA = Package(version="1.31.1", facts={**FALLS_BACK.facts, "cuda": "12.8", "cuda_lacks": "libcublasLt.so.12"})
LACKS_CUDNN = Package(version="1.31.1", facts={**FALLS_BACK.facts, "cuda": "13.1", "cuda_lacks": "libcudnn.so.9"})
GPU_HERE = {"has_nvidia_gpu": True, "nvidia_driver": True}


def torch(cuda=None, gpus=(), **facts):
    return Package(version="2.13.0", facts={"cuda": cuda, "gpus": list(gpus), **facts})


@pytest.fixture
def facts(project):
    """A healthy machine without a GPU."""
    return EnvironmentFacts(
        settings=load_settings(project.root, environment={}),
        wrong_settings=(),
        packages={"torch": torch(), "onnx": Package(version="1.23.2", facts={"opset": 28, "ir_version": 14}), "onnxruntime": RUNTIME},
        runtime_is_missing=None,
        has_nvidia_gpu=False,
        nvidia_driver=False,
        visible_gpus=None,
        processors=8,
        usable_processors=8,
        memory=2**34,
        memory_limit=2**34,
        temporary=project.root,
        free={"temporary": 2**40, "cache": 2**40},
        cache_error="",
        process_error="",
    )  # fmt: skip


def told(facts, packages=None, flags=None, **changes):
    """Each trouble as one line, with the settings that ``flags`` make."""
    settings = load_settings(facts.settings.root, flags=flags, environment={})
    known = {**facts.packages, **(packages or {})}
    changed = dataclasses.replace(facts, settings=settings, packages=known, **changes)
    return [f"{'stop' if each.stops else 'note'} {each.subject}: {each.message} -> {each.remedy}" for each in diagnose(changed)]


def test_a_healthy_machine_has_no_troubles(facts):
    assert told(facts) == []
    assert (
        told(facts, {"torch": torch("13.0", ["H200"]), "onnxruntime": GPU_RUNTIME}, has_nvidia_gpu=True, nvidia_driver=True)
        == []
    )


@pytest.mark.parametrize(
    ("packages", "machine", "said", "advice"),
    [
        ({}, {"has_nvidia_gpu": True}, "there is an NVIDIA GPU here, but torch 2.13.0 is built for the CPU", "onnx-ci[cuda]"),
        ({"torch": torch("13.0", cuda_error="no driver")}, {}, "built for CUDA 13.0, but there is no NVIDIA GPU here", "gigabytes"),
        ({"torch": torch("13.0", cuda_error="no driver")}, {"has_nvidia_gpu": True}, "its driver is not loaded; torch says: no driver", "--gpus all"),
        ({"torch": torch("13.0", cuda_error="too old")}, {"has_nvidia_gpu": True, "nvidia_driver": True}, "cannot use the NVIDIA GPU: too old", "Update"),
        ({"torch": torch("13.0", cuda_error="too old", driver_cuda="12.4")}, GPU_HERE, "the driver supports CUDA up to 12.4: too old", "or install a torch for CUDA 12.4"),
        ({"torch": torch("13.0", cuda_error="No CUDA GPUs")}, {**GPU_HERE, "visible_gpus": "7"}, "CUDA_VISIBLE_DEVICES is '7': No CUDA GPUs", "nvidia-smi"),
        ({"torch": torch("13.0", ["H200"], cudnn=None)}, GPU_HERE, "finds no cuDNN", "its wheels include cuDNN"),
        ({"torch": torch("13.0", ["H200"]), "onnxruntime": OTHER_CUDA}, GPU_HERE, "built for CUDA 12.8, but torch and its libraries for 13.0", "onnxruntime-gpu[cuda,cudnn]==1.31.1"),
        ({"torch": torch("13.0", ["H200"]), "onnxruntime": LACKS_CUDNN}, GPU_HERE, "does not find libcudnn.so.9", "onnxruntime-gpu[cuda,cudnn]==1.31.1"),
        ({"torch": torch("13.0", ["H200"])}, {}, "torch can use H200, but ONNX Runtime is built for the CPU", "pip uninstall onnxruntime"),
        ({"torch": torch("13.0", ["H200"]), "onnxruntime": FALLS_BACK}, {}, "ONNX Runtime falls back to the CPU", "onnxruntime-gpu[cuda,cudnn]"),
    ],
)  # fmt: skip
def test_cuda_is_a_note_unless_it_is_asked_for(facts, packages, machine, said, advice):
    (line,) = told(facts, packages, **machine)
    assert line.startswith("note cuda: ")
    assert said in line
    assert advice in line
    (asked,) = told(facts, packages, {"devices": "cuda"}, **machine)
    assert asked.startswith("stop cuda: ")


def test_a_gpu_beyond_those_that_there_are_is_told(facts):
    here = {"torch": torch("13.0", ["H200", "H200"]), "onnxruntime": GPU_RUNTIME}
    assert told(facts, here, {"devices": "cuda:1"}, **GPU_HERE) == []
    (line,) = told(facts, here, {"devices": "cpu,cuda:2"}, **GPU_HERE)
    assert line.startswith("stop cuda: the settings request cuda:2, but torch sees only cuda:0 to cuda:1")


@pytest.mark.parametrize("runs", [True, False])
def test_the_library_that_onnx_runtime_lacks_is_read_from_its_log(runs):
    class Session:
        def __init__(self, model, providers):
            os.write(
                2, b"[E:onnxruntime] Failed to load libx.so with error: libcudnn.so.9: cannot open shared object file: No such"
            )

        def get_providers(self):
            return ["CUDAExecutionProvider"] * runs + ["CPUExecutionProvider"]

    class Runtime:
        InferenceSession = Session

    lacks = {} if runs else {"cuda_lacks": "libcudnn.so.9"}
    assert facts_on_cuda(Runtime) == {"runs_on_cuda": runs, **lacks}


def test_cuda_that_is_asked_for_without_any_is_told(facts):
    (line,) = told(facts, flags={"devices": "cpu,cuda"})
    assert line.startswith("stop cuda: the settings request cuda, but torch 2.13.0 is built for the CPU")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runtime_is_missing": ("none", "get one")}, "stop onnxruntime: none -> get one"),
        ({"packages": {"onnxruntime": Package(version="1", facts={"providers": [], "opset": 26})}}, "stop onnxruntime: ONNX Runtime has no CPUEx"),
        ({"packages": {"onnx": Package(version="1", error="ImportError: x")}}, "stop onnx: onnx 1 cannot be imported: ImportError: x -> Reinstall it"),
        ({"packages": {"torchvision": Package(version="1", error="RuntimeError: operator torchvision::nms does not exist")}}, "note torchvision: "),
        ({"packages": {"github-action-toolkit": Package(version="1", error="ImportError: Bad git executable.")}}, "note github-action-toolkit: "),
        ({"flags": {"opsets": "27"}}, "stop onnxruntime: opset 27 is requested, but onnxruntime 1.31.1 supports opsets up to 26"),
        ({"temporary": None, "free": {}}, "stop disk: there is no writable folder for temporary files"),
        ({"free": {"temporary": SMALL_DISK - 1}}, "note disk: only 2 GiB free"),
        ({"cache_error": "Read-only file system"}, "note cache: verdicts cannot be cached in .onnx-ci-cache: Read-only file system"),
        ({"process_error": "Operation not permitted"}, "stop isolation: cells cannot run in their own processes: Operation not permitted"),
    ],
)  # fmt: skip
def test_each_trouble_is_told_alone(facts, changes, said):
    (line,) = told(facts, **changes)
    assert line.startswith(said)


def test_what_stops_the_run_comes_first(facts):
    lines = told(facts, cache_error="full", process_error="none")
    assert [line.split()[0] for line in lines] == ["stop", "note"]


# --- the machine


@pytest.mark.slow
def test_a_cache_below_a_file_cannot_be_written(project):
    project.write("file", "")
    found = examine(load_settings(project.root, flags={"cache": "file/cache"}, environment={}), [])
    assert found.cache_error == "Not a directory"
    assert found.process_error == ""
    assert not (project.root / "file/cache").exists()


def test_processors_say_what_the_container_may_use(facts):
    assert describe(facts)["processors"] == "8"
    limited = dataclasses.replace(facts, usable_processors=2)
    assert describe(limited)["processors"] == "8, of which this process may use 2"


def test_memory_says_what_the_control_group_leaves(facts):
    assert describe(facts)["memory"] == "16 GiB"
    assert describe(dataclasses.replace(facts, memory_limit=2**32))["memory"] == "16 GiB, of which this process may use 4 GiB"
