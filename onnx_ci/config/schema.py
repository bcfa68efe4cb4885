"""The JSON Schema of ``[tool.onnx-ci]``, generated from the table of options."""

from __future__ import annotations

from typing import Any

from onnx_ci.config.options import OPTIONS
from onnx_ci.config.settings import TABLE

SCHEMA_ID = "urn:onnx-ci:settings"
"""The schema's name. It is not an address: the schema is generated on demand, for the installed version."""


def tool_schema(tool_name: str = "onnx-ci") -> dict[str, Any]:
    """The schema, for validate-pyproject's entry point ``validate_pyproject.tool_schema``."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": SCHEMA_ID,
        "title": f"Settings of {tool_name} ([{TABLE}])",
        "type": "object",
        "additionalProperties": False,
        "properties": {option.name: {"description": option.help, **option.kind.schema} for option in OPTIONS},
    }
