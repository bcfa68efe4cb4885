"""What becomes of the comment: a new verdict notifies, everything else does not."""

from __future__ import annotations

import pytest

from onnx_ci.github.publish import Comment, Decision, decide
from onnx_ci.results.verdict import RunVerdict

GREEN, RED, NOTHING = RunVerdict.PASSED, RunVerdict.FAILED, RunVerdict.NOTHING_RAN


def body(verdict, text="text", gate="nets"):
    return f"<!-- onnx-ci: {gate} is {verdict.value} -->\n{text}"


def there(*bodies):
    return [Comment(id=number, body=each) for number, each in enumerate(bodies)]


@pytest.mark.parametrize(
    ("verdict", "is_news", "existing", "decision"),
    [
        (GREEN, False, [], Decision()),
        (RED, False, [], Decision()),
        (GREEN, True, [], Decision(create=body(GREEN))),
        (RED, True, [], Decision(create=body(RED))),
        (RED, True, [body(RED)], Decision()),
        (RED, True, [body(RED).replace("\n", "\r\n") + "\r\n"], Decision()),
        (RED, True, [body(RED, "other")], Decision(edit=(0, body(RED)))),
        (GREEN, False, [body(GREEN, "other")], Decision(edit=(0, body(GREEN)))),
        (GREEN, False, [body(RED)], Decision(create=body(GREEN), delete=(0,))),
        (RED, True, [body(GREEN)], Decision(create=body(RED), delete=(0,))),
        (RED, False, [body(GREEN)], Decision(create=body(RED), delete=(0,))),
        (NOTHING, True, [body(RED)], Decision(create=body(NOTHING), delete=(0,))),
        (RED, True, [body(GREEN), body(RED)], Decision(delete=(0,))),
        (GREEN, True, [body(GREEN), body(RED)], Decision(create=body(GREEN), delete=(0, 1))),
        (RED, True, [body(RED, gate="other"), "something else"], Decision(create=body(RED))),
        (RED, True, [f"> {body(RED)}", f"quoted\n{body(RED)}", ""], Decision(create=body(RED))),
    ],
)
def test_a_comment_is_made_edited_or_left_alone(verdict, is_news, existing, decision):
    assert decide("nets", verdict, "text", there(*existing), is_news=is_news) == decision
