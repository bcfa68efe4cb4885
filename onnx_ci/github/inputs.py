"""The inputs of the actions, each from an environment variable, validated before anything else happens.

No text of a workflow is ever part of a script, so nothing in it can be executed. An invalid input ends the run with a
message that names it.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx_ci.config.values import OFF
from onnx_ci.errors import ConfigurationError, did_you_mean

SETTINGS = {
    "run": ("opsets", "devices", "require-devices", "exporters", "select", "shard"),
    "matrix": ("opsets", "devices", "exporters", "select"),
    "report": (),
}
"""For each mode, the inputs that are settings of onnx-ci. They are passed on unchanged: the command validates them."""
_SWITCHES = ("require-devices",)
"""The settings whose flags take no value."""
UPLOADS = ("failed", "always", "never")
CACHES = ("true", "read-write", "read", OFF, "false")
"""The values of ``cache``: who saves verdicts (the default branch, every branch, nobody), or no cache at all."""
_REFUSED_FLAGS = {
    "--": "use the input 'paths'",
    "--html": "use the input 'report'",
    "--json": "use the input 'report'",
    "--plan": "use the input 'upload'",
    "--markdown": "use the input 'summary'",
    "--report": "use the input 'report'",
    "--summary": "use the input 'summary'",
}
"""The flags that the action itself passes to the command, and what to do instead."""
_ARTIFACT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+ -]{0,119}")
_LONGEST_SHOWN = 80


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The validated inputs, with their defaults."""

    mode: str
    directory: str
    """The folder to work in, absolute."""
    paths: tuple[str, ...]
    settings: tuple[str, ...]
    """Settings as flags of the command."""
    args: tuple[str, ...]
    install: bool
    extras: tuple[str, ...]
    """The extras to install; empty if the action chooses."""
    summary: bool
    annotations: bool
    cache: str
    """One of :data:`CACHES`; ``off`` for ``false``."""
    upload: str
    artifact_name: str
    """Empty if the action chooses."""
    report: str
    """The folder for the reports, absolute; empty if none was requested."""


def read_inputs(environment: Mapping[str, str]) -> Inputs:
    """The inputs of ``action.yml``. A missing or empty one has its default; an invalid one is an error."""
    mode = _choice(environment, "mode", tuple(SETTINGS))
    directory = _directory(environment)
    install, extras = _install(environment)
    paths = tuple(line.strip() for line in _text(environment, "paths").splitlines() if line.strip())
    _check_paths("paths", paths, directory)
    inputs = Inputs(
        mode=mode,
        directory=str(directory),
        paths=paths,
        settings=_settings(environment, mode),
        args=_args(environment, directory),
        install=install,
        extras=extras,
        summary=_is_on(environment, "summary"),
        annotations=_is_on(environment, "annotations"),
        cache=OFF if (cache := _choice(environment, "cache", CACHES)) == "false" else cache,
        upload=_choice(environment, "upload", UPLOADS),
        artifact_name=_artifact_name(environment),
        report=_report(environment, directory),
    )
    if mode == "report" and not inputs.paths:
        raise ConfigurationError(
            "with mode 'report', the input 'paths' must name JSON reports or folders of them, one per line"
        )
    return inputs


@dataclass(frozen=True, kw_only=True)
class PublishInputs:
    """The validated inputs of ``publish/action.yml``."""

    comment: bool
    check: bool
    artifact_name: str


def read_publish_inputs(environment: Mapping[str, str]) -> PublishInputs:
    """The inputs of ``publish/action.yml``; an invalid one is an error."""
    switches = {name: _choice(environment, name, ("false", "true")) == "true" for name in ("comment", "check")}
    if not any(switches.values()):
        raise ConfigurationError("nothing is to be published: set 'comment' or 'check'")
    return PublishInputs(**switches, artifact_name=_artifact_name(environment) or "onnx-export")


def _text(environment: Mapping[str, str], name: str) -> str:
    return environment.get(f"INPUT_{name.upper().replace('-', '_')}", "").strip()


def _shown(text: str) -> str:
    """An invalid value as one line of limited length, which the runner cannot mistake for a command."""
    return repr(text) if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]!r}… ({len(text)} characters)"


