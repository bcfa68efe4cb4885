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
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)
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
            self._until(lambda message: message.get("method") == "Page.loadEventFired", self.events)

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

    def _until(self, is_it: Any, known: list[dict[str, Any]] = ()) -> dict[str, Any]:  # type: ignore[assignment]
        end = time.monotonic() + _SECONDS
        for message in list(known):
            if is_it(message):
                return message
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


@contextlib.contextmanager
def chromium(*flags: str) -> Iterator[Page]:
    """A browser with a fresh profile; both are gone afterwards."""
    assert PROGRAM is not None
    to_browser, from_browser = os.pipe(), os.pipe()
    # The browser reads commands on 3 and writes answers on 4; the ends are moved out of the way of both numbers first.
    theirs = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (to_browser[0], from_browser[1])]
    profile = tempfile.mkdtemp(prefix="onnx-ci-chromium-")
    command = [
        PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-default-browser-check",
        "--remote-debugging-pipe", f"--user-data-dir={profile}", *flags,
    ]  # fmt: skip

    def hand_over() -> None:
        os.dup2(theirs[0], 3)
        os.dup2(theirs[1], 4)

    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        close_fds=False, preexec_fn=hand_over, start_new_session=True, env={**os.environ, "HOME": profile},
    )  # fmt: skip
    for end in (*theirs, to_browser[0], from_browser[1]):
        os.close(end)
    try:
        yield Page(from_browser[0], to_browser[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(to_browser[1])
        os.close(from_browser[0])
        shutil.rmtree(profile, ignore_errors=True)
