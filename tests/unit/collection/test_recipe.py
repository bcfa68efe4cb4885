from __future__ import annotations

import dataclasses
import enum
import functools
import pickle
import re

import cloudpickle
import pytest
from toolbox.discovered import discover
from toolbox.projects import RIGHT

import onnx_ci
from onnx_ci.collection.keywords import EXPORT_OPTIONS, KEYWORDS, RecipeKeywords
from onnx_ci.config.settings import load_settings
from onnx_ci.results.rules import RULES


def declare(**keywords):
    return (
        onnx_ci.recipe(**keywords)(lambda: None) if "name" in keywords else onnx_ci.recipe(name="net", **keywords)(lambda: None)
    )


def test_a_decorated_function_is_a_recipe_and_still_callable():
    @onnx_ci.recipe
    def net():
        return "made"

    assert isinstance(net, onnx_ci.Recipe)
    assert net.name == "net"
    assert net() == "made"
    assert net.file == __file__


def test_unnamed_axes_get_the_names_that_the_exporter_gives():
    assert declare(dynamic_axes={"x": [0, 2]}).dynamic_axes == {"x": {0: "x_dynamic_axes_1", 2: "x_dynamic_axes_2"}}


def test_an_expectation_holds_for_its_opsets_only():
    recipe = declare(expect={"9-10": onnx_ci.unsupported("index_put"), 12: onnx_ci.known_failure("baked-shape", "loop")})
    for exporter in ("torchscript", "dynamo"):
        assert [each.rule for each in recipe.expectations(exporter, 10)] == ["unsupported-operator"]
        assert [each.reason for each in recipe.expectations(exporter, 12)] == ["loop"]
        assert recipe.expectations(exporter, 11) == ()


def test_an_expectation_may_be_for_one_exporter():
    gaps = {"dynamo": onnx_ci.known_failure("export-error", "scripted"), "torchscript 9-10": onnx_ci.unsupported("index_put")}
    recipe = declare(expect=gaps)
    assert [each.reason for each in recipe.expectations("dynamo", 9)] == ["scripted"]
    assert [each.reason for each in recipe.expectations("torchscript", 9)] == ["index_put"]
    assert recipe.expectations("torchscript", 11) == ()


def test_an_expectation_may_be_for_one_device():
    gap, slow, rare = (onnx_ci.known_failure("load-error", reason) for reason in ("gap", "slow", "rare"))
    recipe = declare(expect={"cuda": gap, "dynamo cpu": slow, " torchscript  cuda 15- ": rare})
    assert recipe.expectations("torchscript", 9) == ()
    assert recipe.expectations("torchscript", 9, device="cuda") == recipe.expectations("dynamo", 18, device="cuda:1") == (gap,)
    assert recipe.expectations("dynamo", 18, device="cpu") == (slow,)
    assert recipe.expectations("torchscript", 15, device="cuda") == (gap, rare)


@pytest.mark.parametrize("key", ["cpu:0", "gpu", "dynamo all", "cuda dynamo", "", " "])
def test_a_key_that_names_no_cells_is_refused(key):
    with pytest.raises(onnx_ci.RecipeError, match="expect"):
        declare(expect={key: onnx_ci.unsupported("why")})


def test_an_expectation_tells_the_versions_that_it_was_seen_with():
    assert str(onnx_ci.unsupported("index_put", seen="torch 2.13.0")) == "index_put (seen with torch 2.13.0)"
    assert str(onnx_ci.known_failure("baked-shape", "loop", seen="torch 2.13.0")) == "loop (seen with torch 2.13.0)"
    assert str(onnx_ci.unsupported("index_put")) == "index_put"


def test_weights_are_for_functions_that_take_them():
    assert onnx_ci.recipe(name="a")(lambda weights=None: None).takes_weights
    assert not onnx_ci.recipe(name="a")(lambda: None).takes_weights


def EXPORT(model, args, kwargs, opset, path):  # noqa: N802
    """An export function."""


FED = {"input_names": ["x", "state"], "output_names": ["y", "after"], "feedback": {"after": "state"}}


