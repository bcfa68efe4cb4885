"""ONNX Runtime for the web: the build in WebAssembly that browsers run, in Node; and its build for WebGPU, in a browser."""

from __future__ import annotations

import base64
import functools
import json
import os
import shutil
import subprocess
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_ci.processes.supervisor import how_it_ended

if TYPE_CHECKING:
    import torch

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS_TO_END = 5.0


class OnnxRuntimeWeb:
    """The package onnxruntime-web of npm: that in the nearest ``node_modules``, or in a folder that ``NODE_PATH`` names."""

    name = "onnxruntime-web"
    is_deployed = True
    reads_external_data = False  # a browser has no files beside the one that is loaded

    @property
    def versions(self) -> Mapping[str, str]:
        """The installed version; none if it is missing."""
        package = _package()
        if package is None:
            return {}
        return {"onnxruntime-web": json.loads((package / "package.json").read_text(encoding="utf-8"))["version"]}

    def missing_device(self, device: str) -> str | None:
        """Why it cannot be used on ``device``, or ``None`` if it can."""
        if shutil.which("node") is None:
            return "Node is not installed; see https://nodejs.org"
        if _package() is None:
            return "onnxruntime-web is not installed; npm install onnxruntime-web"
        return None if device == "cpu" else "onnxruntime-web in Node computes on the CPU only"

    def load(self, path: Path, device: str) -> WebSession:
        """Load the file. Raises ``RuntimeError`` with the words of onnxruntime-web."""
        _ = self.versions  # the cache notes the file that it is in
        return WebSession("onnxruntime_web.mjs", path)


class Chromium(OnnxRuntimeWeb):
    """The same package in headless Chromium, with WebGPU: on the GPU, or on Chromium's adapter of software if there is none."""

    name = "chromium"

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of onnxruntime-web and of the browser; none if one is missing."""
        browser, versions = _browser(), super().versions
        return {**versions, "chromium": _version(browser)} if browser and versions else {}

    def missing_device(self, device: str) -> str | None:
        """Why it cannot be used on ``device``, or ``None`` if it can."""
        return "Chromium is not installed" if _browser() is None else super().missing_device(device)

    def load(self, path: Path, device: str) -> WebSession:
        """Load the file. Raises ``RuntimeError`` with the words of onnxruntime-web."""
        _ = self.versions
        return WebSession("chromium.mjs", path, _browser() or "chromium")


def _browser() -> str | None:
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


@functools.cache
def _version(browser: str) -> str:
    ran = subprocess.run([browser, "--version"], capture_output=True, text=True, check=False)
    return ran.stdout.strip()


def _package() -> Path | None:
    here = Path.cwd()
    places = [folder / "node_modules" for folder in (here, *here.parents)]
    places += map(Path, filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep)))
    return next((place / "onnxruntime-web" for place in places if (place / "onnxruntime-web/package.json").is_file()), None)


class WebSession:
    """A session in a process of Node, to which each request and each answer is a line of JSON."""

    provider = "cpu"
    nodes_on_cpu = None

    def __init__(self, script: str, path: Path, *arguments: str) -> None:
        command = ["node", str(Path(__file__).with_name(script)), str(_package()), str(path), *arguments]
        self._node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._requests: Any = self._node.stdin
        self._answers: Any = self._node.stdout
        self.close = weakref.finalize(self, _end, self._node)
        self._answer()

    def run(self, inputs: Mapping[str, torch.Tensor], *, seed: int | None = None) -> list[torch.Tensor]:
        """The graph's outputs, in the graph's order. Raises ``RuntimeError`` with the words of onnxruntime-web."""
        feeds = {name: _sent(tensor) for name, tensor in inputs.items()}
        try:
            self._requests.write(json.dumps(feeds) + "\n")
            self._requests.flush()
        except BrokenPipeError:
            pass  # it has ended, which the answer says
        return [_received(output) for output in self._answer()["outputs"]]

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"its process of Node {how_it_ended(self._node.wait())}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


def _end(node: subprocess.Popen[str]) -> None:
    try:
        node.communicate(timeout=_SECONDS_TO_END)  # without input it ends, and so does its browser
    except (subprocess.TimeoutExpired, BrokenPipeError):
        node.kill()
        node.communicate()


def _sent(tensor: torch.Tensor) -> dict[str, Any]:
    kind = str(tensor.dtype).removeprefix("torch.")
    array = tensor.contiguous().numpy()
    return {"dims": array.shape, "type": kind, "data": base64.b64encode(array.tobytes()).decode()}


def _received(output: Mapping[str, Any]) -> torch.Tensor:
    import torch

    contents, dtype = bytearray(base64.b64decode(output["data"])), getattr(torch, output["type"])
    flat = torch.frombuffer(contents, dtype=dtype) if contents else torch.empty(0, dtype=dtype)
    return flat.reshape(output["dims"])
