"""A headless Chromium that tests drive over the DevTools protocol, through a pair of pipes: no port, no other package."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)
NO_PROGRAM = "there is no chromium, chromium-browser or google-chrome on the PATH"
_SECONDS = 30.0


class Page:
    """One tab, and all that it said since it was opened."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._left, self._number = b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and give its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writing, data) :]
        answer = self._until(lambda message: message.get("id") == self._number)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, file: Path, fragment: str = "") -> None:
        """Load a file and wait until it is loaded."""
        for address in ("about:blank", file.as_uri() + fragment):  # a mere change of the fragment would load nothing
            self.events.clear()
            self.send("Page.navigate", url=address)
            while not self.said("Page.loadEventFired"):
                self._until(lambda message: "method" in message)

    def run(self, script: str) -> Any:
        """The value of an expression, once a promise that it gives is settled."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Type one key, as a keyboard does."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _SECONDS
        while not self.run(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def said(self, *methods: str) -> list[dict[str, Any]]:
        """The events of these kinds since the page was opened."""
        return [event["params"] for event in self.events if event["method"] in methods]

    def _until(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next message of a kind; the events among those before it are kept."""
        end = time.monotonic() + _SECONDS
        while True:
            while b"\0" in self._left:
                first, self._left = self._left.split(b"\0", 1)
                message = json.loads(first)
                if "method" in message:
                    self.events.append(message)
                if is_it(message):
                    return message
            ready, _, _ = select.select([self._reading], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            more = os.read(self._reading, 1 << 20)
            assert more, "Chromium ended"
            self._left += more


_START = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
"""The browser reads commands on descriptor 3 and writes answers on 4."""


@contextlib.contextmanager
def chromium() -> Iterator[Page]:
    """A browser with a fresh profile; both are gone afterwards."""
    assert PROGRAM is not None
    (commands, writing), (reading, answers) = os.pipe(), os.pipe()
    # Moved out of the way of 3 and 4, which either may be by chance.
    theirs = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (commands, answers)]
    profile = tempfile.mkdtemp(prefix="onnx-ci-chromium-")
    command = [
        *(sys.executable, "-S", "-c", _START, *map(str, theirs)),
        *(PROGRAM, "--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run", "--disable-gpu"),
        *("--no-sandbox", "--disable-dev-shm-usage"),  # as root and in containers it would not start
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-crash-reporter"),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        pass_fds=theirs, start_new_session=True, env={**os.environ, "HOME": profile},
    )  # fmt: skip
    for end in (*theirs, commands, answers):
        os.close(end)
    try:
        yield Page(reading, writing)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(writing)
        os.close(reading)
        shutil.rmtree(profile, ignore_errors=True)
