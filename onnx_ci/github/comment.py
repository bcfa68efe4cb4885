"""What becomes of the comment on a pull request. Nothing here talks to GitHub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_ci.results.verdict import RunVerdict

_MARKER = re.compile(r"<!-- onnx-ci: (?P<gate>[A-Za-z0-9._+ -]+) is (?P<verdict>[a-z-]+) -->")


@dataclass(frozen=True, kw_only=True)
class Comment:
    """A comment that is there, written by the account that this one writes as."""

    id: int
    body: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do."""

    create: str | None = None
    """The body of a new comment."""
    edit: tuple[int, str] | None = None
    """The comment whose body to replace, and by what."""
    delete: tuple[int, ...] = ()
    """The comments to delete, after a new one is there."""


def decide(gate: str, verdict: RunVerdict, text: str, existing: Sequence[Comment], *, is_news: bool) -> Decision:
    """What to do about the comment on a verdict.

    GitHub notifies of new comments, not of edits. So a new verdict replaces the old comment with a new one, and any other
    change edits it. If nothing differs from the base, no comment is created.

    Args:
        gate: the name of the gate; each has a comment of its own.
        verdict: its verdict on the head of the pull request.
        text: what the comment says.
        existing: the comments that are there, the oldest first.
        is_news: whether anything is different from the base.
    """
    body = f"<!-- onnx-ci: {gate} is {verdict.value} -->\n{text}"
    own = [(each, match["verdict"]) for each in existing if (match := _marker_of(each)) and match["gate"] == gate]
    if not own:
        return Decision(create=body if is_news else None)
    (last, before), others = own[-1], tuple(each.id for each, _ in own[:-1])
    if before != verdict.value:
        return Decision(create=body, delete=(*others, last.id))
    is_same = last.body.replace("\r\n", "\n").strip() == body.strip()
    return Decision(edit=None if is_same else (last.id, body), delete=others)


def _marker_of(comment: Comment) -> re.Match[str] | None:
    """The first line, which says what the comment is about; text of reports stands only below it."""
    first, _, _ = comment.body.partition("\n")
    return _MARKER.fullmatch(first.strip())
