"""Commands that the action starts, and reports that it merges."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from toolbox.fake_pip import inputs, replace_pip
from toolbox.records import cell, report

from onnx_ci import CellResult, Status
from onnx_ci.github import runner
from onnx_ci.github.install import install
from onnx_ci.results.files import write_json
from onnx_ci.results.rules import finding


def test_a_command_that_leaves_a_process_behind_does_not_keep_the_action_waiting(monkeypatch, capfd):
    monkeypatch.setattr(runner, "_AFTERWARDS", 0.1)
    script = "import subprocess, sys; print('said'); subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3)'])"
    ended = runner.run([sys.executable, "-c", script])
    assert (ended.code, ended.last_lines) == (0, ("said",))


def test_a_command_that_cannot_be_started_is_told():
    ended = runner.run(["/no/such/program"])
    assert ended.code == 127
    assert "/no/such/program cannot be started" in ended.message


@pytest.fixture
def pip(monkeypatch):
    return replace_pip(monkeypatch)


def test_merging_reports_needs_no_package_but_those_that_are_installed_for_it(pip, project):
    _, asked = pip
    install(inputs(mode="report", paths="reports"))
    ((_, _, *wanted), _) = asked[0]
    installed_for_it = {re.split("[^A-Za-z0-9_-]", each)[0] for each in wanted}
    project.write(
        "merge.py",
        f"""
        import sys

        class Installed:
            def find_spec(self, name, path=None, target=None):
                package = name.partition(".")[0]
                if package not in {installed_for_it | {"onnx_ci"}} and package not in sys.stdlib_module_names:
                    raise ModuleNotFoundError(name, name=name)

        sys.meta_path.insert(0, Installed())
        from onnx_ci.cli.main import main
        main()
        """,
    )
    broken = CellResult(cell=cell(), status=Status.FAILED, findings=(finding("baked-value", "at opset 9"),))
    write_json(report(broken), project.root / "r.json")
    merge = [sys.executable, "merge.py", "report", "--html=r.html", "--json=all.json", "--markdown=r.md", "r.json"]
    done = subprocess.run(merge, cwd=project.root, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "baked-value" in (project.root / "r.html").read_text(encoding="utf-8")
