"""A branch that has only what onnx-ci publishes, in a single commit, so that it does not grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx_ci.errors import ConfigurationError
from onnx_ci.github.rest import ApiError, Repository

_MESSAGE = "Published by onnx-ci"
"""The message of the commit, by which the branch is recognized as one that may be replaced."""


def replace_branch(repository: Repository, branch: str, files: Mapping[str, str]) -> None:
    """Let ``branch`` contain ``files``, by their names, and nothing else.

    Raises:
        ConfigurationError: there is such a branch, and it has something else.
    """
    before = _commit_of(repository, branch)
    if before is not None and before.get("message") != _MESSAGE:
        raise ConfigurationError(
            f"the branch {branch!r} was not made by onnx-ci, so it is not replaced; name another in 'badge'"
        )
    entries = [{"path": name, "mode": "100644", "type": "blob", "content": text} for name, text in files.items()]
    tree = repository.send("POST", "git/trees", {"tree": entries})
    commit = repository.send("POST", "git/commits", {"message": _MESSAGE, "tree": tree["sha"], "parents": []})
    if before is None:
        repository.send("POST", "git/refs", {"ref": f"refs/heads/{branch}", "sha": commit["sha"]})
    else:
        repository.send("PATCH", f"git/refs/heads/{branch}", {"sha": commit["sha"], "force": True})


def _commit_of(repository: Repository, branch: str) -> Any:
    """The last commit of the branch; ``None`` if there is no such branch."""
    try:
        found = repository.get(f"git/ref/heads/{branch}")
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return repository.get(f"git/commits/{found['object']['sha']}")
