"""GitHub's REST API, as far as publishing needs it: JSON in and out, lists in pages, and a download.

Source: GitHub, REST API documentation, version 2022-11-28.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.response import addinfourl

from onnx_ci.errors import EnvironmentLacksError
from onnx_ci.results.json_data import read_document

_TRIES = 4
_LONGEST_WAIT = 60.0
_TIMEOUT = 60.0
_LARGEST_ANSWER = 64 * 1024 * 1024
_PER_PAGE = 100
_MOST_PAGES = 50
_LONGEST_MESSAGE = 300


class ApiError(EnvironmentLacksError):
    """GitHub refused a request with a ``status``, or could not be reached, with status 0."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller. A download is redirected to another host, which must not get the token."""

    def redirect_request(self, *_: object) -> None:
        return None


class Repository:
    """The repository ``owner/name`` on GitHub, used with the token of the job."""

    def __init__(self, name: str, token: str, address: str = "https://api.github.com") -> None:
        self.name = name
        self._token = token
        self._address = f"{address.rstrip('/')}/repos/{name}"
        self._opener = urllib.request.build_opener(_NoRedirect)

    def get(self, path: str, **query: str | int) -> Any:
        """The answer to ``GET /repos/{owner}/{repo}/{path}``."""
        return self.send("GET", path, query=query)

    def send(
        self, method: str, path: str, data: Mapping[str, Any] | None = None, query: Mapping[str, str | int] | None = None
    ) -> Any:
        """The answer to a request."""
        with self._open(method, path, data, query) as answer:
            if isinstance(answer, urllib.error.HTTPError):  # a redirect, which is not followed
                raise ApiError(
                    f"GitHub answered {method} {path} with {answer.code}: the repository may have been renamed; start a new "
                    "run of the workflow, which knows its new name",
                    answer.code,
                )
            content = answer.read(_LARGEST_ANSWER)
        try:
            return read_document(content) if content else None
        except ValueError:
            raise ApiError(f"GitHub answered {method} {path} with something other than JSON; run the job again") from None

    def pages(self, path: str, *, key: str = "", **query: str | int) -> Iterator[Any]:
        """Every element of a list that GitHub sends in pages, each alone or under ``key`` in an object."""
        for number in range(1, _MOST_PAGES + 1):
            page = self.get(path, **query, per_page=_PER_PAGE, page=number)
            if key:
                page = page.get(key) if isinstance(page, dict) else None
            if not isinstance(page, list):
                raise ApiError(f"GitHub answered {path} with something other than a list")
            yield from page
            if len(page) < _PER_PAGE:
                return

    def download(self, path: str, target: Path, limit: int) -> None:
        """Follow the redirect of ``path``, and write what is there into ``target``: more than ``limit`` bytes are an error."""
        with self._open("GET", path) as answer:
            address = answer.headers.get("Location", "")
        if urllib.parse.urlsplit(address).scheme not in ("https", urllib.parse.urlsplit(self._address).scheme):
            raise ApiError(f"GitHub answered {path} without an address to download from")
        try:
            # Without the token: the address belongs to a storage service, and contains the permission to read.
            with (
                urllib.request.urlopen(address, timeout=_TIMEOUT) as source,  # noqa: S310 - its scheme is checked above
                target.open("wb") as file,
            ):
                while chunk := source.read(1 << 20):
                    limit -= len(chunk)
                    if limit < 0:
                        raise ApiError(
                            "the artifact is too large; merge the reports in a job with mode 'report', whose upload contains "
                            "no ONNX files"
                        )
                    file.write(chunk)
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(f"the artifact cannot be downloaded: {_why(error)}; run the job again") from None

    def _open(
        self, method: str, path: str, data: Mapping[str, Any] | None = None, query: Mapping[str, str | int] | None = None
    ) -> addinfourl | urllib.error.HTTPError:
        """The answer, which may be a redirect. If GitHub asks to try again, the request is sent again."""
        address = f"{self._address}/{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            "User-Agent": "onnx-ci",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        content = None if data is None else json.dumps(data).encode()
        for remaining in reversed(range(_TRIES)):
            request = urllib.request.Request(address, data=content, headers=headers, method=method)  # noqa: S310 - HTTP
            try:
                answer: addinfourl = self._opener.open(request, timeout=_TIMEOUT)
            except urllib.error.HTTPError as error:
                if 300 <= error.code < 400:
                    return error
                wait = _wait(error, method)
                if wait is None or not remaining:
                    raise _refusal(error, method, path) from None
            except (OSError, http.client.HTTPException) as error:
                wait = 1.0
                if method == "POST" or not remaining:  # a POST may have been carried out
                    raise ApiError(f"GitHub cannot be reached: {_why(error)}; run the job again") from None
            else:
                return answer
            time.sleep(wait)
        raise AssertionError("the last try returns or raises")


def _wait(error: urllib.error.HTTPError, method: str) -> float | None:
    """How many seconds to wait before the request is sent again; ``None`` if that would not help, or take too long."""
    if error.code in (403, 429):
        seconds = _number(error.headers.get("Retry-After", ""))
        if not seconds and error.headers.get("X-RateLimit-Remaining") == "0":
            seconds = max(1.0, _number(error.headers.get("X-RateLimit-Reset", "")) - time.time())
        return seconds if 0 < seconds <= _LONGEST_WAIT else None
    return 1.0 if error.code >= 500 and method != "POST" else None  # a POST may have been carried out


def _number(text: str) -> float:
    return float(text) if text.isascii() and text.isdecimal() else 0.0


def _refusal(error: urllib.error.HTTPError, method: str, path: str) -> ApiError:
    """The error with GitHub's own message and, for the usual causes, a remedy."""
    with error:
        try:
            answer = read_document(error.read(_LARGEST_ANSWER))
        except (ValueError, OSError, http.client.HTTPException):
            answer = None
    message = answer.get("message") if isinstance(answer, dict) else None
    reason = f": {str(message)[:_LONGEST_MESSAGE]}" if message else ""
    permissions = "; give the job the permissions that docs/github-actions.md lists for this input"
    remedies = {401: "; the token is not valid: give the action that of the job", 403: permissions, 404: permissions}
    return ApiError(f"GitHub answered {method} {path} with {error.code}{reason}{remedies.get(error.code, '')}", error.code)


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return str(reason)[:_LONGEST_MESSAGE]
