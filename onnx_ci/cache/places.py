"""Names for paths that are the same in another clone, folder, environment or user's home."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

PROJECT, HOME, PYTHON = "<project>", "~", "<python>"


@dataclass(frozen=True)
class Places:
    """The folders from which paths are named."""

    root: str
    environment: Mapping[str, str] = field(repr=False)

    @cached_property
    def home(self) -> str:
        """The home folder."""
        return self.environment.get("HOME", "") or os.path.expanduser("~")  # noqa: PTH111 (never raises)

    @cached_property
    def _neighbourhood(self) -> str:
        """The folder above the root, whose paths are named from the root, unless it is home, contains home or is shared."""
        above = os.path.dirname(self.root)  # noqa: PTH120 (thousands of paths)
        return "" if f"{self.home}/".startswith(f"{above}/") or above in ("", "/", "/tmp") else f"{above}/"  # noqa: S108

    @cached_property
    def _named(self) -> list[tuple[str, str]]:
        """Folders with the names of what lies in them, the first that contains a path counts."""
        pythons = [(f"{prefix}/", f"{PYTHON}/") for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)) if len(prefix) > 4]
        return [
            *((folder, name) for folder, name in pythons if not f"{self.root}/".startswith(folder)),
            (f"{self.root}/", ""),
            *([(self._neighbourhood, "../")] if self._neighbourhood else []),
            *([(f"{self.home}/", f"{HOME}/")] if len(self.home) > 1 else []),
        ]

    def name(self, path: str) -> str:
        """The name of an absolute path: ``a/b``, ``../x``, ``~/x``, ``<python>/x`` or the path itself."""
        if path == self.root:
            return "."
        for folder, name in self._named:
            if path.startswith(folder):
                return name + path[len(folder) :]
            if f"{path}/" == folder:
                return name.rstrip("/") or "."
        return path

    def name_of_absent(self, path: str) -> str:
        """The name of a path where nothing is: ``../../.env`` in a folder above the root, which another clone has elsewhere."""
        above = os.path.dirname(path)  # noqa: PTH120
        is_above = above != self.root and f"{self.root}/".startswith(f"{above.rstrip('/')}/")
        return os.path.relpath(path, self.root) if is_above else self.name(path)

    def path(self, name: str) -> str:
        """The absolute path of a name."""
        place, _, rest = name.partition("/")
        if place == HOME:
            return f"{self.home}/{rest}".rstrip("/")
        if place == PYTHON:
            found = (f"{prefix}/{rest}".rstrip("/") for prefix in (sys.prefix, sys.base_prefix))
            return next((path for path in found if os.path.lexists(path)), f"{sys.prefix}/{rest}")
        return os.path.normpath(os.path.join(self.root, name))  # noqa: PTH118

    def is_above(self, path: str) -> bool:
        """Whether a path leads to the root, Python, or the folder of the home or of temporary files, or to one above these."""
        places = (self.root, sys.prefix, sys.base_prefix, self.home, tempfile.gettempdir())
        return any(f"{place}/".startswith(f"{path.rstrip('/')}/") for place in places)

    def normalized(self, text: str) -> str:
        """A text with names for the folders that differ from clone to clone and from user to user."""
        return self._folders.sub(lambda match: self._words[match[0]], text)

    @cached_property
    def _words(self) -> Mapping[str, str]:
        folders = {
            self.home: HOME,
            sys.prefix: PYTHON,
            sys.base_prefix: PYTHON,
            self.root: PROJECT,
            os.path.realpath(self.root): PROJECT,
        }
        return {folder: word for folder, word in folders.items() if len(folder) > 4}

    @cached_property
    def _folders(self) -> re.Pattern[str]:
        longest_first = sorted(self._words, key=len, reverse=True)
        return re.compile(rf"(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-])")