REST = "range(32, 129, 32) or onnx_ci.multiple_of(8), not"


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"input_name": ["x"]}, "no keyword 'input_name'; did you mean 'input_names'?"),
        ({"do_constant_foldin": True}, "did you mean 'do_constant_folding'?"),
        ({"exporter": "dynmo"}, "did you mean 'dynamo'?"),
        ({"exporter": "custom"}, "exporter names 'custom', which needs export: a function (model, args, kwargs, opset, path)"),
        ({"export": EXPORT, "exporter": "dynamo"}, "export is the exporter 'custom', which exporter does not name"),
        ({"export": "net.onnx"}, "export must be a function (model, args, kwargs, opset, path), not 'net.onnx'"),
        ({"export": lambda model, path: None}, "<lambda>(model, path): too many positional arguments"),
        ({"run_files": "loop"}, "run_files must be a function of the files by name and of forward's arguments, not 'loop'"),
        ({"run_files": len}, "run_files runs the files that export returns; declare export, a function (model, args, kwargs,"),
        ({"run_files": len, "export": EXPORT, "exporter": ["custom", "dynamo"]}, "declare export, a function (model, args"),
        (
            {"run_files": len, "export": EXPORT, "then": "float16"},
            "then is about one file; declare it in a recipe of that file",
        ),
        ({**FED, "run_files": len, "export": EXPORT}, "feedback is about one file; declare it in a recipe of that file"),
        ({"run_files": len, "export": EXPORT, "nondeterministic": True}, "nondeterministic is about one file; declare it"),
        ({"max_ir_version": "8"}, "max_ir_version must be a version of ONNX's IR, such as 8, not '8'"),
        ({"static": "no"}, "static must be True or False, not 'no'"),
        ({"static": True, "dynamic_axes": {"x": [0]}}, "every size is fixed, and dynamic axes are declared; declare one"),
        ({"external_data": "net.data"}, "external_data must be True or False, not 'net.data'"),
        ({"operators": ["Conv", "Conv"]}, "operators names 'Conv' twice"),
        ({"opsets": "17-9"}, "opsets: the range 17-9 runs backwards"),
        ({"devices": ("cpu", "cdua")}, "devices: unknown device 'cdua'; use cpu, cuda or cuda:1; did you mean 'cuda'?"),
        ({"devices": 1}, "devices: must be a list of words, not 1"),
        ({"input_names": ["x", "x"]}, "input_names names 'x' twice"),
        ({"input_names": [1]}, "input_names must be names, not 1"),
        ({"dynamic_axes": ["x"]}, "dynamic_axes must map names to axes"),
        ({"dynamic_axes": {"x": "batch"}}, "must be {axis: name} or a list of axes"),
        ({"dynamic_axes": {"x": {"batch": 0}}}, "axes are numbers, counted from 0"),
        ({"dynamic_axes": {"x": [0]}, "dynamic_shapes": ({0: "b"},)}, "not both"),
        ({"name": "a::b"}, "'a::b' is not a valid recipe name"),
        ({"name": "a[1]"}, "'a[1]' is not a valid recipe name"),
        ({"max_drift": 0}, "max_drift must be a number above 0, not 0"),
        ({"max_drift": {"y": float("inf")}}, "max_drift must be a number above 0, not inf"),
        ({"rtol": "8"}, "rtol must be a number of at least 0, not '8'"),
        ({"rtol": -1}, "rtol must be a number of at least 0, not -1"),
        ({"dynamic_axes": {"x": {0: "n / 2"}}}, "the axis name 'n / 2' is an expression, which"),
        (
            {"dynamic_sizes": {"n": []}},
            "dynamic_sizes['n'] must be sizes of at least 1, such as (40, 56), range(32, 129, 32) or onnx_ci.multiple_of(8), not []",
        ),
        *(
            (
                {"dynamic_sizes": {"n": wrong}},
                f"dynamic_sizes['n'] must be sizes of at least 1, such as (40, 56), {REST} {wrong!r}",
            )
            for wrong in (-1, (8, 0), "8", 8.0, True, range(9), range(5, 5))
        ),
        (
            {"expect": onnx_ci.unsupported("why")},
            'expect must map keys such as "9-10" and "dynamo" to known failures, not Expectation',
        ),
        ({"dynamic_sizes": (4, 8)}, 'dynamic_sizes must map axes to sizes, such as {"height": (40, 56)}, not (4, 8)'),
        (
            {"expect": {"13": "text"}},
            "expect takes onnx_ci.unsupported(reason) or onnx_ci.known_failure(rule, reason), not 'text'",
        ),
        (
            {"expect": {"dynmo": onnx_ci.unsupported("why")}},
            "'dynmo', which does not name an exporter or a device; did you mean 'dynamo'?",
        ),
        (
            {"expect": {"dynamo cdua": onnx_ci.unsupported("why")}},
            "which does not name an exporter or a device; did you mean 'cuda'?",
        ),
        ({"expect": {"dynamo all": onnx_ci.unsupported("why")}}, "expect: 'all' is not an opset"),
        ({"manual": True}, "manual must be why the recipe runs only on request, such as 'needs 8 GiB', not True"),
        ({"allow": ["baked"]}, "allow names 'baked', which is not a known rule"),
        ({"allow_warnings": ["("]}, "allow_warnings has '(', which is not a regular expression"),
        ({"weights": "train"}, "weights must be 'seeded' or 'trained'"),
        ({"feedback": ["after"]}, "feedback must map names of outputs to names of inputs"),
        ({"feedback": {"after": 0}}, "feedback must map names of outputs to names of inputs"),
        ({"feedback": {"a": "state", "b": "state"}}, "feedback feeds the input 'state' from two outputs"),
        ({**FED, "feedback": {"aftr": "state"}}, "'aftr' as an output, which is not in output_names; did you mean 'after'?"),
        ({**FED, "feedback": {"after": "stat"}}, "'stat' as an input, which is not in input_names; did you mean 'state'?"),
        ({"feedback": {"after": "state"}}, "'after' as an output, which is not in output_names; declare it there"),
        ({**FED, "steps": 1}, "steps must be how many times the file is run in a row, at least 2, not 1"),
        ({**FED, "steps": "8"}, "at least 2, not '8'"),
        ({**FED, "step_inputs": {}}, "step_inputs must be a function of the step's number and its inputs by name, not {}"),
        ({**FED, "nondeterministic": True}, "nondeterministic=True compares none; declare one"),
        ({"steps": 8}, "steps needs feedback: name the outputs that are inputs of the next step"),
        ({"step_inputs": lambda step, inputs: {}}, "step_inputs needs feedback"),
    ],
)
def test_a_wrong_declaration_is_told_with_its_remedy(keywords, said):
    with pytest.raises(onnx_ci.RecipeError) as caught:
        declare(**keywords)
    assert said in str(caught.value)


