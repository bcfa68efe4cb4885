"""Packages add commands to ``onnx-ci``; one that is broken costs neither the help of the others nor their use."""

from __future__ import annotations

import pytest
from toolbox.distributions import install

PASSED, USAGE, ENVIRONMENT = 0, 2, 4
CODE = '''
    import click

    @click.command()
    @click.argument("file")
    def sign(file):
        """Sign a file."""
        click.echo(f"signed {file}")

    no_command = "click"
'''


@pytest.fixture
def onnx_ci(project, tmp_path_factory):
    """Installs packages, each with commands, and runs ``onnx-ci`` beside them."""

    def run(*words, **packages):
        folder = tmp_path_factory.mktemp("site")
        for name, commands in packages.items():
            install(folder, f"{name}-onnx", {"onnx_ci.commands": commands}, {f"{name}.py": CODE})
        return project.command("onnx_ci", *words, is_fresh=True, PYTHONPATH=str(folder))

    return run


def packed(text):
    """Text without the line breaks and indentation of the help."""
    return "".join(text.split())


def test_a_command_of_a_package_is_listed_and_runs(onnx_ci):
    commands = {"sign": "acme:sign"}
    help = onnx_ci("-h", acme=commands)
    assert (help.returncode, help.stderr) == (PASSED, "")
    *_, heading, line = help.stdout.splitlines()
    assert (heading, line.split()) == ("From acme-onnx:", ["sign", "Sign", "a", "file."])
    done = onnx_ci("sign", "a.onnx", acme=commands)
    assert (done.returncode, done.stdout) == (PASSED, "signed a.onnx\n")
    assert "did you mean 'sign'?" in onnx_ci("sing", acme=commands).stderr


BROKEN = {
    "a module that is missing": (
        {"acme": {"sign": "nowhere:sign"}},
        "the command 'sign' of acme-onnx 1.0 cannot be loaded: ModuleNotFoundError: No module named 'nowhere'",
    ),
    "no click command": (
        {"acme": {"sign": "acme:no_command"}},
        "the command 'sign' of acme-onnx 1.0 has no main and get_short_help_str: its entry point must name a click command",
    ),
    "two packages": (
        {"acme": {"sign": "acme:sign"}, "other": {"sign": "other:sign"}},
        "other-onnx 1.0 adds the command 'sign', and so does acme-onnx 1.0: uninstall one of them",
    ),
}


@pytest.mark.parametrize(("packages", "said"), BROKEN.values(), ids=BROKEN)
def test_a_command_that_cannot_be_used_is_told_and_the_others_are_listed(onnx_ci, packages, said):
    help = onnx_ci("-h", **packages)
    assert (help.returncode, help.stderr) == (PASSED, "")
    assert packed(said) in packed(help.stdout)
    assert {"run", "doctor", "sign"} <= {line.split()[0] for line in help.stdout.splitlines() if line.startswith("  ")}
    done = onnx_ci("sign", "a.onnx", **packages)
    assert (done.returncode, done.stdout) == (ENVIRONMENT, "")
    assert done.stderr.startswith(f"onnx-ci: {said}")
    assert done.stderr.count("\n") == 1
    assert onnx_ci("config", **packages).returncode == PASSED


@pytest.mark.parametrize("name", ["list", "history"], ids=["of the gate", "of the tools"])
def test_a_name_of_ours_stays_ours(onnx_ci, name):
    taken = {name: "acme:sign"}
    said = f"acme-onnx 1.0 adds the command {name!r}, but that name is onnx-ci's own; update the package or uninstall it"
    assert packed(said) in packed(onnx_ci("-h", acme=taken).stdout)
    assert "Sign a file" not in onnx_ci(name, "-h", acme=taken).stdout
