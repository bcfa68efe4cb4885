"""Values for every kind of setting: right ones and wrong ones."""

from __future__ import annotations

from onnx_ci.config.options import OPTIONS, Option

VALUES = {
    "opsets": [9, "9", "9-17", " 9 - 11 , 13", [9, "11-13"], 0, 100, True, 9.5, "", [], "9,,13", "nine", {}, ["x"], [True]],
    "sample": [1, "3", 0, -1, True, 2.5, "", "two", []],
    "devices": ["cpu", "cuda:1, cpu,", ["cpu", " cuda "], ["cpu", ""], "", [], [""], "gpu", ["cpu:1"], 3],
    "require-devices": [True, False, "true", "false", "1", "0", "yes", 1, 0, "", []],
    "exporters": ["dynamo", ["torchscript", "dynamo"], "torchscript,dynamo", "dynamo?", [], ",", 1],
    "runtimes": ["reference", "onnxruntime, openvino", ["reference"], "refrence?", "", [], 1],
    "select": ["a*,b", ["a b"], "", ",", [], [" "], [1], 1, {}],
    "shard": ["2/5", " 2 / 5 ", "2-5", "", 2, []],
    "durations": ["a.json", "", 1, []],
    "weights": ["DEFAULT", "a=b,c=d", ["a=b"], {"a": "b"}, {}, "", [], 1],
    "max-drift": [8, 0.5, "8", " 1e3 ", "1_000", ".5", 0, -1, True, "high", "", [8]],
    "recipe-defaults": [
        {"operators": ["Conv", "com.microsoft.Gelu"], "max_ir_version": 8, "static": True, "rtol": 1e-3, "atol": 0},
        {"static": False},
        {},
        {"max_ir_version": 0},
        {"max-ir-version": 8},
        {"opsets": "9"},
        "static=true",
        ["static"],
        1,
    ],
    "rules": [
        "checker=note",
        "checker = note, net*:crash=error",
        ["checker=ignore"],
        "baseline-size=note, net*:baseline-values=ignore",
        {"checker": "ignore", "net*": {"crash": "error", "baseline-missing": "note"}},
        {},
        "checker",
        "checker=warning",
        "checkers=note",
        "crash=note",
        "baseline-sizes=note",
        "a b:checker=note",
        {"checker": []},
        {"crash": "ignore"},
        {"checkers": "note"},
        {"net*": "note"},
        {"net*": {"checker": "warning"}},
        {"net*": {"vacuus": "note"}},
        {"a b": {"checker": "note"}},
        "",
        [],
        1,
    ],
    "effort": ["quick", "full", "fast", "", 1, True],
    "inputs": ["a.npz", "a.npz,data/*", ["a.npz"], "", [], 1],
    "isolation": ["none", "nothing", "", 1, True],
    "memory-limit": ["8GiB", "512 mib", "1.5T", "2g", "12", "GiB", "", 8, []],
    "cache": ["off", "False", "0", "folder", "", 1, True],
    "report": ["report.json", "report", "r.html", "r.xml", "", 1, []],
    "baseline": ["off", "check", "update", "on", "", 1, True],
    "baseline-limits": [
        "size=0.5",
        "counts=2,values=1e3",
        ["size=.5"],
        {"size": 0},
        {"size": "0.5"},
        "size",
        "size=big",
        {"size": -1},
        {"size": True},
        {"x": 1},
        "",
        [],
        1,
    ],
}
"""By one option of each kind. Other options of that kind take the same values."""

_BY_KIND = {option.kind.parse: VALUES[option.name] for option in OPTIONS if option.name in VALUES}


def values_of(option: Option) -> list:
    """Right and wrong values of an option."""
    assert option.kind.parse in _BY_KIND, (
        f"{option.name} has a kind of its own: add values of it to tests/toolbox/option_values.py"
    )
    return _BY_KIND[option.kind.parse]


def right_values_of(option: Option) -> list:
    """Those values of an option that it accepts, as they are held, without its default."""
    parsed = []
    for value in values_of(option):
        try:
            parsed.append(option.kind.parse(value))
        except ValueError:
            continue
    return [value for value in parsed if value != option.default]
