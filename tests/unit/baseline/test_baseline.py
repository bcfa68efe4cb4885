"""Committed baselines: the text, what is said of a change, the folder. Without torch; the gate is in test_baseline_gate."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path

import pytest
from toolbox.recorded import FACTS, VERSIONS, WEIGHTS, changed, keeper, result_of, settings, values

import onnx_ci
from onnx_ci import ConfigurationError
from onnx_ci.baseline.changes import changed_versions, changes, describe_renamed
from onnx_ci.baseline.check import Baselines
from onnx_ci.baseline.entry import entry_of
from onnx_ci.baseline.file import Baseline, Place, as_text, read
from onnx_ci.baseline.folder import BaselineFolder, file_name
from onnx_ci.config.settings import load_settings
from onnx_ci.config.values import BASELINE_LIMITS
from onnx_ci.engine.events import CellFinished
from onnx_ci.engine.session import Session
from onnx_ci.environment.versions import versions
from onnx_ci.matrix.plan import task_of
from onnx_ci.results.records import (
    CellEvidence,
    Severity,
    SkipCause,
    Status,
)
from onnx_ci.results.rules import finding
from onnx_ci.results.verdict import broken_rules, decide, with_severities

HERE = Path("kept/net.toml")


def entry(facts=FACTS, packages=VERSIONS, **other):
    found = result_of(facts, **other)
    return entry_of(found, found.facts, packages)


def baseline(**entries):
    """A baseline of ``net`` with entries by opset: ``opset13=entry()``."""
    places = {Place("cpu", "torchscript", int(name.removeprefix("opset"))): each for name, each in entries.items()}
    return Baseline(recipe="net", cells=places)


def said(new, old=FACTS, limits=BASELINE_LIMITS, **other):
    return [(each.kind, each.text) for each in changes(entry(old), entry(new, **other), limits)]


# --- what is said of a change


def test_equal_entries_have_no_changes():
    assert said(FACTS) == []


OTHER_OUTPUTS = (FACTS.outputs[0], dataclasses.replace(FACTS.outputs[1], name="logits"))
DOUBLED = dataclasses.replace(FACTS.inputs[0], dtype="double")
FIXED = dataclasses.replace(FACTS.inputs[0], dims=("3", "4"))
LONGER = dataclasses.replace(FACTS.outputs[1], dims=("batch", "5"))


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (
            changed(outputs=OTHER_OUTPUTS, values=(values("y"), values("logits", mean=0.1))),
            [("signature", "output 'z' renamed to 'logits'")],
        ),
        (changed(outputs=FACTS.outputs[::-1]), [("signature", "outputs reordered: y, z → z, y")]),
        (changed(outputs=FACTS.outputs[:1], values=FACTS.values[:1]), [("signature", "output 'z' was removed")]),
        (
            changed(outputs=(*FACTS.outputs, dataclasses.replace(FACTS.outputs[0], name="w"))),
            [("signature", "output 'w' was added")],
        ),
        (changed(inputs=(DOUBLED,)), [("signature", "input 'x' float → double")]),
        (changed(inputs=(FIXED,)), [("signature", "input 'x' axis 0 batch → 3, now static")]),
        (changed(outputs=(FACTS.outputs[0], LONGER)), [("signature", "output 'z' axis 1 4 → 5")]),
        (changed(operators={"Cast": 2, "Gemm": 1, "Relu": 1}), [("operators", "+2 Cast, −1 Gemm")]),
        (changed(ir_version=8), [("format", "IR version 7 → 8")]),
        (changed(domains={"com.acme": 1}), [("format", "domain 'com.acme' absent → 1")]),
        (changed(file_bytes=2760), [("size", "file +38 % (1.953 KiB → 2.695 KiB)")]),
        (changed(initializers=5), [("size", "+1 initializer")]),
        (changed(values=(values("y", mean=0.6), values("z", mean=0.1))), [("values", "values of 'y' changed by 1e+06 times their noise: mean 0.5 → 0.6")]),
        (changed(values=(values("y", mean=0.1), values("z"))), [("values", "outputs 'y' and 'z' swapped their values")]),
        (changed(values=FACTS.values[:1]), [("values", "values of 'z' can no longer be compared")]),
        (
            changed(weights=dataclasses.replace(WEIGHTS, projections=(0.1, -0.2, 0.3, 0.5)), values=(values("y", 9.0),)),
            [("weights", "the weights differ (same shapes, different values; probe weights also change with what the model computes), so values are not compared")],
        ),
        (
            changed(weights=dataclasses.replace(WEIGHTS, tensors=4, values=36)),
            [("weights", "the weights differ (2 tensors → 4, 20 elements → 36), so values are not compared")],
        ),
        (
            changed(arguments=dataclasses.replace(FACTS.arguments, layout="00000000")),
            [("inputs", "the inputs differ (different shapes or types), so values are not compared")],
        ),
    ],
)  # fmt: skip
def test_each_change_has_its_kind_and_words(new, expected):
    assert said(new) == expected


def test_names_that_end_alike_are_renamed_in_one_line():
    # transformers 5.24 names what 5.23 calls input.past_key_values.layers.0.keys and output.past_key_values.layers.0.keys.
    ends = ["layers.0.keys", "layers.0.values", "layers.1.keys"]
    inputs = [(f"input.past_key_values.{end}", f"past_key_values.{end}") for end in ends]
    assert describe_renamed("input", inputs) == ["inputs 'input.past_key_values.*' renamed to 'past_key_values.*'"]
    outputs = [("logits", "scores"), *((f"output.past_key_values.{end}", f"cache.{end}") for end in ends)]
    assert describe_renamed("output", outputs) == [
        "output 'logits' renamed to 'scores'",
        "outputs 'output.past_key_values.*' renamed to 'cache.*'",
    ]


def test_outputs_that_change_places_with_their_types_are_swapped():
    outputs = (FACTS.outputs[0], LONGER)
    swapped = (dataclasses.replace(LONGER, name="y"), dataclasses.replace(FACTS.outputs[0], name="z"))
    new = changed(outputs=swapped, values=(values("y", mean=0.1), values("z")))
    assert said(new, old=changed(outputs=outputs)) == [("signature", "outputs 'y' and 'z' swapped")]


def test_drift_and_observability():
    assert said(FACTS, drift=410) == [("output-drift", "drift of 'y' 1.9 → 410")]
    (better,) = changes(entry(drift=410), entry(), BASELINE_LIMITS)
    assert (better.text, better.is_harmless) == ("drift of 'y' 410 → 1.9", True)
    assert said(FACTS, drift=7.5) == [], "below what is quiet, times the limit"
    assert said(FACTS, drift=math.inf) == [("output-drift", "drift of 'y' 1.9 → inf")]
    assert said(FACTS, observability=0.6) == [("observability", "observability 100 % → 60 %")]
    noisy = changed(values=(dataclasses.replace(values("y"), noise=1e-5), values("z", mean=0.1)))
    assert said(noisy) == [("output-drift", "noise of 'y' 1e-07 → 1e-05")]


@pytest.mark.parametrize(("units", "moved"), [(60, False), (68, True)])
def test_values_compare_by_noise(units, moved):
    new = changed(values=(values("y", mean=0.5 + units * 1e-7), values("z", mean=0.1)))
    assert bool(said(new)) is moved
    assert bool(said(new, limits={**BASELINE_LIMITS, "values": 128})) is False


def test_integers_have_no_noise():
    exact = dataclasses.replace(values("y", mean=5.0), noise=0.0)
    other = dataclasses.replace(values("y", mean=6.0), noise=0.0)
    assert said(changed(values=(exact,)), old=changed(values=(exact,))) == []
    assert [kind for kind, _ in said(changed(values=(other,)), old=changed(values=(exact,)))] == ["values"]


def test_nan_and_infinity_are_values_like_others():
    strange = dataclasses.replace(values("y"), sample=(math.nan, math.inf, 1.0))
    assert said(changed(values=(strange,)), old=changed(values=(strange,))) == []
    assert [kind for kind, _ in said(changed(values=(values("y"),)), old=changed(values=(strange,)))] == ["values"]


def test_limits_allow_counts_and_sizes():
    new = changed(operators={"Cast": 2, "Gemm": 2, "Relu": 1}, file_bytes=2760, initializers=6)
    assert said(new, limits={**BASELINE_LIMITS, "counts": 2, "size": 0.4}) == []


def test_the_last_digits_of_weights_may_differ():
    projections = tuple(each + 3e-6 for each in WEIGHTS.projections)
    assert said(changed(weights=dataclasses.replace(WEIGHTS, norm=3.000003, projections=projections))) == []


def test_versions_are_without_their_builds_and_machines():
    assert {line[-1] for line in entry() if line[0] == "versions"} == {"onnxruntime", "torch"}
    gpu = {"onnxruntime-gpu": "1.31.1", "torch": "2.13.0+cu126", "openvino": "1"}
    assert changed_versions(entry(), entry(packages=gpu)) == ""
    assert changed_versions(entry(), entry(packages={**VERSIONS, "onnxruntime": "1.32.0"})) == "onnxruntime 1.31.1 → 1.32.0"


# --- the text


WHOLE = baseline(opset9=entry(changed(ir_version=4), opset=9), opset10=entry(opset=10), opset13=entry())


def test_the_text_reads_back():
    odd = dataclasses.replace(values('y"]\n\x7fα'), sample=(math.nan, -math.inf, 1e-300))
    for each in (WHOLE, baseline(opset9=entry(changed(values=(odd,), domains={"a.b": 1}), opset=9))):
        again = read(as_text(each), HERE)
        assert again.recipe == each.recipe
        assert str(again.cells) == str({place: dict(entry) for place, entry in again.cells.items()})
        assert as_text(again) == as_text(each)
        assert {place: set(entry) for place, entry in again.cells.items()} == {p: set(e) for p, e in each.cells.items()}


@pytest.mark.parametrize("dims", [None, (), ("?",), ("batch", "4"), ("Max(1, s0)", "(2*s0 + Mod(s1, 3))", "4")])
def test_a_declared_type_is_read_back_as_it_was(dims):
    declared = dataclasses.replace(FACTS.outputs[0], dims=dims)
    text = as_text(baseline(opset13=entry(changed(outputs=(declared, FACTS.outputs[1])))))
    (again,) = read(text, HERE).cells.values()
    assert (again["output", "y"], again["output", "z"]) == (declared, FACTS.outputs[1])


def test_an_axis_with_a_comma_in_its_name_is_no_change():
    odd = changed(outputs=(dataclasses.replace(FACTS.outputs[0], dims=("rows, columns", "4")), FACTS.outputs[1]))
    written = baseline(opset13=entry(odd))
    (again,) = read(as_text(written), HERE).cells.values()
    assert changes(again, entry(odd), BASELINE_LIMITS) == []
    assert as_text(read(as_text(written), HERE)) == as_text(written)


def test_a_fact_is_one_line_and_names_opsets_only_where_they_differ():
    lines = as_text(WHOLE).splitlines()
    assert 'opsets = "9-10,13"' in lines
    assert 'ir-version = { 9 = 4, "10,13" = 7 }' in lines
    assert "Gemm = 2" in lines
    assert 'y = "float[batch, 4]"' in lines
    assert max(map(len, lines)) < 128


def test_the_text_holds_nothing_of_the_machine():
    text = as_text(WHOLE)
    assert not any(word in text for word in ("/", "\\", "platform", "python", "+cpu"))


def diff_lines(old, new):
    """The lines that git says were taken and given."""
    import difflib

    found = difflib.unified_diff(as_text(old).splitlines(), as_text(new).splitlines(), n=0, lineterm="")
    return [line for line in found if line[0] in "+-" and line[:3] not in ("+++", "---")]


def test_an_added_operator_touches_one_line():
    new = changed(operators={**FACTS.operators, "Cast": 2})
    lines = diff_lines(
        WHOLE, baseline(opset9=entry(changed(ir_version=4), opset=9), opset10=entry(opset=10), opset13=entry(new))
    )
    assert lines == ["+Cast = { 13 = 2 }"]


WRONG = {
    "a merge conflict": (lambda text: text.replace("Gemm = 2", "<<<<<<< HEAD\nGemm = 2\n=======\nGemm = 3\n>>>>>>> other"), ":24 contains a merge conflict"),
    "cut in a line": (lambda text: text[: text.index("Gemm") + 6], "cannot be read"),
    "cut between lines": (lambda text: text[: text.index("Gemm")], "is truncated: its last line is not '# the end'"),
    "a newer schema": (lambda text: text.replace("schema = 1", "schema = 2"), "has schema 2, but this onnx-ci reads 1; install"),
    "no schema": (lambda text: text.replace("schema = 1", "name = 1"), "is not a baseline of onnx-ci"),
    "no recipe": (lambda text: text.replace('recipe = "net"', ""), "recipe is None but should be a name"),
    "a misspelt fact": (lambda text: text.replace("ir-version", "ir-versoin"), "has no fact 'ir-versoin'; did you mean 'ir-version'?"),
    "a text for a number": (lambda text: text.replace("Gemm = 2", 'Gemm = "2"'), "operators.Gemm in [torchscript.cpu] is '2' but should be an integer"),
    "a number for a table": (lambda text: text.replace("[torchscript.cpu.operators]\nGemm = 2\nRelu = 1\n", "").replace("opsets", "operators = 1\nopsets"), "operators is 1 but should be a table"),
    "a fact that is gone": (lambda text: text.replace("initializers = 4\n", ""), "[torchscript.cpu] at opset 9: initializers is missing"),
    "an output without a type": (lambda text: text.replace('z = "float[batch, 4]"\n', ""), "output.z is missing"),
    "a type that does not end": (lambda text: text.replace('z = "float[batch, 4]"', 'z = "float[batch, 4"'), "output.z in [torchscript.cpu] is 'float[batch, 4' but should be a type such as"),
    "an opset that is not recorded": (lambda text: text.replace("{ 9 = 4,", "{ 8 = 4,"), "ir-version in [torchscript.cpu] names opset 8, which is not recorded"),
    "an opset twice": (lambda text: text.replace("{ 9 = 4,", '{ 9 = 4, "9,10" = 4,'), "names opset 9 twice"),
    "no opsets": (lambda text: text.replace('opsets = "9-10,13"\n', ""), "[torchscript.cpu] opsets:"),
    "another exporter": (lambda text: text.replace("torchscript", "torchscrpt"), "[torchscrpt] is not an exporter; did you mean 'torchscript'?"),
    "two of a name": (lambda text: text.replace("Gemm = 2", "Gemm = 2\nGemm = 3"), "cannot be read"),
    "something else": (lambda text: "no TOML at all\n", "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_cannot_be_used_says_what_is_wrong_and_what_to_do(name):
    spoil, message = WRONG[name]
    text = spoil(as_text(WHOLE))
    assert text != as_text(WHOLE)
    with pytest.raises(ConfigurationError) as caught:
        read(text, HERE)
    told = str(caught.value)
    assert told.startswith(str(HERE)) and message in told
    assert "onnx-ci baseline update" in told or "install the onnx-ci that wrote it" in told
    assert "\n" not in told.replace("\\n", "")


def test_files_after_passes_have_sections_of_their_own():
    places = [Place("cpu", "torchscript", opset, graph_pass) for opset in (13, 14) for graph_pass in ("", "float16", "my+pass")]
    written = Baseline(recipe="net", cells={place: entry() for place in places})
    text = as_text(written)
    assert '[torchscript."cpu+float16"]' in text
    assert read(text, HERE) == written


def test_a_section_without_the_name_of_its_pass_is_refused():
    with pytest.raises(ConfigurationError, match=r"\[torchscript.cpu\+\] is not a device"):
        read(as_text(WHOLE).replace("[torchscript.cpu", '[torchscript."cpu+"'), HERE)


def test_a_file_that_people_edit_stays_readable():
    text = "# mine\n" + as_text(WHOLE).replace("Gemm = 2", "# a remark\nGemm = 3")
    assert read(text, HERE).cells[Place("cpu", "torchscript", 13)]["operators", "Gemm"] == 3


# --- the folder


@pytest.mark.parametrize(
    "recipe", ["../evil", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "Net", "NET", "con", "a:b", "ä", "x" * 300, "net-0a1b2c3d", "-x", "a.b", "\ud800"]
)  # fmt: skip
def test_a_file_never_lies_outside_the_folder(recipe):
    name = file_name(recipe)
    assert Path(name).name == name and not name.startswith(("-", ".")) and len(name) < 100
    assert name != file_name("net") and name == name.lower()


def test_names_that_differ_have_files_that_differ_whatever_the_file_system():
    names = ["net", "Net", "NET", "n.et", "n-et", "ne/t", "net ", "ner"]
    assert len({file_name(each).lower() for each in names}) == len(names)


def test_plain_names_are_files_as_they_are():
    assert [file_name(each) for each in ("lstm", "resnet_18", "vit-b")] == ["lstm.toml", "resnet_18.toml", "vit-b.toml"]


def test_a_file_with_the_name_of_another_recipe_is_refused(tmp_path):
    folder = BaselineFolder(tmp_path)
    folder.store(WHOLE)
    (tmp_path / "net.toml").rename(tmp_path / "other.toml")
    with pytest.raises(ConfigurationError, match=r"is the baseline of 'net'; rename it to net\.toml"):
        folder.load("other")


def test_the_next_process_removes_what_a_killed_one_left(tmp_path):
    (tmp_path / ".net.toml.abcd1234.tmp").write_text("half")
    (tmp_path / ".gitattributes").write_text("mine")
    folder = BaselineFolder(tmp_path)
    with folder.locked():
        folder.store(WHOLE)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".gitattributes", "net.toml"]


def test_a_folder_that_cannot_be_written_is_reported_before_the_work(project):
    project.write("kept", "a file")
    baselines = Baselines(settings(project, "update", baseline_folder="kept"), VERSIONS)
    with pytest.raises(ConfigurationError, match=r"baselines cannot be written to .*kept"):
        baselines.open(["net"])


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_reported_before_the_work(project):
    (project.root / "onnx-baselines").mkdir(mode=0o555)
    with pytest.raises(ConfigurationError, match=r"baselines cannot be written .*onnx-baselines"):
        Baselines(settings(project, "update"), VERSIONS).open(["net"])


# --- checking and recording


def judge(baselines, evidence, allow=()):
    """The verdict on a cell without expectations, with what its baseline says."""
    found = baselines.findings(
        evidence, is_clean=not broken_rules(with_severities(evidence.findings, dict.fromkeys(allow, Severity.NOTE)))
    )
    return decide(dataclasses.replace(evidence, findings=(*evidence.findings, *found)), allow=allow)


def kept(project, name="net"):
    return project.root / "onnx-baselines" / f"{name}.toml"


def test_off_does_nothing(project):
    baselines = keeper(project, "off")
    baselines.open(["net"])
    assert judge(baselines, result_of()) == result_of()
    assert not (project.root / "onnx-baselines").exists()


def test_a_cell_without_a_baseline_fails_with_the_command_that_records_it(project):
    judged = judge(keeper(project, "check"), result_of())
    (found,) = judged.findings
    assert (judged.status, found.rule) == (Status.FAILED, "baseline-missing")
    assert found.message == "nothing is recorded for 'net'"
    assert found.remedy.endswith("onnx-ci baseline update '--select=net::*' onnx_recipes.py")
    assert not (project.root / "onnx-baselines").exists(), "a check writes nothing"


def test_another_opset_is_named_beside_those_that_are_recorded(project):
    keeper(project, "update").record([result_of(opset=13)])
    (found,) = judge(keeper(project, "check"), result_of(opset=17)).findings
    assert found.message == "nothing is recorded at opset 17 (torchscript, cpu); recorded: opset 13 (torchscript, cpu)"


@pytest.mark.parametrize(
    ("rules", "status", "severities"),
    [
        ("baseline-missing=note", Status.PASSED, [Severity.NOTE]),
        ("baseline-missing=ignore", Status.PASSED, []),
        ("baseline-size=note", Status.FAILED, [Severity.ERROR]),
        ("other*:baseline-missing=note", Status.FAILED, [Severity.ERROR]),
    ],
)
def test_a_project_gives_severities_to_changes(project, rules, status, severities):
    judged = judge(keeper(project, "check", rules=rules), result_of())
    assert (judged.status, [each.severity for each in judged.findings]) == (status, severities)


def test_what_was_recorded_is_checked(project):
    lines = keeper(project, "update").record([result_of(opset=opset) for opset in (9, 10)])
    assert lines == ["net torchscript cpu, opsets 9-10: new"]
    assert judge(keeper(project, "check"), result_of(opset=9)).status is Status.PASSED
    judged = judge(keeper(project, "check"), result_of(changed(operators={"Cast": 1}), opset=9))
    (found,) = judged.findings
    assert (judged.status, found.rule, found.baseline_change) == (Status.FAILED, "baseline-drift", "operators")
    assert found.message == "+1 Cast, −2 Gemm, −1 Relu"
    allowed = judge(keeper(project, "check"), result_of(changed(operators={"Cast": 1}), opset=9), ["baseline-drift"])
    assert allowed.status is Status.PASSED


def test_values_that_now_depend_on_rounding_are_a_note(project):
    keeper(project, "update").record([result_of()])
    judged = judge(keeper(project, "check"), result_of(changed(values=FACTS.values[:1])))
    (found,) = judged.findings
    assert (judged.status, found.severity) == (Status.PASSED, Severity.NOTE)
    assert found.message == "values of 'z' can no longer be compared"


def test_an_improvement_is_a_note(project):
    keeper(project, "update").record([result_of(drift=410)])
    judged = judge(keeper(project, "check"), result_of())
    assert [(each.severity, each.message) for each in judged.findings] == [(Severity.NOTE, "drift of 'y' 410 → 1.9")]
    assert judged.status is Status.PASSED


def test_changed_packages_are_named_beside_the_change(project):
    keeper(project, "update").record([result_of()])
    newer = keeper(project, "check", {**VERSIONS, "onnxruntime": "1.32.0"})
    (found,) = judge(newer, result_of()).findings
    assert (found.severity, found.message) == (Severity.NOTE, "onnxruntime 1.31.1 → 1.32.0, and nothing else changed")
    (found,) = judge(newer, result_of(drift=15)).findings
    assert found.message == "drift of 'y' 1.9 → 15; meanwhile onnxruntime 1.31.1 → 1.32.0"


class FakeEngine:
    """Finds what it is told to find."""

    def __init__(self, evidence):
        self.evidence = evidence

    def expect(self, specs):
        pass

    def events(self, spec, artifact=None):
        yield CellFinished(evidence=self.evidence)

    def close(self):
        pass


def run_session(project, monkeypatch, evidence, *, mode="check", **keywords):
    """The verdict of a session on a cell of which ``evidence`` was found; ``keywords`` are those of its recipe."""
    monkeypatch.setattr("onnx_ci.engine.scheduler.open_engine", lambda *_, **__: FakeEngine(evidence))
    recipe = onnx_ci.recipe(name="net", **keywords)(lambda: None)
    chosen = settings(project, mode)
    with Session(chosen) as session:
        return session.judge(task_of(evidence.cell, recipe, chosen))


DRIFTS = finding("numeric-drift", "output 'y' is wrong")
KNOWN = onnx_ci.known_failure("numeric-drift", "a known fault")
NOT_RECORDED = onnx_ci.known_failure("baseline-missing", "still being written")
MOVED = onnx_ci.known_failure("baseline-drift", "a release is under way")


def found_in(facts=FACTS, *findings):
    return dataclasses.replace(evidence_of(result_of(facts)), findings=findings)


def evidence_of(result):
    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(CellEvidence)}
    return CellEvidence(**fields)


def test_only_judged_cells_are_compared(project, monkeypatch):
    def findings(evidence, **keywords):
        result = run_session(project, monkeypatch, evidence, **keywords)
        return result.status, [each.rule for each in result.findings]

    skipped = dataclasses.replace(found_in(), skip_cause=SkipCause.RECIPE)
    unjudged = finding("disk-error", "the disk is full")
    assert findings(skipped) == (Status.SKIPPED, [])
    assert findings(found_in(FACTS, DRIFTS), expect={"13": KNOWN}) == (Status.XFAILED, ["numeric-drift"])
    assert findings(found_in(FACTS, unjudged)) == (Status.ERROR, ["disk-error"])
    assert findings(found_in(FACTS, DRIFTS)) == (Status.FAILED, ["numeric-drift"]), "it has failed already"
    assert findings(found_in(None)) == (Status.PASSED, [])
    xpassed = findings(found_in(), expect={"13": KNOWN})
    assert xpassed == (Status.XPASSED, ["unexpected-pass"]), "what does not pass cannot be recorded"


def test_a_missing_baseline_can_be_expected(project, monkeypatch):
    def run(**keywords):
        result = run_session(project, monkeypatch, found_in(), expect={"13": NOT_RECORDED}, **keywords)
        return result.status, [each.rule for each in result.findings]

    assert run() == (Status.XFAILED, ["baseline-missing"])
    assert run(mode="off") == (Status.PASSED, []), "nothing is checked, so nothing is expected"
    keeper(project, "update", versions()).record([result_of()])
    assert run() == (Status.XPASSED, ["unexpected-pass"])


@pytest.mark.parametrize(
    ("expect", "found", "status"),
    [
        ([], [], Status.FAILED),
        ([NOT_RECORDED], [], Status.FAILED),
        ([KNOWN], [], Status.FAILED),
        ([KNOWN, NOT_RECORDED], [DRIFTS], Status.FAILED),
        ([MOVED], [], Status.XFAILED),
        ([MOVED], [DRIFTS], Status.FAILED),
        ([MOVED, KNOWN], [DRIFTS], Status.XFAILED),
        ([MOVED, KNOWN], [], Status.XPASSED),
    ],
)
def test_a_baseline_drift_is_never_swallowed_by_another_expectation(project, monkeypatch, expect, found, status):
    keeper(project, "update", versions()).record([result_of()])
    moved = changed(operators={**FACTS.operators, "Cast": 1})
    result = run_session(project, monkeypatch, found_in(moved, *found), expect={"13": expect} if expect else None)
    assert (result.status, [each.message for each in result.findings if each.rule == "baseline-drift"]) == (status, ["+1 Cast"])


def test_update_writes_what_ran_and_keeps_the_rest(project):
    keeper(project, "update").record([result_of(opset=opset) for opset in (9, 13)])
    lines = keeper(project, "update").record(
        [result_of(changed(ir_version=8), opset=13), result_of(opset=14, status=Status.FAILED)]
    )
    assert lines == ["net opset14-cpu: not recorded (failed)", "net torchscript cpu, opset 13: IR version 7 → 8"]
    text = kept(project).read_text(encoding="utf-8")
    assert 'opsets = "9,13"' in text and "ir-version = { 9 = 7, 13 = 8 }" in text


def test_an_update_changes_nothing_where_a_check_reports_nothing(project):
    keeper(project, "update").record([result_of(opset=opset) for opset in (9, 10)])
    before = kept(project).read_bytes()
    stamp = kept(project).stat().st_mtime_ns
    near = changed(
        file_bytes=2010,
        values=(values("y", mean=0.5000003), values("z", mean=0.1)),
        weights=dataclasses.replace(WEIGHTS, norm=3.000001),
    )
    lines = keeper(project, "update").record([result_of(near, opset=opset, drift=0.6, observability=0.95) for opset in (9, 10)])
    assert lines == ["net (2 cells): nothing changed"]
    assert (kept(project).read_bytes(), kept(project).stat().st_mtime_ns) == (before, stamp)


def test_small_steps_add_up(project):
    keeper(project, "update").record([result_of()])
    for step in range(1, 6):
        moved = changed(file_bytes=2000 + 40 * step)
        judged = judge(keeper(project, "check"), result_of(moved))
        keeper(project, "update").record([result_of(moved)])
        if judged.status is Status.FAILED:
            break
    assert judged.findings[0].message.startswith("file +6 %")


def test_opsets_whose_numbers_almost_agree_are_one_line(project):
    results = [result_of(changed(file_bytes=2000 + opset), opset=opset) for opset in range(9, 18)]
    keeper(project, "update").record(results)
    text = kept(project).read_text(encoding="utf-8")
    assert "file-bytes = 2009" in text
    assert all(judge(keeper(project, "check"), each).findings == () for each in results)


def test_the_order_in_which_cells_end_does_not_matter(project):
    results = [
        result_of(changed(ir_version=opset), opset=opset, device=device) for opset in (9, 13, 10) for device in ("cpu", "cuda")
    ]
    keeper(project, "update").record(results)
    text = kept(project).read_text(encoding="utf-8")
    kept(project).unlink()
    keeper(project, "update").record(results[::-1])
    assert kept(project).read_text(encoding="utf-8") == text


def test_update_in_the_settings_is_refused(project):
    project.write("pyproject.toml", '[tool.onnx-ci]\nbaseline = "update"\n')
    with pytest.raises(ConfigurationError, match="would record on every run; set it to check"):
        Baselines(load_settings(project.root, environment={}), VERSIONS).open(["net"])


@pytest.mark.parametrize("mode", ["check", "update"])
def test_a_conflict_is_reported_before_the_work_and_nothing_is_lost(project, mode):
    keeper(project, "update").record([result_of()])
    spoilt = (
        kept(project)
        .read_text(encoding="utf-8")
        .replace("Gemm = 2", "<<<<<<< HEAD\nGemm = 2\n=======\nGemm = 3\n>>>>>>> other")
    )
    kept(project).write_text(spoilt, encoding="utf-8")
    baselines = keeper(project, mode)
    with pytest.raises(ConfigurationError, match="contains a merge conflict"):
        baselines.open(["net"])
    with pytest.raises(ConfigurationError, match="contains a merge conflict"):
        keeper(project, "update").record([result_of()])
    assert kept(project).read_text(encoding="utf-8") == spoilt
