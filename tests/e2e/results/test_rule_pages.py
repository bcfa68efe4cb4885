"""Every rule has a page, and the example on it breaks that rule."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from onnx_ci.results.rules import RULES
from onnx_ci.results.stages import PHASES

PAGES = Path(__file__).parents[3] / "docs" / "rules"


def example(rule):
    (code,) = re.findall(
        r"^```python\n(.*?)^```$", (PAGES / f"{rule}.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return code


def test_every_rule_has_a_page_that_begins_with_its_meaning():
    assert {path.stem for path in PAGES.glob("*.md")} == set(RULES)
    for rule in RULES.values():
        text = " ".join((PAGES / f"{rule.id}.md").read_text(encoding="utf-8").split())
        assert text.startswith(f"# `{rule.id}` {rule.meaning} Stage: {rule.phase}. Severity: {rule.severity}.")


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_example_of_a_page_breaks_its_rule(rule, project):
    if rule in ("crash", "disk-error", "timeout", "out-of-memory", "global-state") and sys.platform != "linux":
        pytest.skip("cells have processes of their own on Linux only")
    result = runpy.run_path(str(project.write("page.py", example(rule))))["result"]
    assert (rule, RULES[rule].severity) in {(each.rule, each.severity) for each in result.findings}


def test_the_command_lists_and_explains_every_rule(project):
    listed, stage = {}, None
    for line in project.in_process("why").stdout.splitlines():
        if line.startswith("  "):
            id, severity, meaning = line.split(maxsplit=2)
            listed[id] = stage, severity, meaning
        else:
            stage = line.removesuffix(":")
    assert listed == {rule.id: (rule.phase, rule.severity, rule.meaning) for rule in RULES.values()}
    assert list(dict.fromkeys(stage for stage, _, _ in listed.values())) == list(PHASES)
    shown = project.in_process("why", "baked-value")
    assert shown.stdout == (PAGES / "baked-value.md").read_text(encoding="utf-8")
    wrong = project.in_process("why", "baked-values")
    assert (wrong.returncode, "no rule 'baked-values'; did you mean 'baked-value'?" in wrong.stderr) == (2, True)
