"""GitHub's REST API on this machine, as far as a verdict is published through it, and the event that starts that.

The answers have the fields that GitHub documents and the code reads, among others that it does not.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import re
import threading
import urllib.parse
import zipfile

REPOSITORY = {"id": 1, "full_name": "me/nets", "default_branch": "main", "private": False}
OWN = {"id": 1, "full_name": "me/nets", "owner": {"login": "me", "type": "User"}}
FORK = {"id": 2, "full_name": "stranger/nets", "owner": {"login": "stranger", "type": "User"}}
BOT = {"login": "github-actions[bot]", "type": "Bot"}


def zipped(**files):
    """The bytes of an archive with files, whose names have ``_`` for the last ``.``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(".".join(name.rsplit("_", 1)), content)
    return buffer.getvalue()


class FakeGitHub:
    """A repository on a server of its own, for the length of a ``with`` block.

    Attributes:
        address: that of the API.
        requests: the method and the path of each request that changes something, in order.
        failures: for each request to fail: the method, a part of the path, the status and the headers of the answer.
    """

    def __init__(self):
        self.forget()

    def forget(self):
        """Forget everything, and keep the address."""
        self.runs, self.artifacts, self.jobs, self.pulls, self.comments = {}, {}, {}, [], {}
        self.checks = []
        self.requests, self.failures = [], []
        self._numbers = iter(range(1000, 100_000))

    def __enter__(self):
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self):
                fake._answer(self)

            do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 - these are the names that are called

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # --- what happens on GitHub

    def run(self, event, sha, *, branch, of=OWN, artifact=None, name="onnx-export", conclusion="success", jobs=None):
        """A run that has ended, perhaps with an artifact: the payload of the event that it causes.

        The jobs are conclusions by name.
        """
        id = next(self._numbers)
        self.runs[id] = {
            "id": id, "name": "onnx", "workflow_id": 5, "event": event, "head_sha": sha, "head_branch": branch,
            "head_repository": of, "run_attempt": 1, "run_started_at": self._now(), "status": "completed",
            "conclusion": conclusion, "html_url": f"https://github.com/me/nets/actions/runs/{id}", "pull_requests": [],
        }  # fmt: skip
        self.jobs[id] = jobs or {}
        if artifact is not None:
            self.upload(id, artifact, name)
        return self.payload(id)

    def again(self, payload, artifact, conclusion="success", jobs=None):
        """The run is repeated, with another artifact. Without conclusions of its jobs, each ends as the run does."""
        run = self.runs[payload["workflow_run"]["id"]]
        run.update(run_attempt=run["run_attempt"] + 1, run_started_at=self._now(), conclusion=conclusion)
        self.jobs[run["id"]] = jobs or dict.fromkeys(self.jobs[run["id"]], conclusion)
        if artifact is not None:
            self.upload(run["id"], artifact, "onnx-export")
        return self.payload(run["id"])

    def payload(self, id):
        return {"action": "completed", "workflow": {"id": 5}, "workflow_run": dict(self.runs[id]), "repository": REPOSITORY}

    def upload(self, run, content, name):
        id = next(self._numbers)
        self.artifacts[id] = {
            "id": id, "name": name, "expired": False, "created_at": self._now(), "size_in_bytes": len(content),
            "workflow_run": {"id": run}, "content": content,
        }  # fmt: skip

    def pull(self, number, sha, *, branch="topic", of=OWN, base="main"):
        """A pull request is opened, or gets another commit."""
        self.pulls = [each for each in self.pulls if each["number"] != number]
        head = {"sha": sha, "ref": branch, "repo": of, "user": of["owner"]}
        self.pulls.append(
            {"number": number, "state": "open", "head": head, "base": {"ref": base, "sha": "d" * 40, "repo": OWN}}
        )

    def say(self, number, body, user):
        comment = {"id": next(self._numbers), "body": body, "user": user}
        self.comments.setdefault(number, []).append(comment)
        return comment

    def _now(self):
        return f"2026-01-01T00:00:{next(self._numbers)}Z"

    # --- the API

    def _answer(self, request):
        length = int(request.headers.get("Content-Length") or 0)
        data = json.loads(request.rfile.read(length)) if length else None
        path, _, query = request.path.partition("?")
        query = {key: values[0] for key, values in urllib.parse.parse_qs(query).items()}
        if match := re.fullmatch(r"/storage/(\d+)", path):
            # A storage takes no token, and must not see it.
            status = 400 if request.headers.get("Authorization") else 200
            return self._send(request, status, self.artifacts[int(match[1])]["content"], {})
        assert request.headers["Authorization"] == "Bearer secret"
        path = path.removeprefix("/repos/me/nets/")
        if request.command != "GET":
            self.requests.append((request.command, path))
        for failure in self.failures:
            method, part, status, headers = failure
            if method == request.command and part in path:
                self.failures.remove(failure)
                return self._send(request, status, b'{"message": "not now"}', headers)
        status, answer, headers = self._handle(request.command, path, query, data)
        return self._send(request, status, b"" if answer is None else json.dumps(answer).encode(), headers)

    @staticmethod
    def _send(request, status, content, headers):
        with contextlib.suppress(OSError):
            request.send_response(status)
            for name, value in {"Content-Length": len(content), **headers}.items():
                request.send_header(name, str(value))
            request.end_headers()
            request.wfile.write(content)

    def _handle(self, method, path, query, data):
        for pattern, handler in self._routes():
            wanted, _, rest = pattern.partition(" ")
            if method == wanted and (match := re.fullmatch(rest, path)):
                answer = handler(*match.groups(), query=query, data=data)
                return answer if isinstance(answer, tuple) else (200, answer, {})
        return 404, {"message": "Not Found"}, {}

    def _routes(self):
        return [
            (r"GET actions/runs/(\d+)/artifacts", self._artifacts_of),
            (r"GET actions/runs/(\d+)/attempts/\d+/jobs", self._jobs_of),
            (r"GET actions/artifacts/(\d+)/zip", lambda each, **_: (302, None, {"Location": f"{self.address}/storage/{each}"})),
            (r"GET actions/workflows/5/runs", self._runs_of),
            (r"GET pulls", self._pulls_of),
            (r"GET issues/(\d+)/comments", lambda number, query, **_: _page(self.comments.get(int(number), []), query)),
            (r"POST issues/(\d+)/comments", lambda number, data, **_: (201, self.say(int(number), data["body"], BOT), {})),
            (r"PATCH issues/comments/(\d+)", self._edit),
            (r"DELETE issues/comments/(\d+)", self._delete),
            (r"POST check-runs", lambda data, **_: (201, self.checks.append(data), {})),
        ]

    def _artifacts_of(self, run, query, **_):
        found = [each for each in self.artifacts.values() if each["workflow_run"]["id"] == int(run)]
        return {"artifacts": [{**each, "content": None} for each in found if each["name"] == query["name"]]}

    def _jobs_of(self, run, query, **_):
        found = [{"name": name, "conclusion": conclusion} for name, conclusion in self.jobs[int(run)].items()]
        return {"jobs": _page(found, query)}

    def _runs_of(self, query, **_):
        found = [
            each
            for each in self.runs.values()
            if each["head_branch"] == query["branch"] and query.get("event") in (None, each["event"])
        ]
        return {"workflow_runs": found[::-1][: int(query["per_page"])]}

    def _pulls_of(self, query, **_):
        return _page(
            [each for each in self.pulls if f"{each['head']['user']['login']}:{each['head']['ref']}" == query["head"]], query
        )

    def _edit(self, id, data, **_):
        (comment,) = [each for every in self.comments.values() for each in every if each["id"] == int(id)]
        comment["body"] = data["body"]
        return comment

    def _delete(self, id, **_):
        for number, every in self.comments.items():
            self.comments[number] = [each for each in every if each["id"] != int(id)]
        return 204, None, {}


def _page(found, query):
    size, page = int(query["per_page"]), int(query["page"])
    return found[size * (page - 1) : size * page]
