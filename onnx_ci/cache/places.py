"""Names for paths that are the same in another clone, folder, environment or user's home."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping

PROJECT, HOME, PYTHON = "<project>", "~", "<python>"


class Places:
    """The folders from which paths are named."""

    def __init__(self, root: str, environment: Mapping[str, str]) -> None:
        self.root = root
        self.home = home = environment.get("HOME", "") or os.path.expanduser("~")  # noqa: PTH111 (never raises)
        pythons = [prefix for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)) if len(prefix) > 4]
        named = {f"{prefix}/": f"{PYTHON}/" for prefix in pythons if not f"{root}/".startswith(f"{prefix}/")}
        named[f"{root}/"] = ""
        above = os.path.dirname(root)  # noqa: PTH120 (thousands of paths)
        if not (f"{home}/".startswith(f"{above}/") or above in ("", "/", "/tmp")):  # noqa: S108
            named[f"{above}/"] = "../"
        if len(home) > 1:
            named[f"{home}/"] = f"{HOME}/"
        self._named = named
        """Folders with the names of what lies in them; the first that contains a path counts."""
        words = {home: HOME, **dict.fromkeys(pythons, PYTHON), root: PROJECT, os.path.realpath(root): PROJECT}
        self._words = {folder: word for folder, word in words.items() if len(folder) > 4}
        longest_first = sorted(self._words, key=len, reverse=True)
        self._folders = re.compile(rf"(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-])")

    def name(self, path: str) -> str:
        """The name of an absolute path: ``a/b``, ``../x``, ``~/x``, ``<python>/x`` or the path itself."""
        for folder, name in self._named.items():
            if path.startswith(folder):
                return name + path[len(folder) :]
            if f"{path}/" == folder:
                return name.rstrip("/") or "."
        return path

    def name_of_absent(self, path: str) -> str:
        """The name of a path where nothing is: ``../../.env`` in a folder above the root, which another clone has elsewhere."""
        above = os.path.dirname(path)  # noqa: PTH120
        is_above = above != self.root and f"{self.root}/".startswith(f"{above.rstrip('/')}/")
        if is_above:
            return os.path.relpath(path, self.root)
        name = self.name(path)
        # An environment has a pyvenv.cfg that the Python from which it was made does not have.
        return path if os.path.lexists(self.path(name)) else name

    def path(self, name: str) -> str:
        """The absolute path of a name."""
        place, _, rest = name.partition("/")
        if place == HOME:
            return f"{self.home}/{rest}".rstrip("/")
        if place == PYTHON:
            found = (f"{prefix}/{rest}".rstrip("/") for prefix in (sys.prefix, sys.base_prefix))
            return next((path for path in found if os.path.lexists(path)), f"{sys.prefix}/{rest}")
        path = os.path.join(self.root, name)  # noqa: PTH118
        return path if os.pardir in name.lstrip("./").split("/") else os.path.normpath(path)  # what follows a link keeps its ..

    def is_above(self, path: str) -> bool:
        """Whether a path leads to the root, Python, or the folder of the home or of temporary files, or to one above these."""
        places = (self.root, sys.prefix, sys.base_prefix, self.home, tempfile.gettempdir())
        return any(f"{place}/".startswith(f"{path.rstrip('/')}/") for place in places)

    def normalized(self, text: str) -> str:
        """A text with names for the folders that differ from clone to clone and from user to user."""
        return self._folders.sub(lambda match: self._words[match[0]], text)
