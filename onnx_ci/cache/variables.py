"""The environment variables that count: all but those of the terminal, the shell, the session and the CI's job."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Iterable, Mapping

from onnx_ci.cache.contents import digest_of_text
from onnx_ci.cache.places import Places

VOLATILE = (
    # terminal, shell and editor
    *("_", "COLUMNS", "LINES", "TERM", "TERMCAP", "TERMINFO", "TERM_*", "COLORTERM", "COLORFGBG", "VTE_VERSION", "WINDOWID"),
    *("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "LS_COLORS", "LSCOLORS", "GREP_COLOR*", "GCC_COLORS", "LESS*"),
    *("PS1", "PS2", "PS4", "PROMPT*", "SHELL", "SHLVL", "PWD", "OLDPWD", "HISTFILE", "HISTSIZE", "HISTCONTROL", "HISTFILESIZE"),
    *("TMUX", "TMUX_*", "STY", "WINDOW", "ITERM_*", "KITTY_*", "KONSOLE_*", "WEZTERM_*", "ALACRITTY_*", "WT_SESSION", "WSL*"),
    *("EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "VSCODE_*", "PYCHARM_*", "JETBRAINS_*", "EMACS", "INSIDE_EMACS"),
    # user, home and session
    *("HOME", "USER", "USERNAME", "LOGNAME", "MAIL", "HOSTNAME", "HOST", "NAME", "SUDO_*", "SSH_*", "GPG_*", "XDG_*", "DBUS_*"),
    *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "SESSION_MANAGER", "DESKTOP_*", "GNOME_*", "KDE_*", "GTK_*", "QT_*"),
    *("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_*", "MANAGERPID", "NOTIFY_SOCKET"),
    # where programs and temporary files are: what is started and opened is seen
    *("PATH", "MANPATH", "INFOPATH", "TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_*", "PYENV_*"),
    # programs that start onnx-ci
    *("GIT_*", "PYTEST_*", "TOX_*", "NOX_*", "COV_*", "COVERAGE_*", "PRE_COMMIT*", "UV", "UV_*", "PIP_*", "POETRY_*"),
    *("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPYCACHEPREFIX"),
    # settings are compared as settings; onnx-ci sets the others itself
    *("ONNX_CI_*", "PYTORCH_NVML_BASED_CUDA_CHECK", "GOMP_SPINCOUNT"),
    # the CI's job
    *("GITHUB_*", "RUNNER_*", "ACTIONS_*", "ImageOS", "ImageVersion", "GITLAB_*", "BUILDKITE_*", "CIRCLE_*", "JENKINS_*"),
    *("HUDSON_*", "TEAMCITY_*", "BITBUCKET_*", "APPVEYOR_*", "CODEBUILD_*", "DRONE_*", "SEMAPHORE_*", "CIRRUS_*", "TRAVIS_*"),
    *("CI_JOB_*", "CI_PIPELINE_*", "CI_COMMIT_*", "CI_RUNNER_*", "CI_BUILD_*", "CI_SERVER_*", "CI_PROJECT_*"),
    *("CI_CONCURRENT_*", "CI_NODE_*", "CI_MERGE_REQUEST_*", "BUILD_ID", "BUILD_NUMBER", "BUILD_TAG", "BUILD_URL", "RUN_ID"),
    "BUILD_DISPLAY_NAME",
)  # fmt: skip
"""Names and patterns of names."""
OF_ONE_CI: Mapping[str, tuple[str, ...]] = {
    "GITHUB_ACTIONS": (
        "INPUT_*",
        "STATE_*",
        "JAVA_HOME*",
        "GOROOT_*",
        "ANDROID_*",
        "AGENT_TOOLSDIRECTORY",
        "DEPLOYMENT_BASEPATH",
    ),
    "GITLAB_CI": ("CI_*", "FF_*"),
    "JENKINS_URL": ("JOB_*", "NODE_NAME", "NODE_LABELS", "EXECUTOR_NUMBER", "WORKSPACE", "STAGE_NAME", "RUN_*"),
    "TF_BUILD": (
        *("SYSTEM_*", "AGENT_*", "BUILD_*", "TASK_*", "ENDPOINT_*", "RELEASE_*", "COMMON_TESTRESULTSDIRECTORY", "VSTS_*"),
    ),
}
"""Patterns that do not count only where a variable is set that the CI system sets."""


def variables(environment: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """The variables that count.

    Args:
        environment: all variables.
        more: further names and patterns that do not count.
    """
    of_this_ci = (pattern for mark, patterns in OF_ONE_CI.items() if mark in environment for pattern in patterns)
    volatile = re.compile("|".join(map(fnmatch.translate, [*VOLATILE, *of_this_ci, *more])))
    return {name: value for name, value in sorted(environment.items()) if not volatile.match(name)}


def digests(variables: Mapping[str, str], places: Places) -> dict[str, str]:
    """Two digests of each value by name: of the value itself, and of the value with paths as every clone and user has them."""
    return {name: f"{_digest(name, value)} {_digest(name, places.normalized(value))}" for name, value in variables.items()}


def are_same(before: str, after: str) -> bool:
    """Whether two values are equal, or are equal but for paths, given their digests."""
    return any(map(operator.eq, before.split(), after.split()))


def _digest(name: str, value: str) -> str:
    return digest_of_text(f"{name}={value}")[:16]
