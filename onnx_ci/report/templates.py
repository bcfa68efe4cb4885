"""The templates of the report page, which hold all its HTML, and the functions that they call.

Every value that a template outputs is made printable and escaped, so no template can forget it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
from typing import TYPE_CHECKING

from onnx_ci.report.findings import describe_cause, describe_finding, describe_place, describe_without_place
from onnx_ci.report.grid import NOT_RUN, WARNED, format_result
from onnx_ci.report.markup import printable
from onnx_ci.report.text import format_duration, step_rows
from onnx_ci.results.records import CellResult, Status
from onnx_ci.results.rules import RULES
from onnx_ci.text import count

if TYPE_CHECKING:  # importing jinja2 takes some 60 ms, and few commands need it
    from jinja2 import Environment
    from markupsafe import Markup

SHADES = ((1 / 64, "p0", "1/64"), (1 / 16, "p1", "1/16"), (1 / 4, "p2", "1/4"), (1.0, "p3", "1"))
"""The shades of passed cells: the largest share of the limit that the drift takes up, the CSS class, and the legend."""

BEYOND = "p4"
"""The shade of a cell that passes although its drift is over the limit, because its recipe sets tolerances of its own."""


def fill(name: str, package: str = "onnx_ci.report", **values: object) -> Markup:
    """The template ``name`` of ``package`` with ``values``, as markup that other templates do not escape again."""
    from markupsafe import Markup

    return Markup(environment(package).get_template(name).render(values))  # noqa: S704 - the template has escaped every value


def asset(name: str, package: str = "onnx_ci.report") -> str:
    """The text of a file beside the templates of ``package``."""
    return importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8")


def shade(result: CellResult) -> str:
    """The CSS class that colours a result."""
    if result.status is not Status.PASSED:
        return result.status.value
    share = result.worst.share_of_limit if result.worst else 0.0
    return next((shade for most, shade, _ in SHADES if share <= most), BEYOND)


def _digest(source: str) -> str:
    """The name of an inline script or style in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


@functools.cache
def environment(package: str = "onnx_ci.report") -> Environment:
    """The templates of ``package`` and of this one, and how their values are shown."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "") for name in dict.fromkeys((package, __package__))]),
        auto_reload=False,
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"BEYOND": BEYOND, "NOT_RUN": NOT_RUN, "RULES": RULES, "SHADES": SHADES, "WARNED": WARNED}
    functions = (describe_cause, describe_finding, describe_place, describe_without_place, format_duration, format_result)
    environment.filters |= {each.__name__: each for each in (*functions, printable, shade, step_rows)}
    environment.filters |= {"counted": count, "digest": _digest}  # jinja2 has a filter "count" of its own
    return environment


def _shown(value: object) -> object:
    """What a template outputs for ``value``, before it is escaped; markup is output as it is, and ``None`` is an error."""
    if value is None:
        raise TypeError("a template of the report page outputs None")
    return value if hasattr(value, "__html__") else printable(str(value))
