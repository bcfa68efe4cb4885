"""What the watch sees in a process of its own, whatever the code in it does."""

from __future__ import annotations

import functools
import json
import os
import py_compile
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_ci.cache.watch import ABSENT, FOLDER, THERE, ReadSet, entries_of, state_of
from onnx_ci.results.json_data import from_json

PARENT = """
import json, os, sys, traceback
from pathlib import Path
from onnx_ci.cache.watch import seen, watch
from onnx_ci.results.json_data import to_json
sys.dont_write_bytecode = True
for line in sys.stdin:
    if not (child := os.fork()):
        os.chdir(line.strip())
        sys.path.insert(0, os.getcwd())
        watch()
        try:
            import recipe
            text = json.dumps(to_json(seen()))
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
    seen: ReadSet = from_json(ReadSet, json.loads(answer))
    return seen


def names(seen: ReadSet, root: Path) -> set[str]:
    """The files that the recipe has seen, apart from those of Python, of the system and of the folders above."""
    seen_here = (os.path.relpath(path, root) for path, state in seen.files.items() if state != FOLDER)
    return {path for path in seen_here if not path.startswith("../..")}


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
        ("import os; os.stat('data/a.txt')", "data/a.txt"),
        ("import os; os.stat('a.txt', dir_fd=os.open('data', os.O_RDONLY))", "data/a.txt"),
        ("import os; os.open('a.txt', os.O_RDONLY, dir_fd=os.open('data', os.O_RDONLY))", "data/a.txt"),
        ("import os; os.path.getsize('data/a.txt')", "data/a.txt"),
        ("import pathlib; pathlib.Path('data/a.txt').exists()", "data/a.txt"),
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
    assert seen.files[os.path.normpath(root / name)] != ABSENT


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    open('later.txt')\nexcept OSError:\n    pass",
        "import pathlib, contextlib\nwith contextlib.suppress(OSError):\n    pathlib.Path('later.txt').read_text()",
        "import os; os.path.exists('later.txt')",
        "import os; os.path.isdir(b'later.txt')",
        "import os; os.path.islink('later.txt')",
        "import os; os.path.lexists('later.txt')",
        "import os; os.access('later.txt', os.R_OK)",
        "import os; os.path.realpath('later.txt')",
        "import pathlib; pathlib.Path('later.txt').exists()",
        "import pathlib; pathlib.Path('later.txt').is_file()",
        "import pathlib; pathlib.Path('later.txt').resolve()",
        "import glob; glob.glob('later.txt')",
        "import shutil; shutil.which('./later.txt')",
    ],
)
def test_it_sees_a_file_that_is_looked_for(root, code):
    assert watched(root, code).files[str(root / "later.txt")] == ABSENT


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
        "import os; os.listdir(os.open('data', os.O_RDONLY))",
        "import os; list(os.fwalk('data'))",
    ],
)
def test_it_sees_a_folder_that_is_listed(root, code):
    assert watched(root, code).listed[str(root / "data")] == ("a.txt\0001",)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("open('link/../w.bin')", "link/../w.bin"),
        ("import os; os.stat('./data/../link/../w.bin')", "link/../w.bin"),
        ("import os; os.path.exists('link/../later.txt')", "link/../later.txt"),
        ("import os; os.path.exists('missing/../helper.py')", "missing/../helper.py"),
        ("import os; os.stat('../w.bin', dir_fd=os.open('link', os.O_RDONLY))", "../outside/w.bin"),
        ("open('data/../helper.py')", "helper.py"),
        ("import os; open(f'/proc/self/fd/{os.open(\"data\", os.O_RDONLY)}/a.txt')", "data/a.txt"),
        ("import sys; sys.path.insert(0, 'link/../lib'); import found_there", "link/../lib/found_there.py"),
        ("import linked", "linked/../w.bin"),
    ],
)
def test_above_a_link_is_where_it_leads(root, code, name):
    outside = root.parent / "outside"
    for folder in ("deep", "lib", "package"):
        (outside / folder).mkdir()
    (outside / "lib" / "found_there.py").touch()
    (outside / "package" / "__init__.py").write_text("import os; open(os.path.dirname(__file__) + '/../w.bin')")
    (root / "link").symlink_to("../outside/deep")
    (root / "linked").symlink_to("../outside/package")
    seen = watched(root, code)
    assert seen.files[f"{root}/{name}".replace("/project/../", "/")] == state_of(f"{root}/{name}")


def test_a_folder_above_a_link_that_is_listed_is_where_it_leads(root):
    (root / "link").symlink_to("../outside")
    listed = watched(root, "import os; os.listdir('link/..')").listed
    assert listed == {f"{root}/link/..": entries_of(str(root.parent))}


@pytest.mark.parametrize(
    "code",
    [
        "os.mkdir('later.txt'); os.rmdir('later.txt')",
        "os.makedirs('later.txt/deep')",
        "open('later.txt', 'x').close(); os.remove('later.txt')",
        "os.close(os.open('later.txt', os.O_CREAT | os.O_EXCL | os.O_WRONLY)); open('later.txt').read()",
        "pathlib.Path('later.txt').touch(exist_ok=False)",
        "os.symlink('data', 'later.txt'); os.remove('later.txt')",
        "os.link('data/a.txt', 'later.txt')",
        "os.remove('later.txt')",
        "pathlib.Path('later.txt').unlink(missing_ok=True)",
        "os.unlink('later.txt', dir_fd=os.open('.', os.O_RDONLY))",
        "os.rmdir('later.txt')",
        "os.rename('later.txt', 'data/b.txt')",
        "os.replace('later.txt', 'data/a.txt')",
        "os.chmod('later.txt', 0o600)",
        "os.chdir('later.txt')",
        "contextlib.chdir('later.txt').__enter__()",
        "shutil.rmtree('later.txt')",
        "shutil.move('later.txt', 'data')",
        "shutil.disk_usage('later.txt')",
        "os.listxattr('later.txt')",
    ],
)
def test_what_is_made_or_changed_is_looked_for(root, code):
    code = f"import contextlib, os, pathlib, shutil\nwith contextlib.suppress(OSError):\n    {code}\n"
    seen = watched(root, code)
    assert (seen.files[str(root / "later.txt")], seen.not_kept) == (ABSENT, "")


@pytest.mark.parametrize(
    "code",
    [
        "open('data/a.txt', 'x')",
        "os.symlink('a', 'data/a.txt')",
        "os.chmod('data/a.txt', 0o600)",
        "os.remove('data/a.txt'); os.remove('data/a.txt')",
        "shutil.rmtree('data'); os.mkdir('data'); open('data/a.txt', 'w')",
    ],
)
def test_of_what_is_only_made_or_changed_it_counts_that_it_is_there(root, code):
    seen = watched(root, f"import contextlib, os, shutil\nwith contextlib.suppress(OSError):\n    {code}\n")
    assert seen.files[str(root / "data/a.txt")] == THERE


def test_a_file_that_is_changed_and_read_counts_by_content(root):
    seen = watched(root, "import os; os.chmod('data/a.txt', 0o600); open('data/a.txt').read()")
    assert seen.files[str(root / "data/a.txt")] == state_of(str(root / "data/a.txt"))


def test_a_folder_in_which_nothing_can_be_made_is_looked_for(root):
    seen = watched(root, "import os, contextlib\nwith contextlib.suppress(OSError):\n    os.mkdir('missing/new')\n")
    assert seen.files[str(root / "missing")] == ABSENT


def test_what_is_read_through_a_link_that_is_gone_again_counts(root):
    code = """
    import os, tempfile
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath('data'), f'{folder}/link')
        open(f'{folder}/link/a.txt').read()
    """
    assert names(watched(root, code), root) == {"recipe.py", "data/a.txt"}


@pytest.mark.parametrize("temporary", ["NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory"])
def test_what_lies_beside_temporary_files_counts(root, temporary):
    seen = watched(root, f"import os, tempfile\nwith tempfile.{temporary}(dir='data'):\n    os.listdir('data')\n")
    assert seen.listed == {str(root / "data"): ("a.txt\0001",)}
    assert names(seen, root) == {"recipe.py"}


def test_a_folder_is_listed_with_its_links(root):
    (root / "data" / "folder").mkdir()
    (root / "data" / "link").symlink_to("a.txt")
    (root / "data" / "nowhere").symlink_to("missing")
    (root / "data" / "x.py").write_text("1")
    entries = {"a.txt\0001", "folder\0folder", "link\0001 → a.txt", "nowhere\0absent → missing", "x.py\0"}
    assert {*watched(root, "import os; os.listdir('data')").listed[str(root / "data")]} == entries


@pytest.mark.parametrize("folder", [".", "vendor"])
def test_what_no_installer_has_recorded_about_a_package_is_a_file(root, folder):
    information = root / folder / "unrecorded-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Name: unrecorded\nVersion: 1.0\nSummary: a")
    code = f"import importlib.metadata as m, sys; sys.path.insert(0, {folder!r})\n"
    seen = watched(
        root, f"{code}assert m.metadata('unrecorded')['Summary']; m.distribution('unrecorded').read_text('new.json')\n"
    )
    assert names(seen, information) >= {"METADATA", "new.json"}
    (information / "METADATA").unlink()
    information.rmdir()


def test_what_an_installer_has_recorded_about_a_package_is_no_file(root):
    code = "import importlib.metadata as m; m.metadata('pytest')['Summary']; m.distribution('pytest').read_text('new.json')\n"
    assert names(watched(root, code), root) == {"recipe.py"}


def test_bytecode_that_is_believed_without_a_look_at_its_source_counts(root):
    compiled = py_compile.compile(str(root / "helper.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert watched(root, "import helper").files.keys() >= {compiled, str(root / "helper.py")}


@pytest.mark.parametrize(
    "code",
    [
        "import no_such_thing.part",
        "import importlib; importlib.import_module('no_such' + '_thing')",
        "import importlib.util; importlib.util.find_spec('no_such' + '_thing')",
        "__import__('no_such' + '_thing')",
        "import importlib.util, pathlib; pathlib.Path('no_such_thing.py').touch(); importlib.util.find_spec('no_such_thing')",
    ],
)
def test_it_sees_where_modules_were_looked_for(root, code):
    searches = watched(root, f"try:\n    {code}\nexcept ImportError:\n    pass\n").searches
    (path,) = (search for search in searches if str(root) in search.folders)
    assert {"no_such_thing", "recipe", "json", "sitecustomize"} <= {*path.names}


def test_it_sees_what_a_package_of_the_project_may_import(root):
    (root / "package").mkdir()
    (root / "package" / "__init__.py").write_text("try:\n    from . import fast\nexcept ImportError:\n    from . import slow\n")
    (root / "package" / "slow.py").touch()
    searches = watched(root, "import package").searches
    (search,) = (search for search in searches if search.folders == (str(root / "package"),))
    assert search.names == ("__init__", "fast", "slow")


def test_packages_that_an_installer_recorded_are_not_searched(root):
    folders = {folder for search in watched(root, "import click, pytest").searches for folder in search.folders}
    assert not {folder for folder in folders if folder.endswith(("/click", "/_pytest"))}


@pytest.mark.parametrize(
    "code",
    [
        "open('new.txt', 'w').write('1'); open('new.txt').read()",
        "open('data/a.txt', 'wb').write(b'1'); open('data/a.txt').read()",
        "import tempfile, os; f = tempfile.mkdtemp(); open(f + '/a', 'a').write('1'); open(f + '/a').read(); os.listdir(f)",
        "import tempfile; f = tempfile.NamedTemporaryFile(); open(f.name).read()",
        "open('log.txt', 'a').write('1')",
        "open('/proc/self/status').read(); import os; os.path.exists('/sys/class/gpu'); open('/dev/null')",
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


def test_a_database_is_read_with_its_log(root):
    seen = watched(root, "import sqlite3; sqlite3.connect('data/a.txt')")
    assert seen.files[str(root / "data/a.txt-wal")] == ABSENT


def test_looking_for_a_file_does_what_it_did(root):
    code = """
    import os, pickle, shutil
    assert os.stat in os.supports_dir_fd and os.stat in os.supports_fd and os.access in os.supports_effective_ids
    assert os.stat(0) and os.stat(b"data") and os.stat("a.txt", dir_fd=os.open("data", os.O_RDONLY)).st_size == 1
    assert os.lstat.__doc__ and os.path.samefile("data", "./data") and not os.access("later.txt", mode=os.F_OK)
    for wrong in (None, 1.5, "a\\0b"):
        try:
            os.stat(wrong)
        except (TypeError, ValueError):
            continue
        raise AssertionError(wrong)
    """
    assert watched(root, code).not_kept == ""


@pytest.mark.parametrize("path", ["/etc/hosts", sys.executable, os.__file__])
def test_no_place_is_exempt(root, path):
    assert watched(root, f"open({path!r}, 'rb').close()").files[path] != ABSENT


def test_what_a_recipe_makes_if_it_is_missing_counts_as_missing(root):
    code = """
    import os, pathlib
    folder = pathlib.Path('data/made')
    folder.mkdir()
    file = folder / 'a.txt'
    if not file.exists():
        file.write_text('1')
    file.read_text()
    """
    assert watched(root, code).files[str(root / "data/made/a.txt")] == ABSENT


def test_what_the_runtime_of_a_plug_in_starts_counts_as_a_file(root):
    runtime = Path(__file__).parents[3] / "onnx_ci/tools/engines/plugin.py"  # as the parent imports it
    program = ["true", "--quiet", str(root / "data/a.txt")]
    code = f"import subprocess\nexec(compile('run()', {str(runtime)!r}, 'exec'), {{'run': lambda: subprocess.run({program})}})"
    seen = watched(root, code)
    assert seen.not_kept == ""
    assert shutil.which("true") in seen.files
    assert names(seen, root) == {"data/a.txt", "recipe.py"}  # what it is given, if it is a file


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
    was_opened = str(root / "helper.py") in seen.files
    assert not was_opened or seen.not_kept or "data/a.txt" in names(seen, root)


def test_a_fork_goes_on_with_the_record_of_its_parent(root):
    code = """
    import json, os, sys
    open('data/a.txt')
    read, write = os.pipe()
    if not os.fork():
        import helper
        from onnx_ci.cache.watch import seen
        from onnx_ci.results.json_data import to_json
        os.write(write, json.dumps(to_json(seen())).encode())
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