def _choice(environment: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = _text(environment, name).lower()
    if text and text not in choices:
        raise ConfigurationError(
            f"the input {name!r} must be {', '.join(choices[:-1])} or {choices[-1]}, not {_shown(text)}"
            f"{did_you_mean(text, choices)}"
        )
    return text or choices[0]


def _is_on(environment: Mapping[str, str], name: str) -> bool:
    return _choice(environment, name, ("true", "false")) == "true"


def _directory(environment: Mapping[str, str]) -> Path:
    name = _text(environment, "working-directory")
    folder = Path(environment.get("GITHUB_WORKSPACE") or ".", name).absolute()
    if not (_is_possible(folder) and folder.is_dir()):
        raise ConfigurationError(f"the input 'working-directory' does not name a folder of the checkout: {_shown(name)}")
    return folder


def _is_possible(path: Path) -> bool:
    """Whether such a path can exist; some strings are too long for that."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError):
        return False
    return True


def _check_paths(name: str, words: Iterable[str], directory: Path) -> None:
    for word in words:
        if not _is_possible(directory / word):
            raise ConfigurationError(f"the input {name!r} contains an invalid path: {_shown(word)}")


def _settings(environment: Mapping[str, str], mode: str) -> tuple[str, ...]:
    flags = []
    for name in SETTINGS["run"]:
        text = _text(environment, name)
        if text and name not in SETTINGS[mode]:
            raise ConfigurationError(f"the input {name!r} cannot be used with mode {mode!r}; remove it")
        if name in _SWITCHES:
            flags += [f"--{name}"] * (_choice(environment, name, ("false", "true")) == "true")
        elif text:
            flags.append(f"--{name}={text}")
    return tuple(flags)


def _args(environment: Mapping[str, str], directory: Path) -> tuple[str, ...]:
    """Additional flags, split as a shell would split them, but without any expansion."""
    try:
        words = tuple(shlex.split(_text(environment, "args")))
    except ValueError as error:
        message = f"the input 'args' cannot be read: {str(error).lower()}; quote its words as in a shell"
        raise ConfigurationError(message) from None
    for flag in (word.partition("=")[0] for word in words):
        if flag in _REFUSED_FLAGS:
            raise ConfigurationError(f"the input 'args' cannot contain {flag}; {_REFUSED_FLAGS[flag]}")
    _check_paths("args", (word for word in words if not word.startswith("-")), directory)
    return words


def _install(environment: Mapping[str, str]) -> tuple[bool, tuple[str, ...]]:
    """Whether to install onnx-ci, and with which extras."""
    text = _text(environment, "install")
    if text.lower() in ("", "true", "false"):
        return text.lower() != "false", ()
    extras = tuple(word.strip() for word in text.split(","))
    existing = project(environment)["optional-dependencies"]
    for extra in extras:
        if extra not in existing:
            raise ConfigurationError(
                f"the input 'install' must be true, false, or extras of onnx-ci ({', '.join(existing)}), not {_shown(extra)}"
                f"{did_you_mean(extra, existing)}"
            )
    return True, extras


def project(environment: Mapping[str, str]) -> Mapping[str, Mapping[str, Iterable[str]]]:
    """The table ``[project]`` of the action's own ``pyproject.toml``."""
    file = Path(environment["GITHUB_ACTION_PATH"], "pyproject.toml")
    table: Mapping[str, Mapping[str, Iterable[str]]] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    return table


def _artifact_name(environment: Mapping[str, str]) -> str:
    name = _text(environment, "artifact-name")
    if name and not _ARTIFACT_NAME.fullmatch(name):
        raise ConfigurationError(
            "the input 'artifact-name' may contain up to 120 letters, digits, spaces, '.', '_', '+' and '-', and must begin "
            f"with a letter or digit; not {_shown(name)}"
        )
    return name


def _report(environment: Mapping[str, str], directory: Path) -> str:
    name = _text(environment, "report")
    if not name:
        return ""
    folder = directory / name
    try:
        if not name.isprintable():
            raise ValueError("it contains a control character")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"the input 'report' names a folder that cannot be created: {_shown(name)}: {why}") from None
    return str(folder)
