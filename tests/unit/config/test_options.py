"""The table of options, and everything that must have exactly what the table has."""

from __future__ import annotations

import pytest
from toolbox.option_values import right_values_of

from onnx_ci.config.options import FLAGS, OPTIONS, Role, options_with
from onnx_ci.config.settings import load_settings
from onnx_ci.results.records import SettingSource


def fields_of(*roles):
    return {option.field for option in options_with(*roles) if option.has_flag}


def test_every_option_is_spelt_alike_wherever_it_is_set():
    for option in OPTIONS:
        assert option.field.isidentifier()
        assert option.field == option.name.replace("-", "_")
        assert option.variable == f"ONNX_CI_{option.field.upper()}"
        assert option.help.endswith(".")
    for names in ([option.name for option in OPTIONS], [option.variable for option in OPTIONS]):
        assert len(set(names)) == len(OPTIONS)


def test_every_option_has_one_role_and_every_role_an_option():
    assert [len(options_with(role)) for role in Role if not options_with(role)] == []
    assert sum(len(options_with(role)) for role in Role) == len(OPTIONS)
    assert options_with(*Role) == OPTIONS
    assert options_with() == ()


def test_python_takes_exactly_the_options():
    from onnx_ci.api import RunOptions, VerifyOptions
    from onnx_ci.tools.two_files.compare import CompareOptions

    of_a_cell = fields_of(Role.VERDICT, Role.BASELINE, Role.EXECUTION)
    assert VerifyOptions.__optional_keys__ == of_a_cell, "add what is missing to VerifyOptions in onnx_ci/api.py"
    assert RunOptions.__optional_keys__ == fields_of(*Role), "add what is missing to RunOptions in onnx_ci/api.py"
    assert RunOptions.__optional_keys__ > CompareOptions.__optional_keys__
    assert not RunOptions.__required_keys__


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.name)
def test_a_default_is_shown_as_it_is_read(option, tmp_path):
    settings = load_settings(tmp_path, environment={})
    assert getattr(settings, option.field) == option.default
    shown = settings.shown()[option.name]
    assert shown.origin.source is SettingSource.DEFAULT
    if option.default is None:
        assert shown.value is None
    else:
        assert shown.value == (option.kind.show(option.default) or None)
    again = load_settings(tmp_path, flags={option.field: shown.value}, environment={})
    assert getattr(again, option.field) == option.default


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.name)
def test_a_value_is_shown_as_it_is_read(option):
    values = right_values_of(option)
    assert values
    for value in values:
        shown = option.kind.show(value)
        assert not shown or option.kind.parse(shown) == value
