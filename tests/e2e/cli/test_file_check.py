"""``onnx-ci verify`` without a recipe: files that exist, right and wrong, and what is no file of ours at all."""

from __future__ import annotations

import itertools
import os
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

PASSED, FAILED, USAGE = 0, 1, 2
NUMBERS = "no numbers were compared: name a recipe (--recipe=NAME), or use onnx-ci compare (with another file)\n"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 16\n"


@pytest.fixture
def check(project):
    return lambda *arguments, **environment: project.in_process("verify", *arguments, **environment)


@pytest.fixture
def with_stand_in(project):
    """The same in a Python of its own, which imports ``sitecustomize.py`` of the project."""
    path = os.pathsep.join([str(project.root), os.environ.get("PYTHONPATH", "")])
    return lambda *arguments: project.command("onnx_ci", "verify", *arguments, PYTHONPATH=path)


def model(external=None, change=None, in_attribute=False):
    """x + w, as bytes, with ``w`` as an initializer or the value of a Constant."""
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    if external is not None:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in external.items():
            weight.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    constant = [helper.make_node("Constant", [], ["w"], "constant", value=weight)] if in_attribute else []
    nodes = [*constant, helper.make_node("Add", ["x", "w"], ["y"], "/root/home/opt/Add")]
    graph = helper.make_graph(nodes, "main_graph", [x], [y], [] if in_attribute else [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    if change is not None:
        change(made)
    return made.SerializeToString()


def save(project, name="m.onnx", **how):
    path = project.root / name
    path.write_bytes(model(**how))
    return path


def below(done, name):
    """The lines below the line of a file that failed."""
    lines = iter(done.stdout.splitlines())
    assert any(line.startswith(f"{name} failed") for line in lines)
    return list(itertools.takewhile(lambda line: line.startswith(" "), lines))


def test_a_right_file_is_one_line_with_its_opset_and_ir_version(project, check):
    before = save(project).read_bytes()
    done = check("m.onnx", HOME="/root")
    assert (done.returncode, done.stdout, done.stderr) == (PASSED, f"m.onnx passed (opset 13, IR version 8)\n{NUMBERS}", "")
    assert (project.root / "m.onnx").read_bytes() == before
    assert [path.name for path in project.root.iterdir()] == ["m.onnx"]


def test_every_file_is_judged_and_one_bad_one_fails_all(project, check):
    save(project)
    (project.root / "bad.onnx").write_bytes(b"no model")
    done = check("m.onnx", "bad.onnx", "m.onnx")
    assert done.returncode == FAILED
    assert done.stdout.count("m.onnx passed") == 2
    assert "bad.onnx failed\n    checker: the file is not a readable ONNX model: " in done.stdout
    assert done.stdout.endswith(f"3 files: 2 passed, 1 failed\n{NUMBERS}")


NO_MODELS = {
    "empty": (b"", "the file is empty", "export it again"),
    "text": (b"hello\n", "the file is not a readable ONNX model", "export it again"),
    "truncated": (model()[:60], "the file is not a readable ONNX model", "truncated"),
    "pointer": (LFS.encode(), "the file is a Git LFS pointer", "Run git lfs pull."),
}


def test_what_is_no_model_is_one_message_with_its_remedy(project, check):
    for name, (content, _, _) in NO_MODELS.items():
        (project.root / name).write_bytes(content)
    done = check(*NO_MODELS)
    assert done.returncode == FAILED
    for name, (_, said, remedy) in NO_MODELS.items():
        text = " ".join(line.strip() for line in below(done, name))
        assert said in text
        assert remedy in text


def test_a_folder_and_a_missing_file_are_told_and_the_others_are_judged(project, check):
    save(project)
    (project.root / "models").mkdir()
    done = check("m.onnx", "models", "n.onnx")
    assert done.returncode == USAGE
    assert "models is a directory; pass a file in it" in done.stderr
    assert "there is no file n.onnx; did you mean 'm.onnx'?" in done.stderr
    assert "m.onnx passed" in done.stdout
    assert check().returncode == USAGE


EXTERNAL = [
    ({"location": "none.bin"}, "which does not exist"),
    ({"location": ""}, "which does not exist"),
    ({}, "which does not exist"),
    ({"location": "/etc/hosts"}, "which is an absolute path"),
    ({"location": "C:\\w.bin"}, "which is an absolute path"),
    ({"location": "../w.bin"}, "which is outside the file's folder"),
    ({"location": "w.bin", "length": "17"}, "which has 16 bytes, but 17 are needed"),
    ({"location": "w.bin", "offset": "4", "length": "16"}, "which has 16 bytes, but 20 are needed"),
    ({"location": "w.bin", "offset": "-4", "length": "16"}, "at offset -4 for 16 bytes, which is not valid"),
    ({"location": "w.bin", "length": "9" * 5000}, f"at offset 0 for {'9' * 18} bytes, which is not valid"),
    ({"location": "w" * 5000}, "which cannot be the name of a file: File name too long"),
    ({"location": "pointer.bin", "length": "16"}, "which is a Git LFS pointer"),
]


def test_external_data_must_be_there_whole_and_below_the_folder(project, check):
    (project.root / "w.bin").write_bytes(bytes(16))
    project.write("pointer.bin", LFS)
    said = {}
    for in_attribute in (False, True):
        for number, (external, words) in enumerate(EXTERNAL):
            path = save(project, f"{number}-{in_attribute}.onnx", external=external, in_attribute=in_attribute)
            said[path.name] = words
    done = check(*said)
    assert done.returncode == FAILED
    for name, words in said.items():
        text = " ".join(line.strip() for line in below(done, name))
        assert text.startswith("external-data: the data of tensor 'w' should be in ")
        assert words in text


def test_external_data_beside_the_file_passes_from_any_folder(project, check):
    (project.root / "sub").mkdir()
    (project.root / "sub/w.bin").write_bytes(bytes(16))
    save(project, "sub/m.onnx", external={"location": "w.bin", "offset": "0", "length": "16"})
    assert check("sub/m.onnx").returncode == PASSED


TEXTS = {
    "metadata of a node": lambda m: m.graph.node[0].metadata_props.add(key="k", value='File "/home/ann/net.py", line 3'),
    "metadata of the file": lambda m: m.metadata_props.add(key="k", value="made in /home/ann/nets/three"),
    "doc string": lambda m: setattr(m.graph.node[0], "doc_string", r"C:\Users\ann\net.py(3): forward"),
    "name of a node": lambda m: setattr(m.graph.node[0], "name", "/data/ann/nets/net.py"),
    "tensor": lambda m: setattr(m.graph.initializer[0], "doc_string", "/scratch/ann/net.pth"),
}


def test_absolute_paths_fail_the_file_unless_they_are_allowed(project, check):
    for place, change in TEXTS.items():
        save(project, place, change=change)
    done = check(*TEXTS)
    assert done.returncode == FAILED
    for place in TEXTS:
        message, remedy, *_ = below(done, place)
        assert message.startswith("    absolute-path: the file contains paths below ")
        assert "Clear each node's metadata_props" in remedy
    allowed = check(*TEXTS, "--rules=absolute-path=note")
    assert (allowed.returncode, allowed.stdout.count("absolute-path (note): ")) == (PASSED, len(TEXTS))


def test_what_only_looks_like_a_path_is_none(project, check):
    texts = ("see https://example.org/home/ann/net.py", "a/b/c.py", "/layer1/conv1/Conv", "x: /root/Gemm", "1/2")
    for number, text in enumerate(texts):
        save(project, f"{number}.onnx", change=lambda m, text=text: setattr(m.graph.node[0], "doc_string", text))
    assert check(*(f"{number}.onnx" for number in range(len(texts)))).returncode == PASSED


def test_the_checker_and_the_runtime_have_their_say(project, check):
    save(project, "unknown.onnx", change=lambda m: setattr(m.graph.node[0], "op_type", "Ad"))
    save(project, "future.onnx", change=lambda m: setattr(m.opset_import[0], "version", onnx.defs.onnx_opset_version() + 1))
    done = check("unknown.onnx", "future.onnx")
    assert done.returncode == FAILED
    assert done.stdout.count("checker: onnx.checker rejects the file: ") == 1  # it believes in any opset
    assert done.stdout.count("load-error: onnxruntime cannot load the file: ") == 2
    assert "load-error" not in check("--no-load", "unknown.onnx").stdout


def test_foreign_domains_are_told_and_left_to_the_runtime(project, check):
    def foreign(made):
        made.graph.node[0].domain = "acme"
        made.opset_import.add(domain="acme", version=1)

    save(project, change=foreign)
    assert check("m.onnx", "--no-load").stdout == f"m.onnx passed (opset 13, IR version 8, operators of acme)\n{NUMBERS}"
    loaded = check("m.onnx")
    assert (loaded.returncode, "use --no-load or --rules=load-error=note" in " ".join(loaded.stdout.split())) == (FAILED, True)


def test_a_misspelt_rule_is_exit_2(project, check):
    save(project)
    done = check("m.onnx", "--rules=absolute-paths=note")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "--rules: there is no rule 'absolute-paths'; did you mean 'absolute-path'?" in done.stderr


def test_what_needs_a_recipe_is_refused_without_one(project, check):
    save(project)
    for flag, said in (
        ("--opset=13", "--opset is about the export of a recipe; name it: --recipe=NAME"),
        ("--report=r.json", "--report is about the export of a recipe"),
        ("--recipe=net", "--no-load is about files without a recipe"),
    ):
        done = check("m.onnx", "--no-load", flag)
        assert (done.returncode, said in done.stderr) == (USAGE, True)


NATIVE = {"crash": "os.abort()", "timeout": "time.sleep(60)", "out-of-memory": "held = bytearray(2**28); time.sleep(60)"}


@pytest.mark.skipif(sys.platform != "linux", reason="files have processes of their own on Linux only")
@pytest.mark.parametrize("how", NATIVE)
def test_native_code_that_dies_costs_its_own_file_only(project, with_stand_in, how):
    """A stand-in for the native checker: what onnx calls, replaced where this test's Python starts."""
    save(project, "fatal.onnx")
    save(project)
    project.write(
        "sitecustomize.py",
        f"""
        import os, time
        import onnx.checker

        def check_model(path, full_check, true=onnx.checker.check_model):
            if "fatal" in str(path):
                print("last words", flush=True)
                {NATIVE[how]}
            true(path, full_check=full_check)

        onnx.checker.check_model = check_model
        """,
    )
    done = with_stand_in("fatal.onnx", "m.onnx", "--timeout=3", "--memory-limit=200MiB")
    assert done.returncode == FAILED
    first, message, remedy, *_ = done.stdout.splitlines()
    assert first == "fatal.onnx failed"
    assert message.startswith(f"    {how}: the process ")
    assert message.endswith("while checking the file")
    assert remedy.startswith("        remedy: ")
    assert "    last words\n" in done.stdout
    assert "m.onnx passed" in done.stdout


def test_no_runtime_is_exit_4_unless_nothing_is_loaded(project, with_stand_in):
    save(project)
    project.write(
        "sitecustomize.py",
        """
        import importlib.util

        def find_spec(name, package=None, true=importlib.util.find_spec):
            return None if name == "onnxruntime" else true(name, package)

        importlib.util.find_spec = find_spec
        """,
    )
    done = with_stand_in("m.onnx")
    assert (done.returncode, "ONNX Runtime is not installed" in done.stderr) == (4, True)
    assert with_stand_in("m.onnx", "--no-load").returncode == PASSED


def test_it_never_loads_torch(project):
    save(project)
    done = project.command("onnx_ci", "verify", "m.onnx", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert (done.returncode, {"onnx", "onnxruntime"} <= imported) == (PASSED, True)
    assert "torch" not in imported


def test_a_file_with_probe_weights_is_not_valid(project, check):
    save(project, change=lambda made: helper.set_model_props(made, {"onnx-ci.weights": "probe"}))
    done = check("m.onnx")
    assert done.returncode == FAILED
    assert "    probe-weights: the file has probe weights" in done.stdout
    save(project, change=lambda made: helper.set_model_props(made, {"onnx-ci.weights": "other"}))
    assert check("m.onnx").returncode == PASSED


@pytest.mark.parametrize("command", [("verify",), ("show",), ("ops",), ("compare", "evil.onnx")], ids=" ".join)
def test_names_in_a_file_cannot_begin_a_line_or_move_the_cursor(project, command):
    """A file in a pull request could otherwise give commands to GitHub, or hide what is printed before."""

    def rename(made):
        evil = "evil\x1b[2J\n::error::"
        node = made.graph.node[0]
        node.domain, node.op_type, node.name = f"{evil}domain", f"{evil}operator", f"{evil}node"
        made.opset_import.append(helper.make_opsetid(f"{evil}domain", 1))
        made.graph.name, made.producer_name = f"{evil}graph", f"{evil}producer"
        made.graph.input[0].name = node.input[0] = f"{evil}input"
        made.graph.output[0].name = node.output[0] = f"{evil}output"
        made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = f"{evil}axis"

    (project.root / "evil.onnx").write_bytes(model(change=rename))
    done = project.in_process("--color=always", command[0], "evil.onnx", *command[1:])
    printed = done.stdout + done.stderr
    assert "evil" in printed
    assert "Traceback" not in printed
    assert "\x1b[2J" not in printed
    assert not [line for line in printed.splitlines() if line.startswith("::")]
