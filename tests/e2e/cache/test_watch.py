"""What the watch sees in a process of its own, whatever the code in it does."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_ci.cache.watch import ABSENT, ReadSet

PARENT = """
import json, os, sys, traceback
from pathlib import Path
from onnx_ci.cache.watch import seen, watch
sys.dont_write_bytecode = True
for line in sys.stdin:
    if not (child := os.fork()):
        os.chdir(line.strip())
        sys.path.insert(0, os.getcwd())
        watch(Path.cwd())
        try:
            import recipe
            text = json.dumps(seen().as_json())
        except BaseException:
            text = traceback.format_exc()
        os.write(1, text.encode().replace(b"\\n", b" ") + b"\\n")
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "data" / "a.txt").write_text("1")
    (root / "helper.py").write_text("X = 1\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "w.bin").write_bytes(b"1")
    return root


@functools.cache
def parent() -> subprocess.Popen[str]:
    """A process that forks one for each file. It watches nothing itself."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module", autouse=True)
def end_of_parent() -> Iterator[None]:
    yield
    if parent.cache_info().currsize:
        parent().communicate()


def watched(root: Path, code: str) -> ReadSet:
    """What a process sees that imports a file with this code."""
    (root / "recipe.py").write_text(textwrap.dedent(code))
    process = parent()
    assert process.stdin and process.stdout
    process.stdin.write(f"{root}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer.startswith("{"), answer
    return ReadSet.from_json(json.loads(answer))


def names(seen: ReadSet, root: Path) -> set[str]:
    return {os.path.relpath(path, root) for path in seen.opened}


def test_a_module_that_imports_another_on_use_is_left_alone(root):
    lazy = """
        import sys, types
        class Lazy(types.ModuleType):
            def __getattr__(self, name):
                raise ImportError("a module that is not installed")
        sys.modules["lazy"] = Lazy("lazy")
        import helper
    """
    assert names(watched(root, lazy), root) >= {"recipe.py", "helper.py"}


def test_an_import_of_nothing_sees_nothing_else(root):
    seen = watched(root, "import json, sqlite3, uuid, importlib.metadata\nlist(importlib.metadata.entry_points())\n")
    assert names(seen, root) == {"recipe.py"}
    assert seen.python == (str(root / "recipe.py"),)
    assert (seen.listed, seen.not_kept) == ({}, "")


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("open('data/a.txt')", "data/a.txt"),
        ("open(b'data/a.txt', 'rb')", "data/a.txt"),
        ("import pathlib; pathlib.Path('data/a.txt').read_text()", "data/a.txt"),
        ("import os; os.close(os.open('data/a.txt', os.O_RDONLY))", "data/a.txt"),
        ("open('data/a.txt', 'r+')", "data/a.txt"),
        ("import mmap; f = open('data/a.txt', 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)", "data/a.txt"),
        ("open('../outside/w.bin', 'rb')", "../outside/w.bin"),
        ("import sqlite3; sqlite3.connect('file:data/a.txt?mode=ro', uri=True)", "data/a.txt"),
        ("import sqlite3; sqlite3.connect('data/a.txt')", "data/a.txt"),
        ("import ctypes\ntry:\n    ctypes.CDLL('./data/a.txt')\nexcept OSError:\n    pass", "data/a.txt"),
        ("import helper", "helper.py"),
        ("def f():\n    import helper\nf()", "helper.py"),
        ("import importlib; importlib.import_module('help' + 'er')", "helper.py"),
        ("exec(open('helper.py').read())", "helper.py"),
        ("import runpy; runpy.run_path('helper.py')", "helper.py"),
        ("import threading\nt = threading.Thread(target=open, args=('data/a.txt',)); t.start(); t.join()", "data/a.txt"),
        ("import os; os.chdir('data'); open('a.txt')", "data/a.txt"),
        ("import sys; sys.audit('onnx_ci.opened', 'data/a.txt')", "data/a.txt"),
    ],
)
def test_it_sees_a_file_that_is_opened(root, code, name):
    seen = watched(root, code)
    assert name in names(seen, root)
    assert seen.opened[os.path.normpath(root / name)] != ABSENT
    assert (str(root / name) in seen.python) == name.endswith(".py")


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    open('later.txt')\nexcept OSError:\n    pass",
        "import pathlib, contextlib\nwith contextlib.suppress(OSError):\n    pathlib.Path('later.txt').read_text()",
    ],
)
def test_it_sees_a_file_that_is_looked_for(root, code):
    assert watched(root, code).opened[str(root / "later.txt")] == ABSENT


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.listdir('data')",
        "import os; list(os.scandir('data'))",
        "import os; list(os.walk('data'))",
        "import glob; glob.glob('data/*.txt')",
        "import pathlib; list(pathlib.Path('data').glob('*.txt'))",
        "import pathlib; list(pathlib.Path('data').iterdir())",
        "import os; os.chdir('data'); os.listdir()",
    ],
)
def test_it_sees_a_folder_that_is_listed(root, code):
    assert watched(root, code).listed[str(root / "data")] == ("a.txt\0001",)


@pytest.mark.parametrize(
    "code",
    [
        "import no_such_thing.part",
        "import importlib; importlib.import_module('no_such' + '_thing')",
        "import importlib.util; importlib.util.find_spec('no_such' + '_thing')",
        "__import__('no_such' + '_thing')",
    ],
)
def test_it_sees_modules_that_are_missing(root, code):
    seen = watched(root, f"try:\n    {code}\nexcept ImportError:\n    pass\n")
    assert "no_such_thing" in seen.missing_modules
    assert "json" not in seen.missing_modules


@pytest.mark.parametrize(
    "code",
    [
        "open('new.txt', 'w').write('1'); open('new.txt').read()",
        "open('data/a.txt', 'wb').write(b'1'); open('data/a.txt').read()",
        "import tempfile, os; f = tempfile.mkdtemp(); open(f + '/a', 'a').write('1'); open(f + '/a').read(); os.listdir(f)",
        "import tempfile; f = tempfile.NamedTemporaryFile(); open(f.name).read()",
        "import tempfile, os; os.listdir(tempfile.gettempdir())",
        "open('log.txt', 'a').write('1')",
        "import sys; open(sys.executable, 'rb').read(); open('/proc/self/status').read(); open('/etc/hosts').read()",
        "import os; open(os.__file__).read(); os.listdir(os.path.dirname(os.__file__))",
        "import pytest, click; open(click.__file__).read()",
        "import shutil, tempfile, os; f = tempfile.mkdtemp(); os.makedirs(f + '/a/b'); shutil.rmtree(f)",
    ],
)
def test_these_do_not_count(root, code):
    seen = watched(root, code)
    assert names(seen, root) == {"recipe.py"}
    assert (seen.listed, seen.not_kept) == ({}, "")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import subprocess; subprocess.run(['true'])", "it starts true"),
        ("import subprocess; subprocess.run(['git', '--version'], stdout=-3)", "it starts git"),
        ("import subprocess; subprocess.run('true x', shell=True)", "it starts sh"),
        ("import os; os.system('true x')", "it starts true"),
        ("import os; os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)", "it starts true"),
        ("import os; os.waitpid(os.spawnv(os.P_NOWAIT, '/bin/true', ['true']), 0)", "it forks a process"),
        ("import os; os.fork() or os._exit(0)", "it forks a process"),
        ("import multiprocessing.popen_spawn_posix", "it starts processes"),
        ("import multiprocessing.popen_forkserver", "it starts processes"),
        ("import platform; platform.libc_ver(); platform.machine()", ""),
        ("import platform; platform.processor()", "it starts uname"),  # the recipe itself asks
    ],
)
def test_programs_and_forks_are_a_reason_not_to_keep(root, code, reason):
    assert watched(root, code).not_kept == reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("subprocess.run(['true'])", ""),
        ("subprocess.run([sys.executable, 'helper.py'])", ""),
        ("os.fork() or os._exit(0)", "it forks a process"),  # a worker of a DataLoader runs the project's code
    ],
)
def test_programs_that_a_library_starts_by_itself_do_not_count(root, code, reason):
    code = f"import os, re, click\nexec(compile({'import os, subprocess, sys; ' + code!r}, click.__file__, 'exec'))"
    assert watched(root, code).not_kept == reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("socket.getaddrinfo('localhost', 80)", "it connects to localhost"),
        ("socket.socket().connect_ex(('127.0.0.1', 9))", "it connects to 127.0.0.1"),
        ("socket.socketpair()", ""),
        ("socket.socket(socket.AF_UNIX).connect_ex('/nowhere')", ""),
    ],
)
def test_what_cannot_be_seen_is_a_reason_not_to_keep(root, code, reason):
    assert watched(root, f"import socket\ntry:\n    {code}\nexcept OSError:\n    pass\n").not_kept == reason


def test_what_c_opens_by_itself_is_a_reason_not_to_keep(root):
    seen = watched(root, "import ctypes; ctypes.CDLL(None).fopen(b'data/a.txt', b'r')")
    assert seen.not_kept == "it calls fopen through ctypes, whose files are not seen"
    assert watched(root, "import ctypes; ctypes.CDLL(None).getpid()").not_kept == ""


@pytest.mark.parametrize(
    "cheat",
    [
        "import builtins; keep = builtins.open; builtins.open = None; keep('data/a.txt')",
        "import sys; sys.modules['json.decoder'] = None; sys.modules['x'] = None; open('data/a.txt')",
        "import sys; sys.path.clear(); sys.meta_path.clear(); open('data/a.txt')",
        "import os; os.stat = os.scandir = os.readlink = os.path.abspath = os.fsdecode = None; open('data/a.txt')",
        "import sys; sys._getframe = None; import os; os.listdir('data'); open('data/a.txt')",
        "import gc; gc.disable(); import sys; sys.settrace(None); open('data/a.txt')",
        "class P:\n    def __fspath__(self):\n        return 'data/a.txt'\nopen(P())",
        "import os; os.environ.clear(); open('data/a.txt')",
    ],
)
def test_it_goes_on_whatever_a_recipe_does(root, cheat):
    seen = watched(root, cheat)
    assert "data/a.txt" in names(seen, root) or (seen.not_kept and "os.stat" in cheat)


def test_what_is_opened_too_deep_to_be_recorded_is_not_kept(root):
    code = """
    import sys
    sys.setrecursionlimit(200)
    def deep():
        try:
            deep()
        except RecursionError:
            open_it()
    def open_it():
        try:
            open('data/a.txt')
            opened.append(1)
        except RecursionError:
            pass
    opened = []
    deep()
    sys.setrecursionlimit(1000)
    if opened:
        import helper
    """
    seen = watched(root, code)
    was_opened = str(root / "helper.py") in seen.python
    assert not was_opened or seen.not_kept or "data/a.txt" in names(seen, root)


def test_a_fork_goes_on_with_the_record_of_its_parent(root):
    code = """
    import json, os, sys
    open('data/a.txt')
    read, write = os.pipe()
    if not os.fork():
        import helper
        from onnx_ci.cache.watch import seen
        os.write(write, json.dumps(seen().as_json()).encode())
        os._exit(0)
    os.close(write)
    os.write(1, os.fdopen(read, 'rb').read() + b'\\n')
    os._exit(0)
    """
    assert names(watched(root, code), root) >= {"data/a.txt", "helper.py", "recipe.py"}


def test_bytecode_is_its_source(root):
    (root / "recipe.py").write_text("import helper\n")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(root)], check=True)
    assert names(watched(root, "import helper\n"), root) == {"recipe.py", "helper.py"}


def test_what_is_mapped_now_is_seen(root):
    code = """
    import ctypes, os
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    number = libc.open(b'../outside/w.bin', os.O_RDONLY)
    libc.mmap(None, ctypes.c_size_t(1), 1, 2, number, ctypes.c_long(0))
    libc.close(number)
    """
    assert names(watched(root, code), root) == {"recipe.py", "../outside/w.bin"}


def test_what_processes_saw_can_be_joined_and_sent(root):
    one = ReadSet(python=("/a.py",), opened={"/a.py": "1"}, missing_modules=("x",))
    other = ReadSet(listed={"/b": ("c\0001",)}, opened={"/a.py": "2", "/d": ABSENT}, not_kept="it fails")
    joined = one | other
    assert ReadSet.from_json(json.loads(json.dumps(joined.as_json()))) == joined
    assert joined.opened == {"/a.py": "1", "/d": ABSENT}
    assert (joined.python, joined.not_kept) == (("/a.py",), "it fails")
    for damaged in (None, {}, {**joined.as_json(), "python": "a"}, {**joined.as_json(), "opened": []}):
        with pytest.raises(ValueError, match=r"."):
            ReadSet.from_json(damaged)
