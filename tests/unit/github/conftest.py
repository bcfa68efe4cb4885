"""What the action's parts do at once, they do after the toolkit is imported, if it can be."""

from __future__ import annotations

import contextlib
import importlib

with contextlib.suppress(Exception):
    importlib.import_module("github_action_toolkit")  # asks git for its version
