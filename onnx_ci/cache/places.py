"""Names for paths that are the same in another clone, folder or user's home; and which folders belong to the system."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

SYSTEM = ("/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/lib32/", "/lib64/", "/proc/", "/run/", "/sbin/", "/sys/", "/usr/")
"""Folders of the system. Their files count by the version of the system."""
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 (nothing is written there)
PROJECT, HOME, PYTHON = "<project>", "~", "<python>"


def is_of_system(path: str) -> bool:
    """Whether an absolute path leads to the system, or to a device."""
    return f"{path}/".startswith(SYSTEM) and not path.startswith(_SHARED_MEMORY)


def is_of_python(path: str) -> bool:
    """Whether an absolute path leads to the Python that runs, or to its virtual environment."""
    return f"{path}{os.sep}".startswith(_PREFIXES)


_OF_PYTHON = (sys.prefix, sys.base_prefix, str(Path(os.__file__).parent))
_PREFIXES = tuple(
    folder.rstrip(os.sep) + os.sep
    for folder in {*_OF_PYTHON, *map(os.path.realpath, _OF_PYTHON)}
    if folder not in ("/", "/usr")
)


@dataclass(frozen=True)
class Places:
    """The folders from which paths are named.

    Args:
        root: the project's root, absolute.
        environment: the environment variables, one of which names the home folder.
    """

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

    def name(self, path: str) -> str:
        """The name of an absolute path: ``a/b``, ``../x``, ``~/x`` or the path itself."""
        if path.startswith(f"{self.root}/"):
            return path[len(self.root) + 1 :]
        if path == self.root:
            return "."
        if f"{path}/" == self._neighbourhood:
            return ".."
        if self._neighbourhood and path.startswith(self._neighbourhood):
            return f"../{path[len(self._neighbourhood) :]}"
        if len(self.home) > 1 and path.startswith(f"{self.home}/"):
            return f"{HOME}{path[len(self.home) :]}"
        return path

    def path(self, name: str) -> str:
        """The absolute path of a name."""
        if name == HOME or name.startswith(f"{HOME}/"):
            return f"{self.home}{name[1:]}"
        return os.path.normpath(os.path.join(self.root, name))  # noqa: PTH118

    def is_inside(self, path: str) -> bool:
        """Whether an absolute path is the root or leads below it."""
        return f"{path}/".startswith(f"{self.root}/")

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
