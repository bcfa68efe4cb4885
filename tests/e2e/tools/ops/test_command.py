"""``onnx-ci ops``: every operator that cannot be exported, at each opset, in one go."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper
from toolbox.files import save

NETS = """
    class Three(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.qr(torch.relu(x))[1] + torch.special.bessel_j0(x) + torch.linalg.eigvalsh(x)

    @onnx_ci.recipe
    def three():
        return Three(), (torch.eye(3),)

    class Late(torch.nn.Module):
        def forward(self, x):
            total = torch.cumsum(x, 0)
            total.abs_()
            return torch.sort(x, 0)[0] + total + x[::2].sum()

    @onnx_ci.recipe
    def late():
        return Late(), (torch.randn(4),)

    @onnx_ci.recipe
    def fine():
        return torch.nn.ReLU(), (torch.randn(4),)
"""


@pytest.fixture
def ops(project):
    def ops(*arguments):
        is_file = any(argument.endswith(".onnx") for argument in arguments)
        done = project.in_process("ops", *arguments) if is_file else project.command("onnx_ci", "ops", *arguments)
        return done.returncode, [tuple(line.split("  ")) for line in squeezed(done.stdout)], done.stderr

    return ops


def squeezed(text):
    """The lines of a table, with two spaces between the words of each."""
    for line in text.splitlines():
        yield "  ".join(word.strip() for word in line.split("  ") if word)


@pytest.mark.slow
def test_all_of_three_operators_are_named_at_each_opset_with_both_exporters(project, ops):
    project.recipes(NETS)
    code, lines, _ = ops("three", "--opsets=9,13,18,20")
    assert code == 1
    at = lines.index(("three, dynamo at opsets 18,20:",))
    assert lines[0] == ("three, torchscript at opsets 9,13,18,20:",)
    assert [line[:2] for line in lines[1:at]] == [
        ("aten::linalg_qr", "not at 9,13,18,20"),
        ("aten::special_bessel_j0", "not at 9,13,18,20"),
        ("aten::linalg_eigvalsh", "not at 9,13,18,20"),
        ("no opset works",),
    ]
    assert lines[1][2] == "Exporting the operator 'aten::linalg_qr' to ONNX opset version 9 is not supported"
    assert sorted(line[0] for line in lines[at + 1 : -1]) == [
        "aten._linalg_eigh.default", "aten.linalg_qr.default", "prims.bessel_j0.default",
    ]  # fmt: skip
    assert {line[1] for line in lines[at + 1 : -1]} == {"not at 18,20"}
    assert lines[-1] == ("no opset works",)


def test_operators_that_some_opsets_have_are_told_with_the_lowest_opset_that_does(project, ops):
    project.recipes(NETS)
    code, lines, _ = ops("late", "--opsets=9-12", "--exporters=torchscript")
    assert code == 1
    assert [line[:2] for line in lines] == [
        ("late, torchscript at opsets 9-12:",),
        ("aten::cumsum", "not at 9-10"),
        ("aten::slice", "not at 9"),
        ("aten::sort", "not at 10"),
        ("the lowest opset that works is 11",),
    ]
    assert lines[2][2] == "step!=1 is currently not supported"


@pytest.mark.slow
def test_nothing_to_list_is_said_and_is_a_success(project, ops):
    project.recipes(NETS)
    assert ops("fine", "--opsets=13,18") == (
        0,
        [
            ("fine, torchscript at opsets 13,18:",),
            ("every operator can be exported",),
            ("fine, dynamo at opset 18:",),
            ("every operator can be exported",),
        ],
        "",
    )


def test_without_opsets_every_one_is_tried_that_torch_knows(project, ops):
    from torch.onnx import _constants

    project.recipes(NETS)
    _, lines, _ = ops("fine", "--exporters=torchscript")
    assert lines[0] == (f"fine, torchscript at opsets 9-{_constants.ONNX_MAX_OPSET}:",)


def test_what_follows_from_an_operator_that_is_refused_is_not_blamed(project, ops):
    project.recipes("""
        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.fft.fft(x).abs()

        @onnx_ci.recipe
        def net():
            return Net(), (torch.randn(4),)
    """)
    _, lines, _ = ops("net", "--opsets=13", "--exporters=torchscript")
    assert [line[0] for line in lines[1:]] == ["aten::fft_fft", "no opset works"]


def test_an_operator_that_may_only_follow_from_another_is_told_with_doubt(project, ops):
    project.recipes("""
        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.sort(torch.cumsum(x, 0) * 2.0, 0)[0]

        @onnx_ci.recipe
        def net():
            return Net(), (torch.randn(4),)
    """)
    _, lines, _ = ops("net", "--opsets=10", "--exporters=torchscript")
    assert [line[0] for line in lines[1:]] == ["aten::cumsum", "aten::sort", "no opset works"]
    assert not lines[1][2].endswith("(possibly caused by an earlier one)")
    assert lines[2][2].endswith("(possibly caused by an earlier one)")


def test_an_operator_keeps_the_underscores_of_its_name(project, ops):
    project.recipes("""
        class Net(torch.nn.Module):
            def forward(self, x):
                return x ^ 3

        @onnx_ci.recipe
        def net():
            return Net(), (torch.tensor([1, 2]),)
    """)
    _, lines, _ = ops("net", "--opsets=13", "--exporters=torchscript")
    assert [line[0] for line in lines[1:]] == ["aten::__xor__", "no opset works"]


def test_an_opset_that_the_exporter_does_not_write_is_no_operators_fault(project, ops):
    project.recipes(NETS)
    code, lines, _ = ops("late", "--opsets=23-24", "--exporters=torchscript")
    assert code == 1
    assert lines == [
        ("late, torchscript at opsets 23-24:",),
        ("(the export)", "not at 24", "the torchscript exporter raised RuntimeError: Unsupported onnx_opset_version: 24"),
        ("the lowest opset that works is 23",),
    ]


@pytest.mark.slow
def test_operators_within_branches_are_found(project, ops):
    project.recipes("""
        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.cond(x.sum() > 0, lambda x: torch.special.bessel_j0(x), lambda x: torch.special.bessel_j1(x), (x,))

        @onnx_ci.recipe(exporter="dynamo")
        def branches():
            return Net(), (torch.randn(3, 3),)

        @torch.jit.script
        def scripted(x, n: int):
            for i in range(n):
                x = torch.special.bessel_j0(x) + i
            return x

        class Loop(torch.nn.Module):
            def forward(self, x, n):
                return scripted(x, int(n))

        @onnx_ci.recipe(exporter="torchscript")
        def loop():
            return Loop(), (torch.randn(3), torch.tensor(2))
    """)
    _, lines, _ = ops("branches", "loop", "--opsets=18")
    assert [line[:2] for line in lines] == [
        ("branches, dynamo at opset 18:",),
        ("prims.bessel_j0.default", "not at 18"),
        ("prims.bessel_j1.default", "not at 18"),
        ("no opset works",),
        ("loop, torchscript at opset 18:",),
        ("aten::special_bessel_j0", "not at 18"),
        ("no opset works",),
    ]


FALLS = """
    class Falls(torch.nn.Module):
        def forward(self, x):
            if torch.onnx.is_in_onnx_export() and not torch.compiler.is_compiling():
                import os
                os._exit(9)
            return torch.linalg.qr(x)[1]

    @onnx_ci.recipe
    def falls():
        return Falls(), (torch.eye(3),)
"""


@pytest.mark.slow
def test_an_exporter_that_dies_costs_its_own_lines_only(project, ops):
    project.recipes(FALLS)
    code, lines, _ = ops("falls", "--opsets=17,18")
    assert code == 1
    assert lines == [
        ("falls, torchscript at opsets 17-18:",),
        ("(the export)", "not at 17-18", "the exporter's process ended by itself with exit code 9"),
        ("no opset works",),
        ("falls, dynamo at opset 18:",),
        ("aten.linalg_qr.default", "not at 18", "No decompositions registered for the real-valued input"),
        ("no opset works",),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_what_is_no_operators_fault_is_told_as_what_it_is(project, ops, isolation):
    project.recipes("""
        class Branches(torch.nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        @onnx_ci.recipe(exporter="dynamo")
        def branches():
            return Branches(), (torch.ones(3),)

        @onnx_ci.recipe(exporter="torchscript")
        def broken():
            raise ValueError("no such weights")
    """)
    code, lines, _ = ops("branches", "broken", "--opsets=18", f"--isolation={isolation}")
    assert code == 1
    assert lines[1][:2] == ("(the export)", "not at 18")
    assert lines[1][2].startswith("the dynamo exporter raised TorchExportError")
    assert lines[4][:2] == ("(the export)", "not at 18")
    assert "ValueError: no such weights" in lines[4][2]


@pytest.mark.slow
def test_recipes_are_named_by_name_by_file_or_by_both(project, ops):
    project.recipes(NETS)
    project.recipes(NETS.replace("def fine", "def other"), name="more/models.py")
    flags = ("--opsets=13", "--exporters=torchscript")
    assert [line[0] for line in ops("other", "three", "more/models.py", *flags)[1] if line[0].endswith(":")] == [
        "other, torchscript at opset 13:", "three, torchscript at opset 13:",
    ]  # fmt: skip
    _, lines, _ = ops("more/models.py", *flags)
    assert [line[0].split(",")[0] for line in lines if line[0].endswith(":")] == ["three", "late", "other"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tree", "onnx_recipes.py"], "there is no recipe 'tree'; did you mean 'three'?"),
        (["empty.py"], "there is no recipe in empty.py"),
        (
            ["fine", "--opsets=9-17", "--exporters=dynamo"],
            "dynamo supports no opset below 18; pass a higher one with --opsets",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_nearest(project, ops, arguments, said):
    project.recipes(NETS)
    project.write("empty.py", "")
    assert ops(*arguments) == (2, [], f"onnx-ci: {said}\n")


def test_a_file_that_cannot_be_imported_is_no_success_of_another(project, ops):
    project.recipes(NETS)
    project.write("broken.py", "import nothing_of_this_name")
    code, lines, errors = ops("onnx_recipes.py", "broken.py")
    assert (code, lines) == (2, [])
    assert "nothing_of_this_name" in errors
    assert errors.endswith("onnx-ci: not all recipes in onnx_recipes.py, broken.py can be listed\n")


def test_a_recipe_must_be_named(ops):
    code, _, said = ops()
    assert code == 2
    assert "Missing argument 'RECIPE|FILE.py|FILE.onnx…'" in said


# --- files


def in_file(*nodes, opset=17, ir_version=8, domains=(), functions=()):
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node(*node[:3], **node[3]) for node in nodes], "g", [x], [y])
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=functions)


def branches():
    """Two branches with a Neg each."""
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "branch", [], [out])
    return {"then_branch": graph, "else_branch": graph}


def test_the_operators_of_a_file_are_listed_with_those_of_subgraphs_and_functions(project, ops):
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 13)]
    )
    made = in_file(
        ("Cast", ["x"], ["c"], {"to": TensorProto.BOOL}), ("If", ["c"], ["i"], branches()),
        ("Twice", ["i"], ["t"], {"domain": "mine"}), ("Neg", ["t"], ["n"], {}), ("Gelu", ["n"], ["y"], {"domain": "acme"}),
        domains=["mine", "acme"], functions=[function],
    )  # fmt: skip
    save(made, project.root / "m.onnx")
    code, lines, _ = ops("m.onnx")
    assert code == 0
    assert lines == [
        ("m.onnx: 8 nodes, 6 operators; opset 17, mine 1, acme 1, IR version 8",),
        ("Add", "1", "since opset 13"),
        ("Cast", "1", "since opset 13"),
        ("If", "1", "since opset 16"),
        ("Neg", "3", "since opset 13"),
        ("acme.Gelu", "1", "not defined by onnx: the runtime must have it"),
        ("mine.Twice", "1", "a function in the file"),
        ("the lowest opset with these operators is 16; onnx 1.12.0 or newer knows the file's operator sets and IR version",),
    ]


@pytest.mark.parametrize(("opset", "ir_version", "release"), [(9, 4, "1.4.1"), (9, 8, "1.10.0"), (18, 8, "1.13.0")])
def test_the_release_is_the_first_that_knows_both_the_opset_and_the_ir_version(project, ops, opset, ir_version, release):
    save(in_file(("Neg", ["x"], ["y"], {}), opset=opset, ir_version=ir_version), project.root / "m.onnx")
    assert f"; onnx {release} or newer knows" in ops("m.onnx")[1][-1][0]


def test_files_that_cannot_be_listed_are_exit_2(project, ops):
    save(in_file(("Neg", ["x"], ["y"], {})), project.root / "m.onnx")
    (project.root / "text.onnx").write_text("hello")
    assert (ops("n.onnx")[0], "there is no file n.onnx; did you mean 'm.onnx'?" in ops("n.onnx")[2]) == (2, True)
    assert "text.onnx: the file is not a readable ONNX model" in ops("text.onnx")[2]
    assert "name them in two commands" in ops("m.onnx", "lstm")[2]
    assert "an ONNX file is listed as it is; leave out --opsets" in ops("m.onnx", "--opsets=13")[2]
