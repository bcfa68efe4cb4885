"""The JSON Schema of ``[tool.onnx-ci]``, made from the table of options, so that it says what they say."""

from __future__ import annotations

from typing import Any

from onnx_ci.config import OPTIONS, TABLE

SCHEMA_ID = "urn:onnx-ci:settings"
"""The schema's name. No address: it is made where it is needed, for the version that is installed there."""


def tool_schema(tool_name: str = "onnx-ci") -> dict[str, Any]:
    """The schema, as the entry point ``validate_pyproject.tool_schema`` gives it to validate-pyproject."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": SCHEMA_ID,
        "title": f"Settings of {tool_name} ([{TABLE}])",
        "type": "object",
        "additionalProperties": False,
        "properties": {option.name: {"description": option.help, **option.schema} for option in OPTIONS},
    }
