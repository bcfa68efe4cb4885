"""The table of options, and everything that must have exactly what the table has."""

from __future__ import annotations

import dataclasses

import pytest

from onnx_ci.config.options import OPTIONS, Role, options_with
from onnx_ci.config.settings import Settings, load_settings
from onnx_ci.results.records import SettingSource, SettingValue

SHOWN_AS_NOTHING = {
    "packages",
    "weights",
    "allow",
    "rules",
    "skip-stages",
    "inputs",
    "baseline-policy",
    "baseline-limits",
    "cache-ignore-variables",
}
"""Options whose default is empty, or that show only what differs from the default."""


def fields_of(*roles):
    return {option.field for option in options_with(*roles)}


def test_every_setting_is_an_option_and_every_option_a_setting():
    fields = [field.name for field in dataclasses.fields(Settings)]
    assert fields == ["root", *(option.field for option in OPTIONS), "origins"]


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

    assert RunOptions.__optional_keys__ == fields_of(*Role)
    assert VerifyOptions.__optional_keys__ == fields_of(Role.VERDICT, Role.BASELINE, Role.EXECUTION)
    assert not RunOptions.__required_keys__ | VerifyOptions.__required_keys__


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_default_reads_back_as_it_is_shown(option, tmp_path):
    settings = load_settings(tmp_path, environment={})
    assert getattr(settings, option.field) == option.default
    shown = settings.shown()[option.name]
    assert shown.origin.source is SettingSource.DEFAULT
    if option.default is None:
        assert shown.value is None
    elif option.name in SHOWN_AS_NOTHING:
        assert (option.kind.show(option.default), shown.value) == ("", None)
    else:
        assert shown == SettingValue(value=option.kind.show(option.default), origin=shown.origin)
        assert option.kind.parse(shown.value) == option.default
    again = load_settings(tmp_path, flags={option.field: shown.value}, environment={})
    assert getattr(again, option.field) == option.default
