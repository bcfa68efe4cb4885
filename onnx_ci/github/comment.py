"""Whether the comment on a pull request is created, edited or deleted. Its text is by :mod:`onnx_ci.report.pull_request`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_ci.results.verdict import RunVerdict

_MARKER = re.compile(r"<!-- onnx-ci: (?P<gate>[A-Za-z0-9._+ -]+) is (?P<verdict>[a-z-]+) -->")


@dataclass(frozen=True, kw_only=True)
class Comment:
    """A comment on the pull request, by the account that writes ours."""

    id: int
    body: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do."""

    create: str | None = None
    """The body of a new comment."""
    edit: tuple[int, str] | None = None
    """The id of the comment to edit, and its new body."""
    delete: tuple[int, ...] = ()
    """The ids of the comments to delete, after the new one is written."""


def decide(gate: str, verdict: RunVerdict, text: str, existing: Sequence[Comment], *, is_news: bool) -> Decision:
    """What to do about the comment on a verdict.

    GitHub notifies people of new comments, but not of edits. So a new verdict replaces the old comment with a new one, and any
    other change edits it. If nothing differs from the base, no comment is created.

    Args:
        gate: the name of the gate; each has its own comment.
        verdict: its verdict on the head of the pull request.
        text: what the comment says.
        existing: the comments on the pull request, oldest first.
        is_news: whether anything differs from the base.
    """
    body = f"<!-- onnx-ci: {gate} is {verdict.value} -->\n{text}"
    # The marker is in the first line. Text of reports stands only below it, so nobody else can write one.
    markers = [(comment, _MARKER.fullmatch(comment.body.partition("\n")[0].strip())) for comment in existing]
    ours = [(comment, marker["verdict"]) for comment, marker in markers if marker and marker["gate"] == gate]
    if not ours:
        return Decision(create=body if is_news else None)
    last, last_verdict = ours[-1]
    older = tuple(comment.id for comment, _ in ours[:-1])
    if last_verdict != verdict.value:
        return Decision(create=body, delete=(*older, last.id))
    is_same = last.body.replace("\r\n", "\n").strip() == body.strip()
    return Decision(edit=None if is_same else (last.id, body), delete=older)
