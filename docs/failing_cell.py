"""Draws a failing cell as the terminal shows it, for the README: ``docs/images/failing-cell-light.svg`` and ``-dark.svg``.

The model exports, its file passes the checker, declares a dynamic axis and is right on the example; it is still wrong. What is
drawn is what a run prints. Usage: ``python docs/failing_cell.py``, with rich (``pip install --group docs``).
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
THEMES = {"light": "DEFAULT_TERMINAL_THEME", "dark": "DIMMED_MONOKAI"}
"""Of rich."""
COMMAND = ["run", "--opsets=13"]
WIDTH = 118
"""Columns of the terminal."""
RECIPE = """\
import onnx_ci
import torch


class Total(torch.nn.Module):
    def forward(self, x):
        total = torch.zeros(4)
        for i in range(x.shape[0]):  # tracing unrolls the loop for the three rows of the example
            total = total + x[i]
        return total


@onnx_ci.recipe(input_names=["x"], output_names=["total"], dynamic_axes={"x": {0: "rows"}})
def total():
    return Total(), (torch.randn(3, 4),)
"""


def output() -> str:
    """What the command prints, with colours."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "onnx_recipes.py").write_text(RECIPE, encoding="utf-8")
        words = [*COMMAND, "-q", "--no-cache", "--color=always"]
        done = subprocess.run(
            [sys.executable, "-m", "onnx_ci", *words], cwd=folder, capture_output=True, text=True, check=False
        )
    if done.returncode != 1:
        sys.exit(f"onnx-ci {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.replace(" --no-cache", "").strip()


def draw(printed: str, theme: str) -> str:
    """A terminal with the command and what it prints, as SVG."""
    from rich import terminal_theme  # only drawing needs it
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(f"$ onnx-ci {' '.join(COMMAND)}", highlight=False)
    console.print(Text.from_ansi(printed))
    drawn = console.export_svg(title="onnx-ci", theme=getattr(terminal_theme, THEMES[theme]), unique_id=f"failing-cell-{theme}")
    return re.sub(r" *@font-face \{.*?\n    \}\n", "", drawn, flags=re.DOTALL)  # pages load no font for a picture


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    text = output()
    for name in THEMES:
        (IMAGES / f"failing-cell-{name}.svg").write_text(draw(text, name), encoding="utf-8")
