"""The templates of the report page are safe by construction: no template has to remember to escape a value."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest
from markupsafe import Markup
from toolbox.shown_runs import HOSTILE

from onnx_ci.report import templates
from onnx_ci.report.markup import printable


def filled(source, **values):
    return Markup(templates.environment().from_string(source).render(values))


@pytest.mark.parametrize(
    "source",
    [
        "{{ value }}",
        "{{ '%s'|format(value) }}",
        "{% set block %}{{ value }}{% endset %}{{ block }}",
        "{% macro show(value) %}{{ value }}{% endmacro %}{{ show(value) }}",
        "{% for each in [value] %}{{ each }}{% endfor %}",
        "{% macro row() %}{{ caller() }}{% endmacro %}{% call row() %}{{ value }}{% endcall %}",
    ],
)
def test_every_value_is_made_printable_and_escaped(source):
    page = filled(source, value=HOSTILE)
    assert page.unescape() == printable(HOSTILE)
    assert not set(page) & set("<>\"'")


def test_markup_of_a_template_is_not_escaped_again():
    inner = filled("<b>{{ value }}</b>", value="<i>")
    assert filled("{{ inner }}", inner=inner) == "<b>&lt;i&gt;</b>"


def test_a_missing_value_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="'value' is undefined"):
        filled("{{ value }}")
    with pytest.raises(TypeError, match="outputs None"):
        filled("{{ value }}", value=None)


def test_only_the_style_and_the_script_of_the_page_are_marked_safe():
    sources = [path.read_text(encoding="utf-8") for path in Path(templates.__file__).parent.glob("*.jinja")]
    assert sorted(found for source in sources for found in re.findall(r"\w+\s*\|\s*safe", source)) == [
        "script|safe",
        "style|safe",
    ]
    # These could make markup of values that are not made printable.
    assert not any(re.search(r"autoescape|~|\b(xmlattr|tojson|forceescape|join|replace)\b", source) for source in sources)