def test_an_expectation_of_an_unknown_rule_names_the_nearest():
    with pytest.raises(onnx_ci.RecipeError, match="no rule 'baked-shapes'; did you mean 'baked-shape'"):
        onnx_ci.known_failure("baked-shapes", "why")


def test_a_rule_can_be_expected_or_is_refused():
    for rule in RULES:
        if RULES[rule].can_be_expected:
            assert onnx_ci.known_failure(rule, "why").rule == rule
        else:
            with pytest.raises(onnx_ci.RecipeError, match=f"'{rule}' cannot be expected"):
                onnx_ci.known_failure(rule, "why")


def test_a_rule_can_be_allowed_or_is_refused():
    for rule in RULES:
        if RULES[rule].can_be_allowed:
            assert declare(allow=rule).allow == (rule,)
        else:
            with pytest.raises(onnx_ci.RecipeError, match=f"allow names '{rule}'"):
                declare(allow=rule)


def test_some_rules_can_be_neither_and_some_only_be_expected():
    assert [rule.id for rule in RULES.values() if rule.can_be_allowed and not rule.can_be_expected] == []
    neither = {rule.id for rule in RULES.values() if not rule.can_be_expected}
    assert {"recipe-error", "missing-device", "internal-error", "unexpected-pass"} <= neither
    only_expected = {rule.id for rule in RULES.values() if rule.can_be_expected and not rule.can_be_allowed}
    assert {"export-error", "unsupported-operator"} <= only_expected


def test_type_checkers_know_every_keyword():
    missing = "what is missing is declared in RecipeKeywords in onnx_ci/collection/keywords.py"
    assert RecipeKeywords.__optional_keys__ == {*KEYWORDS, *EXPORT_OPTIONS}, missing
    assert not EXPORT_OPTIONS & set(KEYWORDS)


def test_none_stands_for_the_default_of_every_keyword():
    def net(): ...

    for keyword in KEYWORDS:
        assert vars(onnx_ci.recipe(**{keyword: None})(net)) == vars(onnx_ci.recipe(net)), keyword


@pytest.mark.parametrize("function", [functools.partial(print), print, type("Callable", (), {"__call__": print})()])
def test_only_a_function_can_be_a_recipe(function):
    with pytest.raises(onnx_ci.RecipeError, match="decorates a function"):
        onnx_ci.recipe(name="net")(function)


def family(**keywords):
    def family(case):
        return case

    return onnx_ci.recipe(**keywords)(family)


def test_the_function_of_a_case_is_called_with_its_key():
    made = family(each={"a": {}, "b": {}})
    assert {case: each() for case, each in made.items()} == {"a": "a", "b": "b"}
    assert [each.name for each in made.values()] == ["family-a", "family-b"]


def test_what_every_case_overrides_need_not_be_right():
    (made,) = family(timeout=-1, each={"a": {"timeout": 5.0}}).values()
    assert made.timeout == 5.0


