"""What a recipe file can do while it is imported, by accident or not, to look right without being right.

Each file also declares a recipe that is wrong. It may be lost, with a problem that names the file, or fail. It must not pass.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from e2e.chaos.faults import HEAD, IGNORES, STRAY_BYTES
from e2e.chaos.running import TOKEN

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


def wrong(name: str) -> str:
    """The file of a recipe that is wrong."""
    return HEAD + WRONG.format(name=name)


@dataclass(frozen=True, kw_only=True)
class Cheat:
    """A recipe file that does ``body`` before or after it declares a recipe that is wrong."""

    name: str
    body: str
    is_first: bool = False
    """Whether the recipe is declared after the deed."""
    is_harmless: bool = False
    """Whether nothing excuses that the recipe has another verdict than its true one."""
    takes_a_minute: bool = False
    """Whether only the deadline for imports ends it."""
    says: str | None = None
    """What the problem with the file says."""

    @property
    def file(self) -> str:
        return f"recipe_{self.name}.py"

    def source(self) -> str:
        """The recipe file."""
        recipe = WRONG.format(name=f"wrong_{self.name}")
        body = textwrap.dedent(self.body).strip()
        return "\n\n".join([HEAD, body, recipe] if self.is_first else [HEAD, recipe, body]) + "\n"


def _harmless(name: str, body: str, *, is_first: bool = False) -> Cheat:
    return Cheat(name=name, body=body, is_harmless=True, is_first=is_first)


NOBODY = 2**22 + 1
"""More than the largest process id of Linux. Never pretend to be process 1 here: who ends its group ends every process there is."""

OF_THIS_RUN = f"""
def is_of_this_run(pid):
    with contextlib.suppress(OSError), open(f"/proc/{{pid}}/environ", "rb") as environment:
        return {TOKEN + "="!r}.encode() + os.environ[{TOKEN!r}].encode() in environment.read()


"""
"""No cheat signals a process that the run has not started, wherever its own parent or group may be."""

HOSTILE_ERROR = """
class Hostile(Exception):
    def __str__(self):
        {0}

    __repr__ = __str__

