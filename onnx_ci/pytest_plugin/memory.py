"""What a run of pytest depends on beside its files, so that it can be remembered; see :mod:`onnx_ci.cache.remembered_run`."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from onnx_ci.cache.files_state import state_of
from onnx_ci.cache.observed import observe
from onnx_ci.cache.remembered_run import RunMemory, why_not_remembered
from onnx_ci.config.settings import Settings
from onnx_ci.environment.libraries import file_of, is_library

_SHOWN = frozenset({"-v", "-vv", "-vvv", "--verbose", "-q", "-qq", "--quiet", "--co", "--collect-only", "--collectonly"})
"""Arguments that say what is shown of the cells."""
_SHOWN_OPTIONS = frozenset({"verbose", "quiet", "collectonly"})
_OF_PYTEST = ("lastfailed", "nodeids", "stepwise")
"""Files of pytest's own cache, from which it decides which items run. What it decides is compared instead."""
_MAIN = ("__main__", "__mp_main__")
"""The names of the module of the program itself."""
_WHY_NOT_SEEN = pytest.StashKey[str]()
"""What happened in this process before it was observed, if that matters; empty if it does not."""


def observe_from_now_on(config: pytest.Config) -> None:
    """Observe this process, before it imports a conftest.py."""
    config.stash[_WHY_NOT_SEEN] = _what_happened_before()
    observe()


def memory_of(config: pytest.Config, settings: Settings, written: Collection[Path]) -> tuple[RunMemory | None, str]:
    """The remembered runs of this command, or ``None`` and why it has none.

    Args:
        config: the configuration of pytest, which has done everything that comes before the collection.
        settings: the settings of the run.
        written: files that onnx-ci writes, by their absolute paths.
    """
    why_not = why_not_remembered(settings)
    if not why_not and (hasattr(config, "workerinput") or config.pluginmanager.hasplugin("dsession")):
        why_not = "pytest-xdist distributes the cells"
    if not why_not:
        why_not = config.stash.get(_WHY_NOT_SEEN, "onnx-ci was loaded after conftest.py files")
    return (None, why_not) if why_not else (RunMemory(settings, _request(config), [*written, *_written_by_pytest(config)]), "")


def _what_happened_before() -> str:
    if not _is_program():
        return "another program than pytest calls it"
    for name, module in list(sys.modules.items()):
        file = file_of(module)
        if file is not None and name not in _MAIN and not is_library(name):
            return f"{file} was imported before onnx-ci could see what it opens"
    return ""


def _is_program() -> bool:
    """Whether pytest is what this process was started for; otherwise it can have done anything before."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", "__main__")
    if name != "__main__":
        return bool(name == "pytest.__main__")
    script = Path(sys.argv[0]).absolute()
    file = Path(getattr(main, "__file__", None) or "").absolute()  # on Windows, it is in the script, which is an archive
    return file.is_relative_to(script) and script.parent == Path(sysconfig.get_path("scripts")) and script.stem == "pytest"


def _request(config: pytest.Config) -> list[str]:
    """Every argument and option, except those that only say what is shown, and the configuration file."""
    arguments = [str(argument) for argument in config.invocation_params.args if argument not in _SHOWN]
    options = sorted((name, repr(value)) for name, value in vars(config.option).items() if name not in _SHOWN_OPTIONS)
    file = "" if config.inipath is None else str(config.inipath)
    plugins = [(each, state_of(each)) for each in plugin_files(config)]
    return ["pytest", repr(arguments), repr(options), str(config.invocation_params.dir), file, state_of(file), repr(plugins)]


def plugin_files(config: pytest.Config) -> list[str]:
    """The files of all plugins and of each conftest.py so far. pytest forgets the module of one when it imports the next."""
    files = (file_of(plugin) for plugin in config.pluginmanager.get_plugins())
    return sorted({os.path.abspath(file) for file in files if file is not None})  # noqa: PTH100 (as elsewhere)


def _written_by_pytest(config: pytest.Config) -> Iterator[Path]:
    if junit := getattr(config.option, "xmlpath", None):
        yield Path(os.path.expandvars(junit)).expanduser().absolute()
    if folder := getattr(getattr(config, "cache", None), "_cachedir", None):
        yield from (Path(folder, "v", "cache", name) for name in _OF_PYTEST)
