"""What a recipe file can do while it is imported that looks like success, ends or stops its process, or stays behind.

Each file also declares a recipe that is wrong. It may be lost, with a problem that names the file, or fail. It must not pass.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from e2e.chaos.faults import HEAD, IGNORES

WRONG = """
class Total(torch.nn.Module):
    def forward(self, x):
        total = torch.zeros(4)
        for i in range(x.shape[0]):
            total = total + x[i]
        return total


@onnx_ci.recipe(input_names=["x"], output_names=["total"], dynamic_axes={{"x": {{0: "rows"}}}}, opsets="13")
def {name}():
    return Total(), (torch.randn(3, 4),)
"""
"""A recipe that is right on its example and wrong at any other number of rows."""


def wrong(name: str, after: str = "") -> str:
    """The file of a recipe that is wrong, with code after it."""
    return "\n\n".join([HEAD, WRONG.format(name=name), after]) + "\n"


@dataclass(frozen=True, kw_only=True)
class Import:
    """A recipe file that does ``body`` after it declares a recipe that is wrong."""

    name: str
    body: str
    is_harmless: bool = False
    """Whether nothing excuses that the recipe has another verdict than its true one."""
    takes_a_minute: bool = False
    """Whether only the deadline for imports ends it."""

    @property
    def file(self) -> str:
        return f"recipe_{self.name}.py"

    def source(self) -> str:
        """The recipe file."""
        return wrong(f"wrong_{self.name}", textwrap.dedent(self.body).strip())


ERROR = """
class Odd(Exception):
    def __str__(self):
        {0}

    __repr__ = __str__

raise Odd("odd")
"""
"""An error whose text is no help."""

LOSE_THE_RECIPE = {
    # An end that looks like success.
    "atexit": "import atexit\natexit.register(os._exit, 0)",
    "atexit_of_workers": "import multiprocessing.util as util\nutil.Finalize(None, os._exit, (0,), exitpriority=1)",
    "timer": "threading.Timer(0.5, os._exit, (0,)).start()",
    "late_timer": "threading.Timer(2, os._exit, (0,)).start()",
    "daemon_timer": "threading.Thread(target=lambda: (time.sleep(0.2), os._exit(0)), daemon=True).start()",
    "alarm": "signal.signal(signal.SIGALRM, lambda *_: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)",
    "plain_alarm": "signal.alarm(1)",
    "interrupt": "raise KeyboardInterrupt",
    "system_exit": "raise SystemExit(0)",
    "system_exit_of_text": "sys.exit('everything passed')",
    "generator_exit": "raise GeneratorExit",
    "base_exception": "class Odd(BaseException):\n    pass\n\nraise Odd('odd')",
    "exits": "print('1 cell: 1 passed', flush=True)\nos._exit(0)",
    "excepthook": "sys.excepthook = lambda *_: os._exit(0)\nraise ValueError('hidden')",
    "quick_exit": "ctypes.CDLL(None)._exit(0)",
    # A death, a flood.
    "abort": "os.abort()",
    "ends_group": "os.killpg(0, signal.SIGTERM)",
    "flood_of_bytes": "for _ in range(512):\n    os.write(2, b'\\xff' * 2**20)",
    "recursion": "def descend():\n    descend()\n\ndescend()",
    "stack_overflow": "sys.setrecursionlimit(10**9)\nparts = []\nfor _ in range(10**6):\n    parts = [parts]\nrepr(parts)",
    "memory_error": "raise MemoryError",
    # Processes and signals.
    "twin": "os.fork()",
    "twin_that_exits": "if os.fork():\n    os._exit(0)",
    "blocked_signals": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "children_ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    # Output and limits.
    "no_stdout": "sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None",
    "closed_stdout": "sys.stdout.close()\nsys.stderr.close()",
    "warnings_raise": "import warnings\nwarnings.simplefilter('error')",
    "recursion_limit": "sys.setrecursionlimit(50)",
    "few_files": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))",
    "no_file_size": """
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    """,
    "no_time": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
    # The surroundings.
    "directory_gone": "folder = tempfile.mkdtemp()\nos.chdir(folder)\nos.rmdir(folder)",
    "environment_cleared": "os.environ.clear()",
    "own_file_gone": "os.remove(__file__)",
    "late_recipe": """
        def declare():
            time.sleep(0.3)
            globals()["late"] = onnx_ci.recipe(lambda: (Total(), (torch.randn(3, 4),)), name="late")

        threading.Thread(target=declare).start()
    """,
    # Errors without a text, or with too much of it.
    "error_that_raises": ERROR.format("raise ValueError('no text')"),
    "error_without_text": ERROR.format("return 5"),
    "error_of_odd_text": ERROR.format("return '\\ud800\\x1b[2J\\0' + 'x' * 2**22"),
    "error_in_a_circle": "error = ValueError('x')\nother = KeyError('x')\nerror.__cause__, other.__cause__ = other, error\nraise error",
    "syntax_error_elsewhere": "raise SyntaxError('odd', ('nowhere.py', -5, 10**9, None))",
    "deep_group": "group = ValueError('x')\nfor _ in range(500):\n    group = ExceptionGroup('g', [group])\nraise group",
}

TAKE_A_MINUTE = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "hangs": IGNORES + "sleep_without_listening(300)",
    "hangs_in_c": "ctypes.PyDLL(None).sleep(300)  # with the interpreter's lock held",
}

ARE_HARMLESS = {
    "thread": "threading.Thread(target=time.sleep, args=(1000,)).start()",
    "child": "subprocess.Popen(['sleep', '1000'])",
    "daemon": """
        if not os.fork():
            os.setsid()
            if not os.fork():
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                sleep_without_listening(1000)
            os._exit(0)
    """,
    "ignores_signals": IGNORES,
    "clock_stopped": "time.monotonic = time.time = time.perf_counter = lambda: 0.0  # as freezegun does",
    "stdout_replaced": "import io\nsys.stdout = sys.stderr = io.StringIO()",
    "logging_disabled": "import logging\nlogging.disable(logging.CRITICAL)\nlogging.raiseExceptions = False",
    "fault_handler": "import faulthandler\nfaulthandler.disable()\nfaulthandler.cancel_dump_traceback_later()",
    "arguments": "sys.argv[:] = ['onnx-ci', '--allow=baked-value']",
    "directory": "os.chdir(tempfile.gettempdir())",
    "settings": "os.environ.update(ONNX_CI_ALLOW='baked-value', ONNX_CI_OPSETS='9', ONNX_CI_MAX_DRIFT='1e30')",
    "grad_disabled": "torch.set_grad_enabled(False)",
}

IMPORTS = [
    *(Import(name=name, body=body) for name, body in LOSE_THE_RECIPE.items()),
    *(Import(name=name, body=body, takes_a_minute=True) for name, body in TAKE_A_MINUTE.items()),
    *(Import(name=name, body=body, is_harmless=True) for name, body in ARE_HARMLESS.items()),
]