raise Hostile("hostile")
"""

CHEATS = [
    # An end that looks like success.
    Cheat(name="atexit", body="import atexit\natexit.register(os._exit, 0)"),
    Cheat(
        name="atexit_of_workers",
        body="import multiprocessing.util as util\nutil.Finalize(None, os._exit, (0,), exitpriority=1)",
    ),
    Cheat(name="sys_exit_replaced", body="sys.exit = lambda *_: os._exit(0)"),
    Cheat(name="exit_replaced", body="real = os._exit\nos._exit = lambda code: real(0)"),
    Cheat(name="timer", body="threading.Timer(0.5, os._exit, (0,)).start()"),
    Cheat(name="late_timer", body="threading.Timer(2, os._exit, (0,)).start()"),
    Cheat(name="daemon_timer", body="threading.Thread(target=lambda: (time.sleep(0.2), os._exit(0)), daemon=True).start()"),
    Cheat(
        name="alarm",
        body="signal.signal(signal.SIGALRM, lambda *_: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)",
    ),
    Cheat(name="plain_alarm", body="signal.alarm(1)"),
    Cheat(name="interrupt", body="raise KeyboardInterrupt"),
    Cheat(name="system_exit", body="raise SystemExit(0)"),
    Cheat(name="system_exit_of_text", body="sys.exit('everything passed')"),
    Cheat(name="generator_exit", body="raise GeneratorExit"),
    Cheat(name="base_exception", body="class Odd(BaseException):\n    pass\n\nraise Odd('odd')"),
    Cheat(name="exits", body="print('1 cell: 1 passed', flush=True)\nos._exit(0)"),
    Cheat(name="exits_first", body="os._exit(0)", is_first=True),
    Cheat(name="excepthook", body="sys.excepthook = lambda *_: os._exit(0)\nraise ValueError('hidden')"),
    Cheat(name="quick_exit", body="ctypes.CDLL(None)._exit(0)"),
    # A death, a hang, a flood.
    Cheat(name="segfault", body="ctypes.string_at(0)"),
    Cheat(name="abort", body="os.abort()"),
    Cheat(name="killed", body="os.kill(os.getpid(), signal.SIGKILL)"),
    Cheat(name="stopped", body="os.kill(os.getpid(), signal.SIGSTOP)", takes_a_minute=True),
    Cheat(name="hangs", body=IGNORES + "sleep_without_listening(300)", takes_a_minute=True),
    Cheat(name="hangs_in_c", body="ctypes.PyDLL(None).sleep(300)  # with the interpreter's lock held", takes_a_minute=True),
    Cheat(name="flood", body="for _ in range(512):\n    print('x' * 2**20)"),
    Cheat(name="flood_of_bytes", body="for _ in range(512):\n    os.write(2, b'\\xff' * 2**20)"),
    Cheat(name="recursion", body="def descend():\n    descend()\n\ndescend()"),
    Cheat(
        name="stack_overflow",
        body="sys.setrecursionlimit(10**9)\nparts = []\nfor _ in range(10**6):\n    parts = [parts]\nrepr(parts)",
    ),
    Cheat(name="memory_error", body="raise MemoryError"),
    # What others leave behind.
    _harmless("thread", "threading.Thread(target=time.sleep, args=(1000,)).start()"),
    _harmless("child", "subprocess.Popen(['sleep', '1000'])"),
    _harmless(
        "daemon",
        """
        if not os.fork():
            os.setsid()
            if not os.fork():
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                sleep_without_listening(1000)
            os._exit(0)
        """,
    ),
    Cheat(name="twin", body="os.fork()"),
    Cheat(name="twin_that_exits", body="if os.fork():\n    os._exit(0)"),
    # Signals and processes.
    _harmless("ignores_signals", IGNORES),
    Cheat(
        name="session",
        body="with contextlib.suppress(OSError):\n    os.setsid()\nos.setpgid(0, 0) if os.getsid(0) != os.getpid() else None",
    ),
    Cheat(
        name="kills_parent",
        body=OF_THIS_RUN + "os.kill(os.getppid(), signal.SIGKILL) if is_of_this_run(os.getppid()) else None",
    ),
    Cheat(
        name="interrupts_parent",
        body=OF_THIS_RUN + "os.kill(os.getppid(), signal.SIGINT) if is_of_this_run(os.getppid()) else None",
    ),
    Cheat(name="kills_group", body=OF_THIS_RUN + "os.killpg(0, signal.SIGKILL) if is_of_this_run(os.getpgrp()) else None"),
    Cheat(name="ends_group", body=OF_THIS_RUN + "os.killpg(0, signal.SIGTERM) if is_of_this_run(os.getpgrp()) else None"),
    Cheat(name="blocked_signals", body="signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"),
    Cheat(name="children_ignored", body="signal.signal(signal.SIGCHLD, signal.SIG_IGN)"),
    # Python itself.
    Cheat(name="path_cleared", body="sys.path.clear()", says="without sys.path"),
    Cheat(name="finders_cleared", body="sys.meta_path.clear()\nsys.path_hooks.clear()", says="without sys.meta_path"),
    Cheat(name="recursion_limit", body="sys.setrecursionlimit(50)"),
    Cheat(name="no_open", body="import builtins\nbuiltins.open = None", says="without builtins.open"),
    Cheat(
        name="no_builtins",
        body="import builtins\nfor name in ('print', 'isinstance', 'len', 'getattr', '__import__'):\n    setattr(builtins, name, None)",
        says="without builtins.",
    ),
    Cheat(name="no_json", body="sys.modules['json'] = None", says="without json"),
    Cheat(
        name="no_modules",
        body="for name in ('json', 'pickle', 'os', 'onnx_ci', 'torch', 'onnx'):\n    sys.modules[name] = None",
        says="without ",
    ),
    Cheat(name="modules_cleared", body="sys.modules.clear()", says="without sys.modules"),
    Cheat(
        name="json_that_passes", body="import json\njson.dumps = lambda *_, **__: '{}'\njson.JSONEncoder.encode = json.dumps"
    ),
    Cheat(
        name="pickle_replaced", body="import pickle\npickle.dumps = lambda *_, **__: b''\npickle.loads = lambda *_, **__: None"
    ),
    Cheat(name="write_replaced", body="os.write = lambda descriptor, data: len(data)\nos.read = lambda *_: b''"),
    Cheat(name="sleep_replaced", body="time.sleep = lambda *_: None"),
    _harmless("clock_stopped", "time.monotonic = time.time = time.perf_counter = lambda: 0.0"),
    _harmless("clock_raced", "time.monotonic = lambda: 1e12"),
    Cheat(name="fork_replaced", body=f"os.fork = lambda: {NOBODY}\nos.waitpid = lambda *_: ({NOBODY}, 0)\nos.getpid = os.fork"),
    Cheat(name="processes_replaced", body="subprocess.Popen = None\nos.pipe = None"),
    _harmless("stdout_replaced", "import io\nsys.stdout = sys.stderr = io.StringIO()"),
    Cheat(name="no_stdout", body="sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None"),
    Cheat(name="closed_stdout", body="sys.stdout.close()\nsys.stderr.close()"),
    Cheat(name="descriptors_closed", body="os.closerange(0, 1024)"),
    Cheat(
        name="descriptors_replaced",
        body="null = os.open(os.devnull, os.O_RDWR)\nfor number in range(256):\n    if number != null:\n        os.dup2(null, number)",
    ),
    _harmless("logging_disabled", "import logging\nlogging.disable(logging.CRITICAL)\nlogging.raiseExceptions = False"),
    Cheat(name="warnings_raise", body="import warnings\nwarnings.simplefilter('error')"),
    _harmless("fault_handler", "import faulthandler\nfaulthandler.disable()\nfaulthandler.cancel_dump_traceback_later()"),
    _harmless("garbage", "import gc\ngc.freeze()\ngc.disable()"),
    Cheat(
        name="traced",
        body="def trace(frame, event, argument):\n    raise ValueError('traced')\n\nthreading.settrace(trace)\nsys.settrace(trace)\nsys.setprofile(None)",
    ),
    Cheat(
        name="audited",
        body="def hook(event, arguments):\n    if event in ('open', 'import', 'os.fork'):\n        raise RuntimeError(event)\n\nsys.addaudithook(hook)",
    ),
    Cheat(name="audit_exit", body="sys.addaudithook(lambda event, _: os._exit(0) if event == 'open' else None)"),
    _harmless("switches", "sys.setswitchinterval(10)"),
    _harmless("arguments", "sys.argv[:] = ['onnx-ci', '--rules=baked-value=note']"),
    # The surroundings.
    _harmless("directory", "os.chdir(tempfile.gettempdir())"),
    Cheat(name="directory_gone", body="folder = tempfile.mkdtemp()\nos.chdir(folder)\nos.rmdir(folder)"),
    Cheat(name="environment_cleared", body="os.environ.clear()"),
    _harmless("settings", "os.environ.update(ONNX_CI_RULES='baked-value=note', ONNX_CI_OPSETS='9', ONNX_CI_MAX_DRIFT='1e30')"),
    Cheat(name="few_files", body="import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))"),
    Cheat(
        name="no_file_size",
        body="import resource\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    ),
    Cheat(name="no_time", body="import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))"),
    Cheat(name="own_file_gone", body="os.remove(__file__)"),
    Cheat(name="stray_bytes", body=STRAY_BYTES),
    Cheat(
        name="stray_thread",
        body="def stray():\n    while True:\n"
        + textwrap.indent(STRAY_BYTES, "        ")
        + "        os.write(1, b'passed\\n')\n        time.sleep(0.01)\n\nthreading.Thread(target=stray, daemon=True).start()",
    ),
    Cheat(
        name="pretended_results",
        body="""
        line = b'{"declared": {"scopes": [], "problems": [], "seen": null}}\\n{"ready": true}\\n{"last": 1}\\n'
        for descriptor in range(3, 256):
            with contextlib.suppress(OSError):
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    os.set_blocking(descriptor, False)
                    os.write(descriptor, line)
                    os.set_blocking(descriptor, True)
        """,
    ),
    # torch and onnx-ci.
    Cheat(name="export_replaced", body="torch.onnx.export = lambda *_, **__: None"),
    Cheat(
        name="verdict_replaced",
        body="from onnx_ci.results import verdict\nfrom onnx_ci import Status\n\nverdict.decide = lambda *_, **__: Status.PASSED",
    ),
    Cheat(
        name="rules_cleared",
        body="from onnx_ci.results import rules\n\nrules.RULES.clear() if hasattr(rules.RULES, 'clear') else None",
    ),
    Cheat(
        name="recipe_replaced",
        body="onnx_ci.recipe = lambda *_, **__: lambda function: function",
    ),
    Cheat(
        name="onnx_ci_emptied",
        body="for name in list(vars(onnx_ci)):\n    if not name.startswith('__'):\n        delattr(onnx_ci, name)",
    ),
    _harmless("api_replaced", "onnx_ci.run = onnx_ci.verify = onnx_ci.export = lambda *_, **__: None"),
    _harmless("grad_disabled", "torch.set_grad_enabled(False)"),
    Cheat(name="torch_emptied", body="vars(torch).clear()"),
    Cheat(
        name="declaration_mutated",
        body="""
        for key, value in {"opsets": object(), "name": 5, "expect": None, "timeout": "soon"}.items():
            object.__setattr__(wrong_declaration_mutated, key, value)
        """,
    ),
    Cheat(name="declaration_renamed", body="object.__setattr__(wrong_declaration_renamed, 'name', 'first')"),
    Cheat(
        name="another_files_name",
        body="""
        @onnx_ci.recipe(input_names=["x"], opsets="13", name="first")
        def first():
            return Total(), (torch.randn(3, 4),)
        """,
    ),
    Cheat(
        name="another_files_code",
        body="""
        def first():
            return Total(), (torch.randn(3, 4),)

        first.__module__ = "recipe_0"
        first.__code__ = first.__code__.replace(co_filename=__file__.replace("another_files_code", "0"))
        first = onnx_ci.recipe(first)
        """,
    ),
    Cheat(
        name="late_recipe",
        body="""
        def declare():
            time.sleep(0.3)
            globals()["late"] = onnx_ci.recipe(lambda: (Total(), (torch.randn(3, 4),)), name="late")

        threading.Thread(target=declare).start()
        """,
    ),
    Cheat(
        name="hostile_names",
        body="""
        class Hostile:
            def __getattribute__(self, name):
                os._exit(0)

            def __eq__(self, other):
                os._exit(0)

            __hash__ = None

        thing = Hostile()
        """,
    ),
    Cheat(name="hostile_module", body="def __getattr__(name):\n    os._exit(0)\n\n\ndef __dir__():\n    os._exit(0)"),
    # Errors that defend themselves.
    Cheat(name="error_that_raises", body=HOSTILE_ERROR.format("raise ValueError('no text')")),
    Cheat(name="error_that_exits", body=HOSTILE_ERROR.format("os._exit(0)")),
    Cheat(name="error_that_leaves", body=HOSTILE_ERROR.format("raise SystemExit(0)")),
    Cheat(name="error_without_text", body=HOSTILE_ERROR.format("return 5")),
    Cheat(name="error_of_odd_text", body=HOSTILE_ERROR.format("return '\\ud800\\x1b[2J\\0' + 'x' * 2**22")),
    Cheat(
        name="error_in_a_circle",
        body="error = ValueError('circle')\nother = KeyError('x')\nerror.__cause__, other.__cause__ = other, error\nraise error",
    ),
    Cheat(name="syntax_error_elsewhere", body="raise SyntaxError('odd', ('nowhere.py', -5, 10**9, None))"),
    Cheat(
        name="deep_group",
        body="group = ValueError('x')\nfor _ in range(500):\n    group = ExceptionGroup('g', [group])\nraise group",
    ),
]
