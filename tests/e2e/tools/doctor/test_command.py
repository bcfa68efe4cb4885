"""``onnx-ci doctor``: what is here, as torch and pip say; and each thing that prevents cells from running, with its remedy."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

import pytest

from onnx_ci.config.settings import load_settings
from onnx_ci.environment.packages import Package, facts_on_cuda, inspect_packages
from onnx_ci.processes.supervisor import Death
from onnx_ci.tools.doctor import command
from onnx_ci.tools.doctor.command import troubles_with_machine, troubles_with_packages

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


@pytest.mark.slow
def test_here_the_run_can_work_and_torch_and_pip_describe_what_is_installed(project, doctor):
    done = doctor(PYTHONPROFILEIMPORTTIME="1")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (PASSED, "Cells can run here.")
    assert f"PyTorch version: {version('torch').partition('+')[0]}" in done.stdout  # a wheel's own may lack "+cu130"
    assert f"onnxscript=={version('onnxscript')}" in done.stdout
    assert project.run(sys.executable, "-P", "-m", "pip", "check").stdout.strip() in done.stdout
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "onnx_ci" in imported
    assert not imported & HEAVY


@pytest.mark.slow
def test_an_error_without_a_message_is_told_with_what_was_printed_before_it(project, doctor):
    """ONNX Runtime 1.18 beside numpy 2."""
    module = "import sys\nprint('AttributeError: _ARRAY_API not found', file=sys.stderr)\nraise ImportError"
    done = doctor(**instead(project, onnxruntime=module))
    assert "cannot be imported: ImportError: AttributeError: _ARRAY_API not found" in done.stdout
    assert "It is incompatible with the installed numpy: upgrade both." in done.stdout


@pytest.mark.slow
def test_what_stops_the_run_is_exit_4_with_the_remedy_and_torch_describes_the_rest(project, doctor):
    project.write("pyproject.toml", "[tool.onnx-ci]\nopset = 9\n")
    done = doctor(**instead(project, torch="raise ImportError('libcudart.so.12: cannot open shared object file')"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (ENVIRONMENT, "Cells cannot run here.")
    assert "PyTorch version: N/A" in done.stdout
    assert "error torch: torch " in done.stdout
    assert "cannot be imported: ImportError: libcudart.so.12: cannot open" in done.stdout
    assert "    remedy: Install the CUDA libraries, or the CPU build." in done.stdout
    assert "error settings: [tool.onnx-ci] has no setting 'opset'" in done.stdout


@pytest.mark.slow
def test_what_the_dynamo_exporter_lacks_is_named_by_doctor_and_by_the_cell(project, doctor):
    """An onnx-ir that is older than onnxscript requires has no member INT2, which says nothing to a user."""
    project.write(
        "instead/onnxscript-0.7.2.dist-info/METADATA", "Name: onnxscript\nVersion: 0.7.2\nRequires-Dist: onnx-ir>=99\n"
    )
    environment = instead(project, onnxscript="raise AttributeError('INT2')")
    for opsets, code, severity in (("17", PASSED, "note"), ("18", ENVIRONMENT, "error")):
        done = doctor(f"--opsets={opsets}", **environment)
        assert done.returncode == code
        assert f"{severity} onnxscript: onnxscript 0.7.2 requires onnx-ir>=99, and " in done.stdout
        assert "    remedy: pip install 'onnx-ir>=99'\n" in done.stdout
    project.recipes("""
    @onnx_ci.recipe(input_names=["x"], output_names=["y"], exporter="dynamo", opsets=18)
    def net():
        return Scale(), (torch.rand(2, 4),)
    """)
    done = project.command("onnx_ci", "run", **environment)
    assert "remedy: Install what the exporter needs: pip install 'onnx-ir>=99'.\n" in done.stdout


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("import os; print('last words', file=__import__('sys').stderr, flush=True); os.abort()", "the process that imports it was killed by SIGABRT: last words"),
        ("import os; os._exit(7)", "the process that imports it ended by itself with exit code 7"),
        ("raise SystemExit(3)", "SystemExit: 3"),
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


# --- what follows from the packages and settings


ONNX = Package(version="1.23.2", facts={"opset": 28})
RUNTIME = Package(version="1.31.1", facts={"providers": ["CPUExecutionProvider"], "opset": 26})
GPU_RUNTIME = Package(version="1.31.1", facts={"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"], "opset": 26})
FALLS_BACK = Package(version="1.31.1", facts={**GPU_RUNTIME.facts, "runs_on_cuda": False})
OTHER_CUDA = Package(version="1.31.1", facts={**FALLS_BACK.facts, "cuda": "12.8", "cuda_lacks": "libcublasLt.so.12"})
LACKS_CUDNN = Package(version="1.31.1", facts={**FALLS_BACK.facts, "cuda": "13.1", "cuda_lacks": "libcudnn.so.9"})


def torch(cuda=None, gpus=(), **facts):
    return Package(version="2.13.0", facts={"cuda": cuda, "gpus": list(gpus), **facts})


@pytest.fixture
def told(project):
    """Each trouble with the packages as one line. Without arguments, the machine is healthy and has no GPU."""

    def told(packages=(), **flags):
        settings = load_settings(project.root, flags=flags, environment={})
        packages = {"torch": torch(), "onnx": ONNX, "onnxruntime": RUNTIME, **dict(packages)}
        troubles = troubles_with_packages(settings, packages)
        return [f"{'stop' if each.stops else 'note'} {each.subject}: {each.message} -> {each.remedy}" for each in troubles]

    return told


def test_healthy_packages_are_no_trouble(told):
    assert told() == []
    assert told({"torch": torch("13.0", ["H200", "H200"]), "onnxruntime": GPU_RUNTIME}, devices="cpu,cuda:1") == []


@pytest.mark.parametrize(
    ("packages", "said", "advice"),
    [
        ({}, "the settings request cuda, but torch 2.13.0 is built for the CPU", "onnx-ci[cuda]"),
        ({"torch": torch("13.0", cuda_error="too old")}, "built for CUDA 13.0, cannot use a GPU: too old", "--gpus all"),
        ({"torch": torch("13.0", ["H200"]), "onnxruntime": OTHER_CUDA}, "find libcublasLt.so.12; it is built for CUDA 12.8, and torch for 13.0", "Install a torch for CUDA 12.8, or"),
        ({"torch": torch("13.0", ["H200"]), "onnxruntime": LACKS_CUDNN}, "does not find libcudnn.so.9 -> ", "onnxruntime-gpu[cuda,cudnn]==1.31.1"),
        ({"torch": torch("13.0", ["H200"])}, "torch can use H200, but ONNX Runtime is built for the CPU", "pip uninstall onnxruntime"),
        ({"torch": torch("13.0", ["H200"]), "onnxruntime": FALLS_BACK}, "ONNX Runtime falls back to the CPU", "onnxruntime-gpu[cuda,cudnn]"),
    ],
)  # fmt: skip
def test_what_cuda_lacks_is_an_error_where_it_is_requested(told, packages, said, advice):
    assert told(packages) == []
    (line,) = told(packages, devices="cpu,cuda")
    assert line.startswith("stop cuda: ")
    assert said in line
    assert advice in line


def test_a_gpu_beyond_those_that_there_are_is_told(told):
    (line,) = told({"torch": torch("13.0", ["H200", "H200"]), "onnxruntime": GPU_RUNTIME}, devices="cpu,cuda:2")
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


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({"onnxruntime": Package(version="1", facts={"providers": [], "opset": 26})}, "stop onnxruntime: ONNX Runtime has no CPUEx"),
        ({"onnx": Package(version="1", error="ImportError: x")}, "stop onnx: onnx 1 cannot be imported: ImportError: x -> Reinstall it"),
        ({"torchvision": Package(version="1", error="RuntimeError: operator torchvision::nms does not exist")}, "note torchvision: "),
        ({"onnxscript": Package(version="1", error="ModuleNotFoundError: No module named 'ml_dtypes'")}, "note onnxscript: "),
    ],
)  # fmt: skip
def test_each_broken_package_is_told_alone(told, packages, said):
    (line,) = told(packages)
    assert line.startswith(said)


def test_an_opset_beyond_those_that_are_supported_is_told(told):
    (line,) = told(opsets="27")
    assert line.startswith("stop onnxruntime: opset 27 is requested, but onnxruntime 1.31.1 supports opsets up to 26")
    assert told(opsets="18-") == []


def test_what_is_not_installed_is_told(project):
    settings = load_settings(project.root, environment={})
    assert [each.message for each in troubles_with_packages(settings, {"torch": torch()})] == ["onnx is not installed"]


# --- the machine


@pytest.mark.parametrize(
    ("name", "instead", "said"),
    [
        ("missing_runtime", lambda: ("none", "get one"), "onnxruntime: none -> get one"),
        ("tempfile.gettempdir", lambda: (_ for _ in ()).throw(FileNotFoundError), "disk: there is no writable folder for temporary files"),
        ("run_in_child", lambda *_: iter([Death(cause="crash", message="was killed by SIGSYS", log="")]), "isolation: cells cannot run in their own processes: a process was killed by SIGSYS"),
    ],
)  # fmt: skip
def test_each_trouble_with_the_machine_is_told_alone(project, monkeypatch, name, instead, said):
    settings = load_settings(project.root, environment={})
    assert list(troubles_with_machine(settings)) == []
    monkeypatch.setattr(f"{command.__name__}.{name}", instead)
    (trouble,) = troubles_with_machine(settings)
    assert f"{trouble.subject}: {trouble.message} -> {trouble.remedy}".startswith(said)
