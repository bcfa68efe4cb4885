"""``onnx-ci ops``: every operator that cannot be exported, at each opset, in one go."""

from __future__ import annotations

import pytest

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
        done = project.command("onnx_ci", "ops", *arguments)
        return done.returncode, [tuple(line.split("  ")) for line in squeezed(done.stdout)], done.stderr

    return ops


def squeezed(text):
    """The lines of a table, with two spaces between the words of each."""
    for line in text.splitlines():
        yield "  ".join(word.strip() for word in line.split("  ") if word)


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


@pytest.mark.parametrize("isolation", ["process", "none"])
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


def test_recipes_are_named_by_name_by_file_or_by_both(project, ops):
    project.recipes(NETS)
    project.recipes(NETS.replace("def fine", "def other"), name="more/models.py")
    flags = ("--opsets=13", "--exporters=torchscript")
    assert [line[0] for line in ops("more/models.py::other", "fine", *flags)[1] if line[0].endswith(":")] == [
        "other, torchscript at opset 13:", "fine, torchscript at opset 13:",
    ]  # fmt: skip
    _, lines, _ = ops("more/models.py", *flags)
    assert [line[0].split(",")[0] for line in lines if line[0].endswith(":")] == ["three", "late", "other"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["thre"], "there is no recipe 'thre'; did you mean 'three'?"),
        (["onnx_recipe.py"], "there is no onnx_recipe.py; did you mean 'onnx_recipes.py'?"),
        (["onnx_recipes.py::tree"], "there is no recipe 'tree'; did you mean 'three'?"),
        (["fine", "other.py"], "onnx_recipes.py and other.py each have a recipe 'fine'; name them in two commands"),
        (["empty.py"], "there is no recipe in empty.py"),
        (
            ["fine", "--opsets=9-17", "--exporters=dynamo"],
            "dynamo supports no opset below 18; pass a higher one with --opsets",
        ),
        (["fine", "--opsets=x"], "--opsets: 'x' is not an opset; write numbers and ranges such as 9,11,13-17 or 18-"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_nearest(project, ops, arguments, said):
    project.recipes(NETS)
    project.write("empty.py", "")
    project.recipes(NETS, name="other.py")
    assert ops(*arguments) == (2, [], f"onnx-ci: {said}\n")


def test_a_recipe_must_be_named(ops):
    code, _, said = ops()
    assert code == 2
    assert "Missing argument 'RECIPE…'" in said
