"""What a recipe can do to the process that runs it, and what the report must say of it afterwards.

Nothing here is endless: a fault that nobody stops ends by itself, after minutes or gigabytes, so that a broken guard costs
a failed test and not the machine.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

HEAD = """
import contextlib
import ctypes
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import onnx_ci
import torch


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.relu(x * self.weight)


def sleep_without_listening(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(BaseException):
            time.sleep(end - time.monotonic())
"""

HEALTHY = """
@onnx_ci.recipe(input_names=["x"], output_names=["y"], dynamic_axes={{"x": {{0: "batch"}}, "y": {{0: "batch"}}}}, opsets="12-13")
def {name}():
    return Scale(), (torch.randn(3, 4),)
"""

IN_PREPARATION = """
@onnx_ci.recipe(input_names=["x"], output_names=["y"], opsets="{opsets}", timeout={timeout})
def {name}():
    model, args = Scale(), (torch.randn(3, 4),)
    fault()
    return model, args
"""

IN_A_CELL = """
class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.abs()

    @staticmethod
    def symbolic(g, x):
        fault()
        return g.op("Abs", x)


class Faulty(torch.nn.Module):
    def forward(self, x):
        return Function.apply(x)


@onnx_ci.recipe(input_names=["x"], output_names=["y"], opsets="{opsets}", timeout={timeout})
def {name}():
    return Faulty(), (torch.randn(3, 4),)
"""

AT_ONE_OPSET = IN_A_CELL.replace("fault()", "if g.opset == 11:\n            fault()")

IF_EXPORTED = """
class Faulty(Scale):
    def forward(self, x):
        if torch.jit.is_tracing():
            fault()
        return torch.relu(x * self.weight)


@onnx_ci.recipe(input_names=["x"], output_names=["y"], opsets="{opsets}", timeout={timeout})
def {name}():
    return Faulty(), (torch.randn(3, 4),)
"""
"""A model that is at fault only where it is told of an export."""

PREPARING, EXPORTING = r"while (building|looking|computing|running the model)", r"while exporting"
"""How messages name the stage."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A recipe that does ``body``: in its function, in its export, in that at opset 11 alone, or where it is told of one."""

    name: str
    body: str
    place: str
    rules: tuple[str, ...] = ()
    """The rule that its cells break, or those of which one is as good as the other; none where its cells pass."""
    says: tuple[str, ...] = ()
    """What the finding's message holds: regular expressions, whatever their case."""
    log: tuple[str, ...] = ()
    """What the log of the cell holds."""
    note: str | None = None
    """What a ``global-state`` note says; nothing where none is due, ``None`` where one may be."""
    opsets: tuple[int, ...] = (13,)
    spared: tuple[int, ...] = ()
    """The opsets at which it does nothing."""
    timeout: float = 120

    def source(self) -> str:
        """The recipe file."""
        function = "def fault():\n" + textwrap.indent(textwrap.dedent(self.body).strip(), "    ")
        recipe = self.place.format(name=self.name, opsets=",".join(map(str, self.opsets)), timeout=self.timeout)
        return f"{HEAD}\n\n{function}\n\n{recipe}"


def healthy(name: str) -> str:
    """The file of a recipe with which nothing is wrong."""
    return HEAD + HEALTHY.format(name=name)


def _everywhere(
    name: str, body: str, *says: str, rules: tuple[str, ...] = ("crash",), log: tuple[str, ...] = ()
) -> list[Fault]:
    """The fault in both places. Whatever happens in preparation happens to every cell of the recipe."""
    return [
        _preparing(name, body, *says, rules=rules, log=log),
        Fault(name=f"{name}_exporting", body=body, place=IN_A_CELL, rules=rules, says=(EXPORTING, *says), log=log),
    ]


def _preparing(
    name: str,
    body: str,
    *says: str,
    rules: tuple[str, ...] = ("crash",),
    log: tuple[str, ...] = (),
    timeout: float = 120,
) -> Fault:
    return Fault(
        name=f"{name}_preparing",
        body=body,
        place=IN_PREPARATION,
        rules=rules,
        says=(PREPARING, *says),
        log=log,
        opsets=(12, 13),
        timeout=timeout,
    )


def _raises(name: str, body: str, said: str) -> list[Fault]:
    """Python's own ways to leave: they end nothing but the recipe or the export, and are told as what they are."""
    return [
        Fault(
            name=f"{name}_preparing",
            body=body,
            place=IN_PREPARATION,
            rules=("recipe-error", "crash"),
            says=(said,),
            opsets=(12, 13),
        ),
        Fault(name=f"{name}_exporting", body=body, place=IN_A_CELL, rules=("export-error", "crash"), says=(said,)),
    ]


def _hangs(name: str, body: str) -> Fault:
    return Fault(name=f"{name}_exporting", body=body, place=IN_A_CELL, rules=("timeout",), says=(EXPORTING,), timeout=4)


def _harmless(name: str, body: str) -> list[Fault]:
    return [
        Fault(name=f"{name}_preparing", body=body, place=IN_PREPARATION),
        Fault(name=f"{name}_exporting", body=body, place=IN_A_CELL),
    ]


def _changes(name: str, body: str, note: str) -> Fault:
    return Fault(name=f"changes_{name}", body=body, place=IN_PREPARATION, note=note)


LAST_WORDS = "print('last words', flush=True)\n"

EATER = """
hoard = []
for _ in range(96):  # 3 GiB in at least four seconds
    hoard.append(bytearray(b"x") * 2**25)
    time.sleep(0.04)
"""

IGNORES = """
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
    signal.signal(each, signal.SIG_IGN)
"""

C_LOOP = "sum(itertools.repeat(1, 5 * 10**10))  # minutes in C, with the interpreter's lock held\n"

PYTHON_LOOP = """
end = time.monotonic() + 300
while time.monotonic() < end:
    pass
"""

# What its worker does once a cell of it runs: the cell alone cannot be stopped for it.
ONCE_A_CELL_RUNS = (
    IN_A_CELL.replace("fault()", "open('{name}', 'w').close()\n        time.sleep(300)").replace(
        "    return Faulty()", "    threading.Thread(target=wait_and_do, daemon=True).start()\n    return Faulty()"
    )
    + """

def wait_and_do():
    while not os.path.exists('{name}'):
        time.sleep(0.01)
    os.remove('{name}')
    fault()
"""
)


def _of_worker(name: str, body: str) -> Fault:
    says = ("the process .*did not end within",)
    return Fault(name=name, body=body, place=ONCE_A_CELL_RUNS, rules=("timeout",), says=says, opsets=(12, 13), timeout=4)


FAULTS = [
    *_everywhere("segfault", "ctypes.string_at(0)", "SIGSEGV", log=("Fatal Python error: Segmentation fault", "in fault")),
    *_everywhere("abort", "os.abort()", "SIGABRT", log=("Fatal Python error: Aborted", "in fault")),
    *_everywhere("killed", "os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    *_everywhere("exit_0", LAST_WORDS + "os._exit(0)", r"exit code 0\b", log=("last words",)),
    *_everywhere("exit_7", LAST_WORDS + "os._exit(7)", r"exit code 7\b", log=("last words",)),
    *_raises("sys_exit", "sys.exit(3)", "SystemExit"),
    *_raises("interrupt", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    *_everywhere("memory", EATER, rules=("out-of-memory",)),
    _preparing(
        "memory_of_a_child",
        f"subprocess.run([sys.executable, '-c', {'import time' + EATER!r}])",
        rules=("out-of-memory",),
    ),
    _preparing("flood", "for _ in range(512):\n    print('x' * 2**20)", "64 MiB"),
    Fault(
        name="flood_exporting",
        body="for _ in range(512):\n    os.write(2, b'x' * 2**20)",
        place=IN_A_CELL,
        rules=("crash",),
        says=(EXPORTING, "64 MiB"),
    ),
    _preparing("python_loop", PYTHON_LOOP, rules=("timeout",), timeout=2),
    _hangs("c_loop", IGNORES + C_LOOP),
    _hangs(
        "handlers",
        """
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: None)
        sleep_without_listening(300)
        """,
    ),
    Fault(name="if_exported", body="ctypes.string_at(0)", place=IF_EXPORTED, rules=("crash",), says=(EXPORTING, "SIGSEGV")),
    Fault(name="hangs_if_exported", body=PYTHON_LOOP, place=IF_EXPORTED, rules=("timeout",), says=(EXPORTING,), timeout=4),
    _hangs("child_and_hang", "subprocess.Popen(['sleep', '1000'])\nsleep_without_listening(300)"),
    _of_worker("blocked_worker", "ctypes.PyDLL(None).sleep(300)  # with the interpreter's lock held"),
    _of_worker("stopped_worker", "os.kill(os.getpid(), signal.SIGSTOP)"),
    Fault(
        name="one_opset",
        body="ctypes.string_at(0)",
        place=AT_ONE_OPSET,
        rules=("crash",),
        says=(EXPORTING, "SIGSEGV"),
        opsets=(9, 10, 11, 12, 13),
        spared=(9, 10, 12, 13),
    ),
    *_harmless("ignores_signals", IGNORES),
    *_harmless("leaves_a_child", "subprocess.Popen(['sleep', '1000'])"),
    *_harmless("closes_descriptors", "os.closerange(0, 3)"),
    *_harmless("threads", "for _ in range(3):\n    threading.Thread(target=threading.Event().wait, args=(300,)).start()"),
    _changes("dtype", "torch.set_default_dtype(torch.float64)", "dtype"),
    _changes("device", "torch.set_default_device('meta')", "default device"),
    _changes("threads", "torch.set_num_threads(torch.get_num_threads() + 1)", "thread"),
    _changes("directory", "os.chdir(tempfile.gettempdir())", "director"),
    _changes("environment", "os.environ['LEFT_BY_A_RECIPE'] = '1'", "LEFT_BY_A_RECIPE"),
    _changes("determinism", "torch.use_deterministic_algorithms(True)", "determinis"),
    # Nobody else's relu may become this one. The recipe's own does: its cells are wrong, and say so.
    Fault(
        name="changes_symbolics",
        body="torch.onnx.register_custom_op_symbolic('aten::relu', lambda g, x: g.op('Abs', x), 9)",
        place=IN_PREPARATION,
        rules=("numeric-drift",),
        note="symbolic",
    ),
    _changes("seeds", "torch.manual_seed(123)\nrandom.seed(123)", ""),
]
