"""A branch that contains only what onnx-ci publishes, in a single commit, so that it does not grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx_ci.errors import ConfigurationError
from onnx_ci.github.rest import ApiError, Repository

_MESSAGE = "Published by onnx-ci"
"""The message of the commit. A branch with such a commit may be replaced."""


def replace_branch(repository: Repository, branch: str, files: Mapping[str, str]) -> None:
    """Make ``branch`` contain ``files`` and nothing else.

    Args:
        repository: the repository.
        branch: the name of the branch; created if there is none.
        files: the contents, by path.

    Raises:
        ConfigurationError: the branch has another commit than one of onnx-ci.
    """
    present = _commit_of(repository, branch)
    if present is not None and present.get("message") != _MESSAGE:
        raise ConfigurationError(
            f"the branch {branch!r} was not made by onnx-ci, so it is not replaced; name another in 'badge'"
        )
    entries = [{"path": name, "mode": "100644", "type": "blob", "content": text} for name, text in files.items()]
    tree = repository.send("POST", "git/trees", {"tree": entries})
    commit = repository.send("POST", "git/commits", {"message": _MESSAGE, "tree": tree["sha"], "parents": []})
    if present is None:
        repository.send("POST", "git/refs", {"ref": f"refs/heads/{branch}", "sha": commit["sha"]})
    else:
        repository.send("PATCH", f"git/refs/heads/{branch}", {"sha": commit["sha"], "force": True})


def _commit_of(repository: Repository, branch: str) -> Any:
    """The last commit of the branch; ``None`` if there is no such branch."""
    try:
        reference = repository.get(f"git/ref/heads/{branch}")
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return repository.get(f"git/commits/{reference['object']['sha']}")