def test_a_case_adds_to_expectations_and_overrides_limits():
    shared = {"9": onnx_ci.unsupported("roll")}
    made = family(
        expect=shared, max_drift=4, each={"a": {}, "b": {"expect": {"10": onnx_ci.unsupported("pad")}, "max_drift": 8}}
    )
    reasons = {
        case: [each.reason for opset in (9, 10) for each in recipe.expectations("torchscript", opset)]
        for case, recipe in made.items()
    }
    assert reasons == {"a": ["roll"], "b": ["roll", "pad"]}
    assert [each.max_drift for each in made.values()] == [4, 8]


def test_expectations_of_the_same_cells_add_up():
    pad, roll = onnx_ci.unsupported("pad"), onnx_ci.unsupported("roll")
    assert declare(expect={"9-10": pad, "9,10": roll}).expectations("torchscript", 9) == (pad, roll)
    made = family(expect={"9": pad}, each={"a": {"expect": {"9": roll}}, "b": {"expect": {9: pad}}})
    assert [each.expectations("torchscript", 9) for each in made.values()] == [(pad, roll), (pad,)]


@pytest.mark.parametrize(
    ("each", "message"),
    [
        ({}, "each must map names to keywords"),
        (["a"], "each must map names to keywords"),
        ({"a b": {}}, "each has the key 'a b'"),
        ({3: {}}, "each has the key 3"),
        ({"a": 3}, "each['a'] must be a dictionary of keywords, not 3"),
        ({"a": {"name": "b"}}, "each['a'] has the keyword 'name'"),
        ({"a": {"opset": 3}}, "each['a']: @recipe has no keyword 'opset'; did you mean 'opsets'?"),
        ({"a": {"max_drift": -1}}, "each['a']: max_drift must be a number above 0, not -1"),
    ],
)
def test_wrong_cases_are_refused(each, message):
    with pytest.raises(onnx_ci.RecipeError, match=re.escape(message)):
        family(each=each)


def test_a_function_without_a_parameter_for_the_case_is_refused():
    with pytest.raises(onnx_ci.RecipeError, match=r"net must take the key of each as its first parameter: def net\(case\)"):
        onnx_ci.recipe(name="net", each={"a": {}})(lambda: None)


def test_a_recipe_of_a_file_is_sent_as_its_place_even_with_other_keywords(project):
    project.recipes(RIGHT)
    (found,) = discover(load_settings(project.root)).recipes.values()
    assert pickle.loads(cloudpickle.dumps(found.recipe)) is found.recipe
    other = dataclasses.replace(found.recipe, allow=("crash",))
    sent = cloudpickle.dumps(other)
    assert b"Scale" not in sent
    assert vars(pickle.loads(sent)) == vars(other)


def test_each_case_is_sent_as_itself_and_functions_of_its_file_with_it(project):
    project.recipes(
        """
        def draw(sizes, generator):
            return torch.rand(3, 4, generator=generator)

        @onnx_ci.recipe(each={"small": {}, "large": {"inputs": {"x": draw}}}, input_names=["x"], output_names=["y"])
        def family(size):
            return Scale(), (torch.randn(3, 4),)
        """
    )
    small, large = (found.recipe for found in discover(load_settings(project.root)).recipes.values())
    for recipe in (
        small,
        large,
        dataclasses.replace(large, allow=("crash",)),
        dataclasses.replace(small, domains=large.domains),
    ):
        assert vars(pickle.loads(cloudpickle.dumps(recipe))) == vars(recipe)


@pytest.mark.parametrize("shapes", [(), [], {}, None])
def test_dynamic_shapes_may_be_empty(shapes):
    assert onnx_ci.recipe(lambda: None, name="net", dynamic_shapes=shapes, static=True).dynamic_shapes is None


def test_training_may_be_a_mode_of_torch():
    class Mode(enum.Enum):
        EVAL, PRESERVE, TRAINING = range(3)

    modes = {mode: onnx_ci.recipe(lambda: None, name="net", training=mode).training for mode in (Mode.EVAL, Mode.TRAINING)}
    assert modes == {Mode.EVAL: False, Mode.TRAINING: True}
    for wrong in (Mode.PRESERVE, "train"):
        with pytest.raises(onnx_ci.RecipeError, match="training must be True or False"):
            onnx_ci.recipe(lambda: None, name="net", training=wrong)


@pytest.mark.parametrize(
    ("keyword", "remedy"), [("dynamo", "exporter='dynamo'"), ("opset_version", "opsets='17'"), ("kwargs", "args, kwargs")]
)
def test_a_keyword_of_torch_is_told_in_the_words_of_a_recipe(keyword, remedy):
    with pytest.raises(onnx_ci.RecipeError, match=re.escape(remedy)):
        onnx_ci.recipe(lambda: None, name="net", **{keyword: True})
