"""What is changed in a tiny project after its cell has passed, and whether the cell must run again.

The model of a project multiplies by two. While it is exported, it multiplies by what its function ``factor`` returns: the cell
passes while that is 2, and fails once it is 3. A row of :data:`AGAIN` says where ``factor`` looks and what is changed there, so
the verdict that was right before is wrong afterwards, and a cache that shows it is stale. A row of
:data:`KEPT` changes what the cell cannot notice, or what onnx-ci promises to ignore.

``test_changes.py`` runs the rows. In paths and in the text of files, ``<root>`` is the project's folder and ``<outside>`` another,
which ``<hidden>`` is in base64: a file that computes a path from it does not mention it.
"""

from __future__ import annotations

import base64
import json
import os
import py_compile
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import textwrap
import venv
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

FRONT_ENDS = ("fork", "spawn", "pytest")


@dataclass
class Place:
    """Where a row's project is, and how its commands are started. A change may alter each of them."""

    root: Path
    outside: Path
    environment: dict[str, str] = field(default_factory=dict)
    python: str | None = None
    """The interpreter; ``None`` is the one that runs the tests."""
    mask: int | None = None
    """The umask of its commands."""

    def path(self, name: str) -> Path:
        """Where a name leads that begins with ``<outside>`` or ``<root>``, or is relative to the root."""
        return self.root / self.text(name)

    def text(self, text: str) -> str:
        hidden = base64.b64encode(str(self.outside).encode()).decode()
        return text.replace("<hidden>", hidden).replace("<outside>", str(self.outside)).replace("<root>", str(self.root))


Step = Callable[[Place], object]


def nothing(_: Place) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Again:
    """A change after which the cell must run again."""

    name: str
    recipe: str
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    before: Step = nothing
    change: Step
    is_repository: bool = True
    is_always_kept: bool = True
    """Whether the verdict must come from the cache while nothing changes; else onnx-ci may choose to run the cell each time."""
    has_other_verdict: bool = True
    """Whether the change makes the cell fail. Where it does not, it only has to run again."""
    is_fresh: bool = False
    """Whether Python itself must be started, because it reads what is changed when it starts."""
    front_ends: tuple[str, ...] = FRONT_ENDS
    needs: str | None = None
    """A module without which the row cannot be tried, or ``cc``."""
    limit: str = ""
    """Why onnx-ci does not notice the change: a row that it fails."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A change after which every verdict must come from the cache."""

    name: str
    change: Step
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    before: Step = nothing
    is_repository: bool = True
    front_ends: tuple[str, ...] = FRONT_ENDS


# --- recipe files

_FILE = """
import onnx_ci
import torch


def factor():
{body}


{value}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {build}

    def forward(self, x):
        {run}
        return x * ({number} if torch.onnx.is_in_onnx_export() else 2)


@onnx_ci.recipe(input_names=["x"], output_names=["y"])
def model():
    return Model(), (torch.ones(3),)
"""


def _file(body: str, *, value: str = "", build: str = "", run: str = "", number: str) -> str:
    body = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return _FILE.format(body=body, value=value, build=build or "pass", run=run or "pass", number=number)


def imported(body: str) -> str:
    """A recipe file that calls ``factor`` when it is imported."""
    return _file(body, value="FACTOR = factor()\n\n", number="FACTOR")


def built(body: str) -> str:
    """A recipe file that calls ``factor`` when the model is built."""
    return _file(body, build="self.factor = factor()", number="self.factor")


def each_time(body: str) -> str:
    """A recipe file that calls ``factor`` whenever the model runs."""
    return _file(body, run="number = factor()", number="number")


def exported(body: str) -> str:
    """A recipe file that calls ``factor`` only while the model is exported."""
    return _file(body, number="factor()")


# --- steps


def both(*steps: Step) -> Step:
    def take(place: Place) -> None:
        for step in steps:
            step(place)

    return take


def written(name: str, text: str) -> Step:
    def write(place: Place) -> None:
        path = place.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(place.text(textwrap.dedent(text)), encoding="utf-8")

    return write


def appended(name: str, text: str) -> Step:
    def append(place: Place) -> None:
        with place.path(name).open("a", encoding="utf-8") as file:
            file.write(text)

    return append


def removed(name: str) -> Step:
    def remove(place: Place) -> None:
        path = place.path(name)
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return remove


def renamed(name: str, to: str) -> Step:
    return lambda place: place.path(name).rename(place.path(to))


def folder(name: str) -> Step:
    return lambda place: place.path(name).mkdir(parents=True)


def mode(name: str, bits: int) -> Step:
    return lambda place: place.path(name).chmod(bits)


def linked(name: str, to: str) -> Step:
    """Make a link, in the place of another where there is one."""

    def link(place: Place) -> None:
        path = place.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(place.text(to))

    return link


def variable(name: str, value: str | None) -> Step:
    def set_it(place: Place) -> None:
        place.environment.pop(name, None)
        if value is not None:
            place.environment[name] = place.text(value)

    return set_it


def variables(**values: str) -> Step:
    return both(*(variable(name, value) for name, value in values.items()))


def unnoticed(name: str, text: str, *, in_place: bool) -> Step:
    """Give a file other content of the same length, and its times."""

    def replace(place: Place) -> None:
        path = place.path(name)
        was = path.stat()
        assert len(text) == was.st_size
        new = path if in_place else path.with_name(f"{path.name}.new")
        new.write_text(text, encoding="utf-8")
        os.utime(new, ns=(was.st_atime_ns, was.st_mtime_ns))
        new.replace(path)

    return replace


def git(*words: str) -> Step:
    def run(place: Place) -> None:
        settings = ("-c", "user.name=a@b.c", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        command = ["git", *settings, *words]
        subprocess.run(command, cwd=place.root, env=environment, check=True, capture_output=True, timeout=60)

    return run


# --- files with a number, in formats that their own libraries read


def _safetensors(path: Path, number: int) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"factor": torch.tensor([float(number)])}, path)


def _torch(path: Path, number: int) -> None:
    import torch

    torch.save({"factor": torch.tensor([float(number)])}, path)


def _scripted(path: Path, number: int) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but what people have
        torch.jit.save(torch.jit.trace(lambda x: x * number, torch.ones(1)), str(path))


def _numpy(path: Path, number: int) -> None:
    import numpy as np

    with path.open("wb") as file:  # a path would get an ending
        np.save(file, np.array([float(number)], dtype=np.float32))


def _floats(path: Path, number: int) -> None:
    import array

    path.write_bytes(array.array("f", [number]).tobytes())


def _database(path: Path, number: int) -> None:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("create table factors (factor integer)")
        connection.execute("insert into factors values (?)", (number,))
    connection.close()


def _hdf5(path: Path, number: int) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["factor"] = number


def _onnx(path: Path, number: int) -> None:
    from onnx import TensorProto, helper, save

    constant = helper.make_tensor("factor", TensorProto.FLOAT, [1], [float(number)])
    node = helper.make_node("Constant", [], ["y"], value=constant)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def _tokens(path: Path, number: int) -> None:
    model = {"type": "WordLevel", "vocab": {f"w{each}": each for each in range(number)}, "unk_token": "w0"}
    keys = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **dict.fromkeys(keys)}))


def _shelf(path: Path, number: int) -> None:
    import shelve

    with shelve.open(str(path)) as shelf:
        shelf["factor"] = number


def _archive(path: Path, number: int) -> None:
    path.unlink(missing_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("far.py", f"FACTOR = {number}\n")


def _bytecode(path: Path, number: int) -> None:
    source = path.with_suffix(".source")
    source.write_text(f"FACTOR = {number}\n")
    py_compile.compile(
        str(source), cfile=str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
    )
    source.unlink()


def _library(path: Path, number: int) -> None:
    source = path.with_suffix(".c")
    source.write_text(f"int factor(void) {{ return {number}; }}\n")
    new = path.with_name(f"{path.name}.new")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(new), str(source)], check=True, timeout=60)
    new.replace(path)
    source.unlink()


def holding(kind: Callable[[Path, int], None], name: str, number: int) -> Step:
    """Write a file with ``number``."""

    def write(place: Place) -> None:
        path = place.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        kind(path, number)

    return write


SAFETENSORS = "from safetensors.torch import load_file\nreturn int(load_file({0})['factor'])\n"
TORCH = "return int(torch.load({0})['factor'])\n"
TORCH_MAPPED = "return int(torch.load({0}, mmap=True)['factor'])\n"
SCRIPTED = "return int(torch.jit.load({0})(torch.ones(1)))\n"
FROM_FILE = "return int(torch.from_file({0}, size=1))\n"
STORAGE = "return int(torch.UntypedStorage.from_file({0}, False, 4)[3] == 64 and torch.from_file({0}, size=1))\n"
NUMPY = "import numpy\nreturn int(numpy.load({0})[0])\n"
MAPPED = "import numpy\nreturn int(numpy.memmap({0}, dtype='float32', mode='r')[0])\n"
DATABASE = """
import contextlib
import sqlite3
with contextlib.closing(sqlite3.connect({0})) as connection:
    return connection.execute("select factor from factors").fetchone()[0]
"""
HDF5 = "import h5py\nwith h5py.File({0}) as file:\n    return int(file['factor'][()])\n"
ONNX = "import onnxruntime\nreturn int(onnxruntime.InferenceSession({0}, providers=['CPUExecutionProvider']).run(None, {{}})[0][0])\n"
TOKENS = "from tokenizers import Tokenizer\nreturn Tokenizer.from_file({0}).get_vocab_size()\n"
IMAGE = "import torchvision\nreturn int(chr(torchvision.io.read_file({0})[0]))\n"
SHELF = "import shelve\nwith shelve.open({0}, flag='r') as shelf:\n    return shelf['factor']\n"
C_READER = """
import ctypes
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = libc.fopen({0}.encode(), b"r")
number = libc.fgetc(ctypes.c_void_p(file)) - ord("0")
libc.fclose(ctypes.c_void_p(file))
return number
"""
LIBRARY = "import ctypes\nreturn ctypes.CDLL({0}).factor()\n"


INSIDE, OUTSIDE = "'data/factor.bin'", "'<outside>/factor.bin'"
HIDDEN = "(__import__('base64').b64decode('<hidden>').decode() + '/factor' + '.bin')"
"""Paths as a recipe file writes them: of the project, elsewhere, and elsewhere but computed."""
_PATHS = {
    "inside": ("data/factor.bin", INSIDE),
    "outside": ("<outside>/factor.bin", OUTSIDE),
    "hidden": ("<outside>/factor.bin", HIDDEN),
}


def _read_by_library(
    name: str,
    kind: Callable[[Path, int], None],
    code: str,
    *places: str,
    recipe: Callable[[str], str] = built,
    needs: str | None = None,
    limit: str = "",
    is_kept: bool = True,
) -> list[Again]:
    """Rows in which a library opens a file: of the project, elsewhere, and elsewhere under a computed path.

    The last one may be a known limit.
    """
    rows = []
    for place in places:
        file, expression = _PATHS[place]
        rows.append(
            Again(
                name=f"{name} reads a file {'of the project' if place == 'inside' else 'elsewhere'}{', computed' * (place == 'hidden')}",
                recipe=recipe(code.format(expression)),
                before=holding(kind, file, 2),
                change=holding(kind, file, 3),
                is_always_kept=is_kept and place == "inside",
                needs=needs,
                limit=limit if place == "hidden" else "",
            )
        )
    return rows


# --- installed packages

SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def installed(name: str, files: Mapping[str, str], *, version: str = "1.0", has_record: bool = True) -> Step:
    """Install a distribution ``far`` into a folder, as an installer does that writes a RECORD."""

    def install(place: Place) -> None:
        site = place.path(name)
        information = f"far-{version}.dist-info"
        for old in site.glob("far-*.dist-info"):
            shutil.rmtree(old)
        texts = {
            **files,
            f"{information}/METADATA": f"Metadata-Version: 2.1\nName: far\nVersion: {version}\n",
            f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{information}/INSTALLER": "pip\n",
        }
        lines = []
        for path, text in texts.items():
            written(f"{name}/{path}", text)(place)
            content = (site / path).read_bytes()
            digest = base64.urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{path},sha256={digest},{len(content)}\n")
        if has_record:
            (site / information / "RECORD").write_text("".join(lines) + f"{information}/RECORD,,\n")

    return install


def environment_of_its_own(place: Place) -> None:
    """A virtual environment that also sees what is installed in that of the tests."""
    target = place.outside / "venv"
    venv.create(target, symlinks=True)
    packages = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in packages)
    (target / SITE / "_tests.pth").write_text(lines)
    place.python = str(target / "bin" / "python")


IN_VENV = f"<outside>/venv/{SITE}"
TARGET = {"PYTHONPATH": "<outside>/target"}
FAR = "import far\nreturn far.FACTOR\n"

UNSEEN = "only compiled code opens a file that git does not track, and has closed it when the cell ends"
"""The known limit of docs/cache.md."""

# --- the rows

_VARIABLES = [
    Again(
        name="a variable that the model reads",
        recipe=each_time("import os\nreturn int(os.environ['FACTOR'])"),
        environment={"FACTOR": "2"},
        change=variable("FACTOR", "3"),
    ),
    Again(
        name="a variable that the export reads",
        recipe=exported("import os\nreturn int(os.getenv('FACTOR'))"),
        environment={"FACTOR": "2"},
        change=variable("FACTOR", "3"),
    ),
    Again(
        name="a new variable",
        recipe=each_time("import os\nreturn int(os.environ.get('MY_FACTOR', '2'))"),
        change=variable("MY_FACTOR", "3"),
    ),
    Again(
        name="a variable that is gone",
        recipe=exported("import os\nreturn 2 if 'MY_FACTOR' in os.environ else 3"),
        environment={"MY_FACTOR": ""},
        change=variable("MY_FACTOR", None),
    ),
    Again(
        name="a variable that C reads",
        recipe=each_time("""
            import ctypes
            libc = ctypes.CDLL(None)
            libc.getenv.restype = ctypes.c_char_p
            return int(libc.getenv(b"FACTOR"))
        """),
        environment={"FACTOR": "2"},
        change=variable("FACTOR", "3"),
    ),
    Again(
        name="a new variable that is found by its prefix",
        recipe=imported("import os\nreturn 2 + sum(name.startswith('MY_APP_') for name in os.environ)"),
        environment={"OTHER": "1"},
        change=variable("MY_APP_FAST", "1"),
    ),
    Again(
        name="a variable of CI that programs read",
        recipe=built("import os\nreturn 3 if os.environ.get('CI') else 2"),
        environment={"CI": ""},
        change=variable("CI", "true"),
    ),
    Again(
        name="the time zone, in forward",
        recipe=each_time("import time\ntime.tzset()\nreturn 2 if time.timezone == 0 else 3"),
        environment={"TZ": "UTC0"},
        change=variable("TZ", "JST-9"),
    ),
    Again(
        name="the time zone, in the export",
        recipe=exported("""
            import datetime
            moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
            return 2 if moment.astimezone().utcoffset() == datetime.timedelta(0) else 3
        """),
        environment={"TZ": "UTC0"},
        change=variable("TZ", "EST5"),
        is_fresh=True,
    ),
    Again(
        name="the time zone, when imported",
        recipe=imported("import time\nreturn 2 if time.tzname[0] == 'UTC' else 3"),
        environment={"TZ": "UTC0"},
        change=variable("TZ", "JST-9"),
        is_fresh=True,
    ),
    Again(
        name="the locale, in forward",
        recipe=each_time("import locale\nreturn 3 if locale.setlocale(locale.LC_ALL, '') == 'C' else 2"),
        environment={"LC_ALL": "C.UTF-8"},
        change=variable("LC_ALL", "C"),
    ),
    Again(
        name="the language, in the export",
        recipe=exported("import locale\nreturn 3 if locale.setlocale(locale.LC_MESSAGES, '') == 'C' else 2"),
        environment={"LC_MESSAGES": "C.UTF-8"},
        change=variable("LC_MESSAGES", "C"),
    ),
    Again(
        name="which GPUs may be seen",
        recipe=built("import os\nreturn 3 if os.environ.get('CUDA_VISIBLE_DEVICES') == '' else 2"),
        environment={"CUDA_VISIBLE_DEVICES": "0"},
        change=variable("CUDA_VISIBLE_DEVICES", ""),
        is_fresh=True,
    ),
    Again(
        name="a flag of Python",
        recipe=exported("return 2 if __debug__ else 3"),
        change=variable("PYTHONOPTIMIZE", "1"),
        is_fresh=True,
    ),
    Again(
        name="how oneDNN multiplies",
        recipe=exported("return 2"),
        change=variable("ONEDNN_DEFAULT_FPMATH_MODE", "BF16"),
        has_other_verdict=False,
    ),
    Again(
        name="where libraries are looked for",
        recipe=each_time("import ctypes\nreturn ctypes.CDLL('libonnxcifactor.so').factor()"),
        environment={"LD_LIBRARY_PATH": "<outside>/two"},
        before=both(
            holding(_library, "<outside>/two/libonnxcifactor.so", 2), holding(_library, "<outside>/three/libonnxcifactor.so", 3)
        ),
        change=variable("LD_LIBRARY_PATH", "<outside>/three"),
        needs="cc",
        is_always_kept=False,
        is_fresh=True,
    ),
    Again(
        name="where modules are looked for",
        recipe=built(FAR),
        environment={"PYTHONPATH": "<outside>/two"},
        before=both(written("<outside>/two/far.py", "FACTOR = 2\n"), written("<outside>/three/far.py", "FACTOR = 3\n")),
        change=variable("PYTHONPATH", "<outside>/three"),
        is_fresh=True,
    ),
    Again(
        name="the home folder, with another file of the same name",
        recipe=built("import pathlib\nreturn int(pathlib.Path('~/.factor').expanduser().read_text())"),
        environment={"HOME": "<outside>/one"},
        before=both(written("<outside>/one/.factor", "2"), written("<outside>/another/.factor", "3")),
        change=variable("HOME", "<outside>/another"),
    ),
]

_LOOKED_AT = [
    Again(
        name="a file that appears, whose existence the export asks for",
        recipe=exported("import os\nreturn 3 if os.path.exists('data/fast.flag') else 2"),
        files={"data/a.txt": "a"},
        change=written("data/fast.flag", ""),
    ),
    Again(
        name="a file that disappears, whose existence the model asks for",
        recipe=each_time("import pathlib\nreturn 2 if pathlib.Path(__file__).with_name('flag').is_file() else 3"),
        files={"flag": ""},
        change=removed("flag"),
    ),
    Again(
        name="a file outside of a repository that appears",
        recipe=exported("import os\nreturn 3 if os.path.exists('fast.flag') else 2"),
        change=written("fast.flag", ""),
        is_repository=False,
    ),
    Again(
        name="a file elsewhere that appears",
        recipe=exported("import os\nreturn 3 if os.path.exists('<outside>/fast.flag') else 2"),
        change=written("<outside>/fast.flag", ""),
    ),
    Again(
        name="an empty folder that appears",
        recipe=exported("import os\nreturn 3 if os.path.isdir('fast') else 2"),
        change=folder("fast"),
    ),
    Again(
        name="a folder that the export lists",
        recipe=exported("import os\nreturn 1 + len(os.listdir('data'))"),
        files={"data/a.txt": "a"},
        change=written("data/b.txt", "b"),
    ),
    Again(
        name="a folder that the model scans",
        recipe=each_time("import os\nreturn 1 + sum(each.is_file() for each in os.scandir('data'))"),
        files={"data/a.txt": "a"},
        change=written("data/b.txt", "b"),
    ),
    Again(
        name="a pattern in the export",
        recipe=exported("import glob\nreturn 1 + len(glob.glob('data/*.txt'))"),
        files={"data/a.txt": "a"},
        change=written("data/b.txt", "b"),
    ),
    Again(
        name="a pattern that descends, in forward",
        recipe=each_time("import pathlib\nreturn 1 + len(list(pathlib.Path('data').rglob('*.txt')))"),
        files={"data/deep/a.txt": "a"},
        change=written("data/deep/deeper/b.txt", "b"),
    ),
    Again(
        name="a tree that is walked",
        recipe=built("import os\nreturn 1 + sum(len(files) for _, _, files in os.walk('data'))"),
        files={"data/deep/a.txt": "a"},
        change=written("data/deep/b.txt", "b"),
    ),
    Again(
        name="a file that is renamed",
        recipe=imported("import pathlib\nreturn int(next(pathlib.Path('data').iterdir()).stem)"),
        files={"data/2.txt": "a"},
        change=renamed("data/2.txt", "data/3.txt"),
    ),
    Again(
        name="the size of a file, in the export",
        recipe=exported("import os\nreturn os.stat('data/a.txt').st_size"),
        files={"data/a.txt": "aa"},
        change=appended("data/a.txt", "a"),
    ),
    Again(
        name="the size of a file, in forward",
        recipe=each_time("import os\nreturn os.path.getsize('data/a.txt')"),
        files={"data/a.txt": "aa"},
        change=written("data/a.txt", "aaa"),
    ),
    Again(
        name="whether a file can be executed",
        recipe=each_time("import os\nreturn 2 if os.stat('tool.sh').st_mode & 0o100 else 3"),
        files={"tool.sh": "true"},
        before=mode("tool.sh", 0o755),
        change=mode("tool.sh", 0o644),
    ),
    Again(
        name="the text of a link",
        recipe=exported("import os\nreturn int(os.readlink('current'))"),
        before=linked("current", "2"),
        change=linked("current", "3"),
    ),
    Again(
        name="a file that two names of a link lead to",
        recipe=exported("import os\nreturn 2 if os.path.samefile('data/link', 'data/a.txt') else 3"),
        files={"data/a.txt": "a", "data/b.txt": "b"},
        before=linked("data/link", "a.txt"),
        change=linked("data/link", "b.txt"),
    ),
]

_READ_ONCE = [
    Again(
        name="a configuration behind lru_cache",
        recipe=each_time("import settings\nreturn settings.read()['factor']"),
        files={
            "settings.py": """
                import functools, json, pathlib

                @functools.lru_cache
                def read():
                    return json.loads(pathlib.Path(__file__).with_name("settings.json").read_text())
            """,
            "settings.json": '{"factor": 2}',
        },
        change=written("settings.json", '{"factor": 3}'),
    ),
    Again(
        name="a configuration that becomes an attribute of torch",
        recipe=exported("import settings\nreturn torch.my_factor"),
        files={"settings.py": "import json, torch\ntorch.my_factor = json.load(open('settings.json'))", "settings.json": "2"},
        change=written("settings.json", "3"),
    ),
    Again(
        name="a module that sets an attribute of torch",
        recipe=exported("return torch.my_factor") + "\nimport package\n",
        files={"package/__init__.py": "from . import more", "package/more.py": "import torch\ntorch.my_factor = 2\n"},
        change=written("package/more.py", "import torch\ntorch.my_factor = 3\n"),
    ),
    Again(
        name="a built-in name that another file sets",
        recipe="import settings\n" + exported("return MY_FACTOR"),
        files={"settings.py": "import builtins\nbuiltins.MY_FACTOR = 2\n"},
        change=written("settings.py", "import builtins\nbuiltins.MY_FACTOR = 3\n"),
    ),
    Again(
        name="a built-in name from a configuration",
        recipe="import settings\n" + exported("return MY_FACTOR"),
        files={"settings.py": "import builtins\nbuiltins.MY_FACTOR = int(open('factor.txt').read())\n", "factor.txt": "2"},
        change=written("factor.txt", "3"),
    ),
    Again(
        name="the level of a logger",
        recipe=exported("""
            import logging
            import settings
            return 3 if logging.getLogger("my").isEnabledFor(logging.DEBUG) else 2
        """),
        files={
            "settings.py": "import json, logging.config\nlogging.config.dictConfig(json.load(open('logging.json')))\n",
            "logging.json": '{"version": 1, "loggers": {"my": {"level": "INFO"}}}',
        },
        change=written("logging.json", '{"version": 1, "loggers": {"my": {"level": "DEBUG"}}}'),
    ),
    Again(
        name="a variable that another file sets",
        recipe=each_time("import os, settings\nreturn int(os.environ['FACTOR'])"),
        files={"settings.py": "import os\nos.environ['FACTOR'] = '2'\n"},
        change=written("settings.py", "import os\nos.environ['FACTOR'] = '3'\n"),
    ),
    Again(
        name="a variable from a file of variables that git ignores",
        recipe=imported("import os, settings\nreturn int(os.environ['FACTOR'])"),
        files={
            "settings.py": "import os\nos.environ.update([line.strip().split('=') for line in open('.env')])\n",
            ".gitignore": ".env\n",
            ".env": "FACTOR=2\n",
        },
        change=written(".env", "FACTOR=3\n"),
    ),
    Again(
        name="an ini file that is read when imported",
        recipe=imported(
            "import configparser\nini = configparser.ConfigParser()\nini.read('my.ini')\nreturn ini.getint('my', 'factor')"
        ),
        files={"my.ini": "[my]\nfactor = 2\n"},
        change=written("my.ini", "[my]\nfactor = 3\n"),
    ),
    Again(
        name="an ini file that is new",
        recipe=imported("""
            import configparser
            ini = configparser.ConfigParser()
            ini.read(["my.ini", "local.ini"])
            return ini.getint("my", "factor")
        """),
        files={"my.ini": "[my]\nfactor = 2\n"},
        change=written("local.ini", "[my]\nfactor = 3\n"),
    ),
    Again(
        name="a state of numpy that another file sets",
        recipe=exported("import numpy, settings\nreturn numpy.get_printoptions()['precision']"),
        files={"settings.py": "import numpy\nnumpy.set_printoptions(precision=2)\n"},
        change=written("settings.py", "import numpy\nnumpy.set_printoptions(precision=3)\n"),
    ),
    Again(
        name="the project's own table in pyproject.toml",
        recipe=imported("import tomllib\nreturn tomllib.load(open('pyproject.toml', 'rb'))['tool']['mine']['factor']"),
        before=appended("pyproject.toml", "\n[tool.mine]\nfactor = 2\n"),
        change=both(
            written("pyproject.toml", '[tool.onnx-ci]\nopsets = 13\nexporters = "torchscript"\n[tool.mine]\nfactor = 3\n')
        ),
    ),
    Again(
        name="notes that are read, though notes do not count",
        recipe=built("return int(open('NOTES.md').read())"),
        files={"NOTES.md": "2"},
        change=written("NOTES.md", "3"),
    ),
    Again(
        name="a page of docs that the export reads",
        recipe=exported("return int(open('docs/factor.txt').read())"),
        files={"docs/factor.txt": "2"},
        change=written("docs/factor.txt", "3"),
    ),
    Again(
        name="notes that were looked for and are new",
        recipe=exported("""
            try:
                return int(open("NOTES.md").read())
            except OSError:
                return 2
        """),
        change=written("NOTES.md", "3"),
    ),
    Again(
        name="a setting of onnx-ci",
        recipe=exported("return 2.000001"),
        before=written("pyproject.toml", '[tool.onnx-ci]\nopsets = 13\nexporters = "torchscript"\nmax-drift = 1000\n'),
        change=written("pyproject.toml", '[tool.onnx-ci]\nopsets = 13\nexporters = "torchscript"\nmax-drift = 0.5\n'),
    ),
]

_LIBRARIES = [
    *_read_by_library("SQLite", _database, DATABASE, "inside", "outside", "hidden", recipe=exported),
    *_read_by_library("HDF5", _hdf5, HDF5, "inside", "hidden", needs="h5py"),
    *_read_by_library("ONNX Runtime", _onnx, ONNX, "inside", "hidden", limit=UNSEEN),
    *_read_by_library(
        "C",
        lambda path, number: path.write_text(str(number)),
        C_READER,
        "inside",
        "outside",
        "hidden",
        recipe=each_time,
        is_kept=False,
    ),
    *_read_by_library(
        "a loaded library",
        _library,
        LIBRARY.replace("{0}", "os.path.abspath({0})").replace("ctypes\n", "ctypes, os\n", 1),
        "inside",
        "hidden",
        needs="cc",
    ),
    *_read_by_library("safetensors", _safetensors, SAFETENSORS, "inside", "outside", "hidden", needs="safetensors"),
    *_read_by_library("torch.load", _torch, TORCH, "inside", "hidden"),
    *_read_by_library("torch.load, mapped,", _torch, TORCH_MAPPED, "hidden"),
    *_read_by_library("torch.jit.load", _scripted, SCRIPTED, "inside", "outside", "hidden"),
    *_read_by_library("torch.from_file", _floats, FROM_FILE, "inside", "hidden", recipe=exported, limit=UNSEEN),
    *_read_by_library("a storage", _floats, STORAGE, "hidden", recipe=each_time, limit=UNSEEN),
    *_read_by_library("numpy.load", _numpy, NUMPY, "inside", "hidden"),
    *_read_by_library("numpy.memmap", _floats, MAPPED, "inside", "hidden", recipe=exported),
    *_read_by_library("tokenizers", _tokens, TOKENS, "inside", "hidden", needs="tokenizers", limit=UNSEEN),
    *_read_by_library(
        "torchvision", lambda path, number: path.write_text(str(number)), IMAGE, "hidden", needs="torchvision", limit=UNSEEN
    ),
    *_read_by_library("shelve", _shelf, SHELF, "inside", "outside"),
    Again(
        name="safetensors reads a file that a configuration names",
        recipe=built("import json\n" + SAFETENSORS.format("json.load(open('weights.json'))['file']")),
        files={"weights.json": '{"file": "<outside>/factor.bin"}'},
        before=holding(_safetensors, "<outside>/factor.bin", 2),
        change=holding(_safetensors, "<outside>/factor.bin", 3),
        is_always_kept=False,
        needs="safetensors",
    ),
    Again(
        name="safetensors reads a file beside the project that a configuration names",
        recipe=built("import json\n" + SAFETENSORS.format("json.load(open('weights.json'))['file']")),
        files={"weights.json": '{"file": "../outside/factor.bin"}'},
        before=holding(_safetensors, "<outside>/factor.bin", 2),
        change=holding(_safetensors, "<outside>/factor.bin", 3),
        is_always_kept=False,
        needs="safetensors",
    ),
    Again(
        name="torch.jit.load reads a file in a folder that a variable names",
        recipe=built("import os\n" + SCRIPTED.format("os.path.join(os.environ['WEIGHTS'], 'factor.bin')")),
        environment={"WEIGHTS": "<outside>"},
        before=holding(_scripted, "<outside>/factor.bin", 2),
        change=holding(_scripted, "<outside>/factor.bin", 3),
        is_always_kept=False,
    ),
    Again(
        name="safetensors maps a file elsewhere, computed, when imported",
        recipe="from safetensors.torch import load_file\n"
        + exported("return int(WEIGHTS['factor'])").replace("def factor", f"WEIGHTS = load_file({HIDDEN})\n\n\ndef factor"),
        before=holding(_safetensors, "<outside>/factor.bin", 2),
        change=holding(_safetensors, "<outside>/factor.bin", 3),
        needs="safetensors",
    ),
    Again(
        name="ONNX Runtime reads a file of a computed name in a folder that the recipe names",
        limit=UNSEEN,
        recipe=built(ONNX.format("'<outside>/' + 'fac' + 'tor.bin'")),
        before=holding(_onnx, "<outside>/factor.bin", 2),
        change=holding(_onnx, "<outside>/factor.bin", 3),
    ),
    Again(
        name="tokenizers reads a file of a computed name in a folder that a variable names",
        limit=UNSEEN,
        recipe=built("import os\n" + TOKENS.format("os.environ['MODELS'] + '/deep' + '/fac' + 'tor.json'")),
        environment={"MODELS": "<outside>"},
        before=holding(_tokens, "<outside>/deep/factor.json", 2),
        change=holding(_tokens, "<outside>/deep/factor.json", 3),
        needs="tokenizers",
    ),
    Again(
        name="torch.from_file reads a file of a computed name in a folder that a configuration names",
        limit=UNSEEN,
        recipe=exported("import json\n" + FROM_FILE.format("json.load(open('paths.json'))['models'] + '/fac' + 'tor.bin'")),
        files={"paths.json": '{"models": "../outside"}'},
        before=holding(_floats, "<outside>/factor.bin", 2),
        change=holding(_floats, "<outside>/factor.bin", 3),
    ),
    Again(
        name="a file elsewhere that Python opens",
        recipe=exported(f"return int(open({HIDDEN}).read())"),
        before=written("<outside>/factor.bin", "2"),
        change=written("<outside>/factor.bin", "3"),
    ),
    Again(
        name="a file elsewhere that was looked for and is new",
        recipe=exported(f"""
            try:
                return int(open({HIDDEN}).read())
            except OSError:
                return 2
        """),
        change=written("<outside>/factor.bin", "3"),
    ),
    Again(
        name="a folder elsewhere that is listed",
        recipe=built("import base64, os\nreturn 1 + len(os.listdir(base64.b64decode('<hidden>').decode()))"),
        before=written("<outside>/a", ""),
        change=written("<outside>/b", ""),
    ),
    Again(
        name="a descriptor of a file elsewhere",
        recipe=exported(f"""
            import os
            file = os.open({HIDDEN}, os.O_RDONLY)
            number = int(os.read(file, 1))
            os.close(file)
            return number
        """),
        before=written("<outside>/factor.bin", "2"),
        change=written("<outside>/factor.bin", "3"),
    ),
    Again(
        name="a file elsewhere that a process of the model reads",
        recipe=exported(f"""
            import os
            ours, theirs = os.pipe()
            child = os.fork()
            if not child:
                os.write(theirs, open({HIDDEN}, "rb").read())
                os._exit(0)
            number = int(os.read(ours, 1))
            os.waitpid(child, 0)
            os.close(ours), os.close(theirs)
            return number
        """),
        before=written("<outside>/factor.bin", "2"),
        change=written("<outside>/factor.bin", "3"),
        is_always_kept=False,
    ),
]

_PROGRAMS = [
    Again(
        name="a script that the export starts",
        recipe=exported(
            "import subprocess, sys\nreturn int(subprocess.run([sys.executable, 'tool.py'], capture_output=True).stdout)"
        ),
        files={"tool.py": "print(2)\n"},
        change=written("tool.py", "print(3)\n"),
        is_always_kept=False,
    ),
    Again(
        name="a module of a script that the model starts",
        recipe=built(
            "import subprocess, sys\nreturn int(subprocess.check_output([sys.executable, '-m', 'tools.main'], cwd='.'))"
        ),
        files={"tools/main.py": "from tools.more import FACTOR\nprint(FACTOR)\n", "tools/more.py": "FACTOR = 2\n"},
        change=written("tools/more.py", "FACTOR = 3\n"),
        is_always_kept=False,
    ),
    Again(
        name="a shell script",
        recipe=built("import os\nwith os.popen('sh tool.sh') as stream:\n    return int(stream.read())"),
        files={"tool.sh": "echo 2\n"},
        change=written("tool.sh", "echo 3\n"),
        is_always_kept=False,
    ),
    Again(
        name="a file elsewhere that a program reads",
        recipe=built(f"import subprocess\nreturn int(subprocess.check_output(['cat', {HIDDEN}]))"),
        before=written("<outside>/factor.bin", "2"),
        change=written("<outside>/factor.bin", "3"),
        is_always_kept=False,
    ),
    Again(
        name="a file elsewhere that a shell asks for",
        recipe=exported("import os\nreturn 3 if os.system('test -e \"$PLACE\"/flag') == 0 else 2"),
        environment={"PLACE": "<outside>"},
        change=written("<outside>/flag", ""),
        is_always_kept=False,
    ),
    Again(
        name="the history that git tells",
        recipe=built("import subprocess\nreturn 1 + int(subprocess.check_output(['git', 'rev-list', '--count', 'HEAD']))"),
        change=git("commit", "--quiet", "--allow-empty", "--message=two"),
        is_always_kept=False,
    ),
    Again(
        name="a program of a folder on the path",
        recipe=built("import subprocess\nreturn int(subprocess.check_output(['onnx-ci-factor']))"),
        before=both(
            written("<outside>/bin/onnx-ci-factor", "#!/bin/sh\necho 2\n"),
            mode("<outside>/bin/onnx-ci-factor", 0o755),
            lambda place: place.environment.update(PATH=f"{place.outside}/bin{os.pathsep}{os.environ['PATH']}"),
        ),
        change=written("<outside>/bin/onnx-ci-factor", "#!/bin/sh\necho 3\n"),
        is_always_kept=False,
    ),
]

_INSTALLED = [
    Again(
        name="a package of a target folder that is edited in place",
        recipe=built(FAR),
        environment=TARGET,
        before=installed("<outside>/target", {"far/__init__.py": "FACTOR = 2\n"}),
        change=written("<outside>/target/far/__init__.py", "FACTOR = 3\n"),
        is_fresh=True,
    ),
    Again(
        name="a package of a target folder that is upgraded",
        recipe=built(FAR),
        environment=TARGET,
        before=installed("<outside>/target", {"far/__init__.py": "FACTOR = 2\n"}),
        change=installed("<outside>/target", {"far/__init__.py": "FACTOR = 3\n"}, version="1.1"),
        is_fresh=True,
    ),
    Again(
        name="a package that is built again under the same version",
        recipe=built(FAR),
        environment=TARGET,
        before=installed("<outside>/target", {"far/__init__.py": "FACTOR = 2\n"}),
        change=installed("<outside>/target", {"far/__init__.py": "FACTOR = 3\n"}),
        is_fresh=True,
    ),
    Again(
        name="a package without a RECORD",
        recipe=built(FAR),
        environment=TARGET,
        before=installed("<outside>/target", {"far/__init__.py": "FACTOR = 2\n"}, has_record=False),
        change=written("<outside>/target/far/__init__.py", "FACTOR = 3\n"),
        is_fresh=True,
    ),
    Again(
        name="data of a package that is edited in place",
        recipe=exported(FAR),
        environment=TARGET,
        before=installed(
            "<outside>/target",
            {
                "far/__init__.py": "import pathlib\nFACTOR = int(pathlib.Path(__file__).with_name('factor.txt').read_text())\n",
                "far/factor.txt": "2",
            },
        ),
        change=written("<outside>/target/far/factor.txt", "3"),
        is_fresh=True,
    ),
    Again(
        name="a new package that a package looks for",
        recipe=built(FAR),
        environment=TARGET,
        before=installed(
            "<outside>/target",
            {"far/__init__.py": "try:\n    from farther import FACTOR\nexcept ImportError:\n    FACTOR = 2\n"},
        ),
        change=written("<outside>/target/farther.py", "FACTOR = 3\n"),
        is_fresh=True,
    ),
    Again(
        name="a package of the environment that is edited in place",
        recipe=exported(FAR),
        before=both(environment_of_its_own, installed(IN_VENV, {"far/__init__.py": "FACTOR = 2\n"})),
        change=written(f"{IN_VENV}/far/__init__.py", "FACTOR = 3\n"),
    ),
    Again(
        name="a submodule of a package that the export imports",
        recipe=exported("from far import deep\nreturn deep.FACTOR"),
        before=both(environment_of_its_own, installed(IN_VENV, {"far/__init__.py": "", "far/deep.py": "FACTOR = 2\n"})),
        change=written(f"{IN_VENV}/far/deep.py", "FACTOR = 3\n"),
    ),
    Again(
        name="a loose module of the environment",
        recipe=built("import loose\nreturn loose.FACTOR"),
        before=both(environment_of_its_own, written(f"{IN_VENV}/loose.py", "FACTOR = 2\n")),
        change=written(f"{IN_VENV}/loose.py", "FACTOR = 3\n"),
    ),
    Again(
        name="a loose package without an __init__.py",
        recipe=exported("from loose.deep import FACTOR\nreturn FACTOR"),
        before=both(environment_of_its_own, written(f"{IN_VENV}/loose/deep.py", "FACTOR = 2\n")),
        change=written(f"{IN_VENV}/loose/deep.py", "FACTOR = 3\n"),
    ),
    Again(
        name="a .pth file that sets a variable",
        recipe=each_time("import sys\nreturn getattr(sys, 'factor', 2)"),
        before=environment_of_its_own,
        change=written(f"{IN_VENV}/factor.pth", "import sys; sys.factor = 3\n"),
    ),
    Again(
        name="a .pth file that leads elsewhere",
        recipe=built(FAR),
        before=both(
            environment_of_its_own,
            written("<outside>/two/far.py", "FACTOR = 2\n"),
            written("<outside>/three/far.py", "FACTOR = 3\n"),
            written(f"{IN_VENV}/far.pth", "<outside>/two\n"),
        ),
        change=written(f"{IN_VENV}/far.pth", "<outside>/three\n"),
    ),
    Again(
        name="a module to which a .pth file leads",
        recipe=exported(FAR),
        before=both(
            environment_of_its_own,
            written("<outside>/two/far.py", "FACTOR = 2\n"),
            written(f"{IN_VENV}/far.pth", "<outside>/two\n"),
        ),
        change=written("<outside>/two/far.py", "FACTOR = 3\n"),
    ),
    Again(
        name="sitecustomize",
        recipe=exported("import sys\nreturn getattr(sys, 'factor', 2)"),
        before=both(environment_of_its_own, written(f"{IN_VENV}/sitecustomize.py", "import sys\nsys.factor = 2\n")),
        change=written(f"{IN_VENV}/sitecustomize.py", "import sys\nsys.factor = 3\n"),
    ),
    Again(
        name="a sitecustomize that is new",
        recipe=each_time("import sys\nreturn getattr(sys, 'factor', 2)"),
        environment={"PYTHONPATH": "<outside>/site"},
        before=folder("<outside>/site"),
        change=written("<outside>/site/sitecustomize.py", "import sys\nsys.factor = 3\n"),
        is_fresh=True,
    ),
    Again(
        name="a module elsewhere",
        recipe=exported(FAR),
        environment={"PYTHONPATH": "<outside>/more"},
        before=written("<outside>/more/far.py", "FACTOR = 2\n"),
        change=written("<outside>/more/far.py", "FACTOR = 3\n"),
        is_fresh=True,
    ),
    Again(
        name="a module elsewhere that is found before another",
        recipe=built(FAR),
        environment={"PYTHONPATH": f"<outside>/first{os.pathsep}<outside>/second"},
        before=both(folder("<outside>/first"), written("<outside>/second/far.py", "FACTOR = 2\n")),
        change=written("<outside>/first/far.py", "FACTOR = 3\n"),
        is_fresh=True,
    ),
    Again(
        name="a module in an archive elsewhere",
        recipe=built("import base64, sys\nsys.path.insert(0, base64.b64decode('<hidden>').decode() + '/far.zip')\n" + FAR),
        before=holding(_archive, "<outside>/far.zip", 2),
        change=holding(_archive, "<outside>/far.zip", 3),
    ),
]

_TWO, _THREE = "FACTOR = 2\n", "FACTOR = 3\n"

_IMPORTS = [
    Again(
        name="the recipe file itself",
        recipe=exported("return 2"),
        change=written("onnx_recipes.py", exported("return 3")),
    ),
    Again(
        name="a module that the export imports",
        recipe=exported("from helper import FACTOR\nreturn FACTOR"),
        files={"helper.py": _TWO},
        change=written("helper.py", _THREE),
    ),
    Again(
        name="a module at the end of a chain",
        recipe=imported("import a\nreturn a.FACTOR"),
        files={"a.py": "from b import FACTOR\n", "b.py": "from c import FACTOR\n", "c.py": _TWO},
        change=written("c.py", _THREE),
    ),
    Again(
        name="a module whose name is computed",
        recipe=built("import importlib\nreturn importlib.import_module('_'.join(['conf', 'a'])).FACTOR"),
        files={"conf_a.py": _TWO},
        change=written("conf_a.py", _THREE),
    ),
    Again(
        name="a module whose computed name the export imports",
        recipe=exported("return __import__('conf' + '_a').FACTOR"),
        files={"conf_a.py": _TWO},
        change=written("conf_a.py", _THREE),
    ),
    Again(
        name="a module that appears where an import may fail",
        recipe=imported("try:\n    from fast import FACTOR\nexcept ImportError:\n    FACTOR = 2\nreturn FACTOR"),
        change=written("fast.py", _THREE),
    ),
    Again(
        name="a module that appears where an import in the export may fail",
        recipe=exported("try:\n    import fast\nexcept ImportError:\n    return 2\nreturn fast.FACTOR"),
        change=written("fast/__init__.py", _THREE),
    ),
    Again(
        name="a module that appears whose name is computed",
        recipe=exported("""
            import importlib
            try:
                return importlib.import_module("fa" + "st").FACTOR
            except ImportError:
                return 2
        """),
        change=written("fast.py", _THREE),
    ),
    Again(
        name="a module that disappears where an import may fail",
        recipe=imported("try:\n    from fast import FACTOR\nexcept ImportError:\n    FACTOR = 3\nreturn FACTOR"),
        files={"fast.py": _TWO},
        change=removed("fast.py"),
    ),
    Again(
        name="a module that is asked for without an import",
        recipe=exported("import importlib.util\nreturn 3 if importlib.util.find_spec('fast') else 2"),
        change=written("fast.py", _THREE),
    ),
    Again(
        name="a package that hides a module",
        recipe=built("import helper\nreturn helper.FACTOR"),
        files={"helper.py": _TWO},
        change=written("helper/__init__.py", _THREE),
    ),
    Again(
        name="a module that hides one of Python's",
        recipe=built("import tabnanny\nreturn getattr(tabnanny, 'FACTOR', 2)"),
        change=written("tabnanny.py", _THREE),
    ),
    Again(
        name="a submodule that appears where an import from its package may fail",
        recipe=exported("try:\n    from package import fast\nexcept ImportError:\n    return 2\nreturn fast.FACTOR"),
        files={"package/__init__.py": ""},
        change=written("package/fast.py", _THREE),
    ),
    Again(
        name="a relative import",
        recipe=built("from package.inner import FACTOR\nreturn FACTOR"),
        files={
            "package/__init__.py": "",
            "package/inner.py": "from .deep.factor import FACTOR\n",
            "package/deep/__init__.py": "",
            "package/deep/factor.py": _TWO,
        },
        change=written("package/deep/factor.py", _THREE),
    ),
    Again(
        name="an import of everything",
        recipe="from helper import *\n" + exported("return FACTOR"),
        files={"helper.py": "from more import *\n", "more.py": _TWO},
        change=written("more.py", _THREE),
    ),
    Again(
        name="the list of what an import of everything takes",
        recipe="FACTOR = 3\nfrom helper import *\n" + exported("return FACTOR"),
        files={"helper.py": "FACTOR = 2\n"},
        change=written("helper.py", "__all__ = []\nFACTOR = 2\n"),
    ),
    Again(
        name="a package that forwards another module",
        recipe=imported("from package import FACTOR\nreturn FACTOR"),
        files={"package/__init__.py": "from .two import FACTOR\n", "package/two.py": _TWO, "package/three.py": _THREE},
        change=written("package/__init__.py", "from .three import FACTOR\n"),
    ),
    Again(
        name="a package without an __init__.py",
        recipe=built("from space.inner import factor\nreturn factor.FACTOR"),
        files={"space/inner/factor.py": _TWO},
        change=written("space/inner/factor.py", _THREE),
    ),
    Again(
        name="an __init__.py that is new",
        recipe=exported("import space.factor\nreturn getattr(space, 'FACTOR', 2)"),
        files={"space/factor.py": ""},
        change=written("space/__init__.py", _THREE),
    ),
    Again(
        name="code that is executed from a file",
        recipe=exported("names = {}\nexec(open('factor.py').read(), names)\nreturn names['FACTOR']"),
        files={"factor.py": _TWO},
        change=written("factor.py", _THREE),
    ),
    Again(
        name="a file that runpy runs",
        recipe=built("import runpy\nreturn runpy.run_path('tool.py')['FACTOR']"),
        files={"tool.py": _TWO},
        change=written("tool.py", _THREE),
    ),
    Again(
        name="a module that runpy runs",
        recipe=exported("import runpy\nreturn runpy.run_module('tool')['FACTOR']"),
        files={"tool.py": "from more import FACTOR\n", "more.py": _TWO},
        change=written("more.py", _THREE),
    ),
    Again(
        name="a module that is loaded by its path",
        recipe=imported("""
            import importlib.util
            spec = importlib.util.spec_from_file_location("loaded", "odd-name.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.FACTOR
        """),
        files={"odd-name.py": _TWO},
        change=written("odd-name.py", _THREE),
    ),
    Again(
        name="the class of a pickled object",
        recipe=built("import pickle\nreturn pickle.load(open('factor.pickle', 'rb')).factor()"),
        files={"shapes.py": "class Factor:\n    def factor(self):\n        return 2\n"},
        before=lambda place: place.path("factor.pickle").write_bytes(b"\x80\x04cshapes\nFactor\n)\x81."),
        change=written("shapes.py", "class Factor:\n    def factor(self):\n        return 3\n"),
    ),
    Again(
        name="plugins that are found by listing a package",
        recipe=imported("""
            import importlib, pkgutil, plugins
            modules = [importlib.import_module(f"plugins.{each.name}") for each in pkgutil.iter_modules(plugins.__path__)]
            return sum(module.FACTOR for module in modules)
        """),
        files={"plugins/__init__.py": "", "plugins/a.py": _TWO},
        change=written("plugins/b.py", "FACTOR = 1\n"),
    ),
    Again(
        name="Python files that are found by a pattern",
        recipe=exported("import glob\nreturn 1 + len(glob.glob('plugins/*.py'))"),
        files={"plugins/a.py": ""},
        change=written("plugins/b.py", ""),
    ),
    Again(
        name="a Python file whose size is asked for",
        recipe=exported("import os\nreturn 2 if os.path.getsize('table.py') == 0 else 3"),
        files={"table.py": ""},
        change=written("table.py", "# one\n"),
    ),
    Again(
        name="a Python file that is read as text",
        recipe=built("import pathlib\nreturn int(pathlib.Path('table.py').read_text()[1:])"),
        files={"table.py": "#2"},
        change=written("table.py", "#3"),
    ),
    Again(
        name="a module without a source",
        recipe=built("import far\nreturn far.FACTOR"),
        before=holding(_bytecode, "far.pyc", 2),
        change=holding(_bytecode, "far.pyc", 3),
    ),
    Again(
        name="files of a language of the project's own",
        recipe=built("import loader\nimport rules_of_mine\nreturn rules_of_mine.FACTOR"),
        files={
            "loader.py": """
                import importlib.abc, importlib.util, sys, types
                class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
                    def find_spec(self, name, path, target=None):
                        return importlib.util.spec_from_loader(name, self) if name == "rules_of_mine" else None
                    def exec_module(self, module):
                        module.FACTOR = int(open("rules.dsl").read())
                sys.meta_path.insert(0, Finder())
            """,
            "rules.dsl": "2",
        },
        change=written("rules.dsl", "3"),
    ),
    Again(
        name="a conftest.py that is new",
        recipe=exported("return 2"),
        change=both(written("conftest.py", "import torch\ntorch.my_factor = 3\n"), git("add", "conftest.py")),
        has_other_verdict=False,
    ),
    Again(
        name="a conftest.py that is edited",
        recipe=exported("return 2"),
        files={"conftest.py": "FACTOR = 2\n"},
        change=written("conftest.py", _THREE),
        has_other_verdict=False,
    ),
    Again(
        name="a configuration of pytest that is new",
        recipe=exported("return 2"),
        change=both(written("pytest.ini", "[pytest]\n"), git("add", "pytest.ini")),
        has_other_verdict=False,
    ),
    Again(
        name="a module in a folder that pytest adds to the path",
        recipe="import helper\n" + exported("return helper.FACTOR"),
        files={"pytest.ini": "[pytest]\npythonpath = lib\n", "lib/helper.py": _TWO},
        change=written("lib/helper.py", _THREE),
        front_ends=("pytest",),
    ),
]

_IGNORED_AND_LINKED = [
    Again(
        name="an ignored file that is read",
        recipe=exported("return int(open('build/factor.txt').read())"),
        files={".gitignore": "build/\n", "build/factor.txt": "2"},
        change=written("build/factor.txt", "3"),
    ),
    Again(
        name="an ignored file that appears",
        recipe=exported("import os\nreturn 3 if os.path.exists('build/fast.flag') else 2"),
        files={".gitignore": "build/\n"},
        change=written("build/fast.flag", ""),
    ),
    Again(
        name="an ignored file that was looked for by opening it",
        recipe=exported("try:\n    return int(open('build/' + 'factor' + '.txt').read())\nexcept OSError:\n    return 2"),
        files={".gitignore": "build/\n"},
        change=written("build/factor.txt", "3"),
    ),
    Again(
        name="an ignored folder that is listed",
        recipe=built("import os\nreturn 1 + len(os.listdir('checkpoints'))"),
        files={".gitignore": "checkpoints/\n", "checkpoints/1.pt": ""},
        change=written("checkpoints/2.pt", ""),
    ),
    Again(
        name="ignored weights that a library reads",
        recipe=built(SAFETENSORS.format("'checkpoints/weights.safetensors'")),
        files={".gitignore": "*.safetensors\n"},
        before=holding(_safetensors, "checkpoints/weights.safetensors", 2),
        change=holding(_safetensors, "checkpoints/weights.safetensors", 3),
        needs="safetensors",
        is_always_kept=False,
    ),
    Again(
        name="ignored weights of a computed name that a library reads",
        recipe=exported(FROM_FILE.format("'check' + 'points/' + 'a' + '.pt'")),
        files={".gitignore": "checkpoints/\n"},
        before=holding(_floats, "checkpoints/a.pt", 2),
        change=holding(_floats, "checkpoints/a.pt", 3),
        is_always_kept=False,
        limit=UNSEEN,
    ),
    Again(
        name="an ignored module that is imported",
        recipe=imported("import _generated\nreturn _generated.FACTOR"),
        files={".gitignore": "_generated.py\n", "_generated.py": _TWO},
        change=written("_generated.py", _THREE),
    ),
    Again(
        name="a file that a nested .gitignore hides",
        recipe=built("return int(open('data/local.txt').read())"),
        files={"data/.gitignore": "*\n", "data/local.txt": "2"},
        change=written("data/local.txt", "3"),
        is_repository=False,
    ),
    Again(
        name="a file elsewhere to which a link of the project leads",
        recipe=built("return int(open('factor.txt').read())"),
        before=both(written("<outside>/a.txt", "2"), linked("factor.txt", "<outside>/a.txt")),
        change=written("<outside>/a.txt", "3"),
    ),
    Again(
        name="a module elsewhere to which a link of the project leads",
        recipe=exported("import helper\nreturn helper.FACTOR"),
        before=both(written("<outside>/a.py", _TWO), linked("helper.py", "<outside>/a.py")),
        change=written("<outside>/a.py", _THREE),
    ),
    Again(
        name="a link of the project that leads to another file",
        recipe=built("return int(open('current').read())"),
        files={"a.txt": "2", "b.txt": "3"},
        before=linked("current", "a.txt"),
        change=linked("current", "b.txt"),
    ),
    Again(
        name="a folder elsewhere to which a link of the project leads",
        recipe=built(SAFETENSORS.format("'weights/factor.bin'")),
        before=both(holding(_safetensors, "<outside>/factor.bin", 2), linked("weights", "<outside>")),
        change=holding(_safetensors, "<outside>/factor.bin", 3),
        needs="safetensors",
        is_always_kept=False,
    ),
    Again(
        name="a link elsewhere that leads to another folder",
        recipe=exported("return int(open('<outside>/current/factor.txt').read())"),
        before=both(
            written("<outside>/v1/factor.txt", "2"), written("<outside>/v2/factor.txt", "3"), linked("<outside>/current", "v1")
        ),
        change=linked("<outside>/current", "v2"),
    ),
    Again(
        name="a file that is replaced by one of the same size and time",
        recipe=built("return int(open('factor.txt').read())"),
        files={"factor.txt": "2"},
        change=unnoticed("factor.txt", "3", in_place=False),
    ),
    Again(
        name="a file that is edited and keeps its size and time",
        recipe=exported("return int(open('factor.txt').read())"),
        files={"factor.txt": "2"},
        change=unnoticed("factor.txt", "3", in_place=True),
    ),
    Again(
        name="a file elsewhere that is replaced by one of the same size and time",
        recipe=built(f"return int(open({HIDDEN}).read())"),
        before=written("<outside>/factor.bin", "2"),
        change=unnoticed("<outside>/factor.bin", "3", in_place=False),
    ),
    Again(
        name="a file that git is told not to look at",
        recipe=built("return int(open('factor.txt').read())"),
        files={"factor.txt": "2"},
        before=nothing,
        change=both(git("update-index", "--assume-unchanged", "factor.txt"), written("factor.txt", "3")),
    ),
    Again(
        name="a change that is committed",
        recipe=exported("return int(open('factor.txt').read())"),
        files={"factor.txt": "2"},
        change=both(written("factor.txt", "3"), git("commit", "--quiet", "--all", "--message=three")),
    ),
    Again(
        name="a file of a repository within the project",
        recipe=exported("return int(open('vendor/factor.txt').read())"),
        before=both(
            written("vendor/factor.txt", "2"),
            git("init", "--quiet", "vendor"),
            git("-C", "vendor", "add", "."),
            git("-C", "vendor", "commit", "--quiet", "--message=vendor"),
        ),
        change=written("vendor/factor.txt", "3"),
    ),
    Again(
        name="a module of a folder that is not a repository",
        recipe=built("import helper\nreturn helper.FACTOR"),
        files={"helper.py": _TWO},
        change=written("helper.py", _THREE),
        is_repository=False,
    ),
]

_SEEN = [
    Again(
        name="a checkpoint that is loaded if there is one",
        recipe=built("""
            import pathlib
            path = pathlib.Path(__file__).parent / "checkpoints" / f"{'be' + 'st'}.pt"
            return int(torch.load(path)["factor"]) if path.exists() else 2
        """),
        files={".gitignore": "checkpoints/\n", "checkpoints/other.pt": ""},
        change=holding(_torch, "checkpoints/best.pt", 3),
    ),
    Again(
        name="a file of variables that is looked for in all folders above",
        recipe=built("""
            import pathlib
            files = (folder / (".e" + "nv") for folder in pathlib.Path(__file__).absolute().parents)
            return next((int(file.read_text()) for file in files if file.is_file()), 2)
        """),
        change=lambda place: (place.root.parent / ".env").write_text("3"),
    ),
    Again(
        name="a link of a folder with many files, which is resolved",
        recipe=built(f"import pathlib\nreturn int((pathlib.Path({HIDDEN}) / 'latest').resolve().joinpath('f').read_text())"),
        before=both(
            written("<outside>/factor.bin/v1/f", "2"),
            written("<outside>/factor.bin/v2/f", "3"),
            linked("<outside>/factor.bin/latest", "v1"),
        ),
        change=linked("<outside>/factor.bin/latest", "v2"),
    ),
    Again(
        name="a file that the recipe makes if it is missing, and then reads",
        recipe=built(f"""
            import pathlib
            file = pathlib.Path({HIDDEN}) / "made.txt"
            file.parent.mkdir(exist_ok=True)
            if not file.exists():
                file.write_text("2")
            return int(file.read_text())
        """),
        change=written("<outside>/factor.bin/made.txt", "3"),
        is_always_kept=False,
    ),
    Again(
        name="the id of a run that the code names",
        recipe=built("import os\nreturn int(open(f\"runs/{os.environ['RUN_ID']}/factor.txt\").read())"),
        files={".gitignore": "runs/\n", "runs/a/factor.txt": "2", "runs/b/factor.txt": "3"},
        environment={"RUN_ID": "a"},
        change=variable("RUN_ID", "b"),
    ),
    Again(
        name="a module that git ignores and that appears",
        recipe=imported("try:\n    from local_settings import FACTOR\nexcept ImportError:\n    return 2\nreturn FACTOR"),
        files={".gitignore": "local_settings.py\n"},
        change=written("local_settings.py", _THREE),
    ),
    Again(
        name="a compiled module that is built beside its fallback",
        recipe=imported("from shop.ops import FACTOR\nreturn FACTOR"),
        files={
            ".gitignore": "*.so\n",
            "shop/__init__.py": "",
            "shop/ops.py": "try:\n    from ._fast import FACTOR\nexcept ImportError:\n    FACTOR = 2\n",
        },
        change=written(f"shop/_fast{sysconfig.get_config_var('EXT_SUFFIX')}", "no library"),
        has_other_verdict=False,
    ),
    Again(
        name="a module in the folder of the baselines",
        recipe=imported("from models.net import FACTOR\nreturn FACTOR"),
        files={
            "pyproject.toml": '[tool.onnx-ci]\nopsets = 13\nexporters = "torchscript"\nbaseline-folder = "models"\n',
            "models/__init__.py": "",
            "models/net.py": _TWO,
        },
        change=written("models/net.py", _THREE),
    ),
    Again(
        name="data of a folder of Python's environment that no RECORD names",
        recipe=built("import pathlib, sys\nreturn int(pathlib.Path(sys.prefix, 'share/factor.txt').read_text())"),
        before=both(environment_of_its_own, written("<outside>/venv/share/factor.txt", "2")),
        change=written("<outside>/venv/share/factor.txt", "3"),
    ),
    Again(
        name="data that a package has downloaded into its folder",
        recipe=built("import far, pathlib\nreturn int(pathlib.Path(far.__file__).with_name('factor.txt').read_text())"),
        before=both(
            environment_of_its_own, installed(IN_VENV, {"far/__init__.py": ""}), written(f"{IN_VENV}/far/factor.txt", "2")
        ),
        change=written(f"{IN_VENV}/far/factor.txt", "3"),
    ),
]
"""What a recipe asked for, wherever it lies."""

AGAIN = [*_SEEN, *_VARIABLES, *_LOOKED_AT, *_READ_ONCE, *_LIBRARIES, *_PROGRAMS, *_INSTALLED, *_IMPORTS, *_IGNORED_AND_LINKED]
"""Changes after which the cell must run again."""


# --- what must not matter

PROJECT = {
    "onnx_recipes.py": exported("import helper\nreturn helper.read()"),
    "helper.py": "import pathlib\ndef read():\n    return int(pathlib.Path(__file__).with_name('data').joinpath('factor.txt').read_text())\n",
    "data/factor.txt": "2",
    "unrelated.py": "VALUE = 1\n",
    "tools/clean.py": "print('clean')\n",
    "README.md": "one\n",
    "docs/index.md": "one\n",
    "docs/picture.svg": "<svg/>\n",
    "CHANGES.rst": "one\n",
    "tests/test_unrelated.py": "def test_nothing():\n    pass\n",
    ".gitignore": ".onnx-ci-cache/\n__pycache__/\nbuild/\n.venv/\n",
}
"""A small project, of which the recipe uses three files."""


def _moved(place: Place, to: Path) -> None:
    """Continue elsewhere, with the cache of before. Its files are new ones, as where a cache was restored."""
    shutil.copytree(place.root / ".onnx-ci-cache", to / ".onnx-ci-cache", copy_function=shutil.copyfile)
    place.root = to


def cloned(name: str) -> Step:
    def clone(place: Place) -> None:
        target = place.outside / name
        target.parent.mkdir(parents=True, exist_ok=True)
        git("clone", "--quiet", ".", str(target))(place)
        _moved(place, target)

    return clone


def _copied(place: Place) -> None:
    target = place.outside / "copy"
    shutil.copytree(place.root, target, ignore=shutil.ignore_patterns(".git", ".onnx-ci-cache", "__pycache__"))
    _moved(place, target)


def _restored(place: Place) -> None:
    """Every file is a new one, in the same place."""
    aside = place.root.with_name("aside")
    place.root.rename(aside)
    shutil.copytree(aside, place.root, symlinks=True, copy_function=shutil.copyfile)


def _touched(place: Place) -> None:
    for path in place.root.rglob("*"):
        if ".git" not in path.parts and path.is_file():
            path.touch()


def _same_again(place: Place) -> None:
    """Write each file again with the same content, as git does on the way to another branch and back."""
    for name in PROJECT:
        path = place.root / name
        text = path.read_bytes()
        path.unlink()
        path.write_bytes(text)


def _without_bytecode(place: Place) -> None:
    for path in [*place.root.rglob("__pycache__")]:
        shutil.rmtree(path)


def _masked(place: Place) -> None:
    place.mask = 0o077


KEPT = [
    Kept(name="nothing", change=nothing),
    Kept(name="a fresh clone with a restored cache", change=cloned("clone")),
    Kept(name="a fresh clone in a deeper folder", change=cloned("deeper/and/deeper/work")),
    Kept(name="a copy that is not a repository", change=_copied, is_repository=False),
    Kept(name="a repository that is restored from an archive", change=_restored),
    Kept(name="touch", change=_touched),
    Kept(name="files that are written again with the same content", change=_same_again),
    Kept(
        name="a log that nobody reads", change=both(written("run.txt", "1 cell: 1 passed\n"), written("metrics.csv", "1,2\n"))
    ),
    Kept(name="data that nobody reads", change=written("data/other.bin", "1")),
    Kept(
        name="the tokens and ids of a job in a cluster",
        change=variables(
            AWS_SESSION_TOKEN="a",
            AWS_ACCESS_KEY_ID="b",
            GOOGLE_APPLICATION_CREDENTIALS="<outside>/gha-creds-1.json",
            HF_TOKEN="c",
            POD_NAME="pod-7",
            SLURM_JOB_ID="8",
            KUBERNETES_SERVICE_HOST="10.0.0.1",
            WANDB_RUN_ID="x",
        ),
    ),
    Kept(name="a new note", change=written("note.md", "two\n")),
    Kept(name="an edited README", change=written("README.md", "two\n")),
    Kept(name="an edited change log", change=written("CHANGES.rst", "two\n")),
    Kept(name="a new page of docs", change=written("docs/more/page.html", "two\n")),
    Kept(name="an edited picture of docs", change=written("docs/picture.svg", "<svg></svg>\n")),
    Kept(name="notes of which one is gone", change=removed("README.md")),
    Kept(name="the mode of a note", change=mode("README.md", 0o755)),
    Kept(name="another home folder", change=both(folder("<outside>/home"), variable("HOME", "<outside>/home"))),
    Kept(name="another user", change=variables(USER="somebody", LOGNAME="somebody")),
    Kept(
        name="another terminal",
        change=variables(TERM="dumb", COLUMNS="60", LINES="20", COLORTERM="24bit"),
    ),
    Kept(
        name="another shell",
        change=variables(SHLVL="7", OLDPWD="<outside>", SHELL="/bin/zsh", PS1="$", _="/x"),
    ),
    Kept(
        name="another session",
        change=variables(
            SSH_CONNECTION="1.2.3.4 1 5.6.7.8 22",
            SSH_AUTH_SOCK="<outside>/agent",
            XDG_SESSION_ID="77",
            EDITOR="vi",
            DISPLAY=":9",
            TMUX="/tmp/tmux,1,0",
        ),
    ),
    Kept(
        name="another run of a workflow on GitHub",
        environment={"CI": "true", "GITHUB_RUN_ID": "1", "GITHUB_SHA": "a" * 40, "GITHUB_RUN_NUMBER": "1"},
        change=variables(
            GITHUB_RUN_ID="2", GITHUB_SHA="b" * 40, GITHUB_RUN_NUMBER="2", GITHUB_REF="refs/heads/topic", RUNNER_NAME="runner 7"
        ),
    ),
    Kept(
        name="another job of GitLab",
        environment={"CI": "true", "CI_JOB_ID": "1", "CI_PIPELINE_ID": "1", "CI_COMMIT_SHA": "a" * 40},
        change=variables(CI_JOB_ID="2", CI_PIPELINE_ID="2", CI_COMMIT_SHA="b" * 40, CI_JOB_TOKEN="t"),
    ),
    Kept(
        name="another folder for temporary files",
        change=both(folder("<outside>/temporary"), variable("TMPDIR", "<outside>/temporary")),
    ),
    Kept(
        name="one more folder on the path",
        change=both(
            folder("<outside>/bin"),
            lambda place: place.environment.update(PATH=f"{os.environ['PATH']}{os.pathsep}{place.outside}/bin"),
        ),
    ),
    Kept(name="an unrelated Python file that is edited", change=written("unrelated.py", "VALUE = 2\n")),
    Kept(name="a tool that is edited", change=written("tools/clean.py", "print('cleaner')\n")),
    Kept(name="an unrelated Python file that is new", change=written("another.py", "VALUE = 2\n")),
    Kept(
        name="an unrelated package that is new",
        change=both(written("another/__init__.py", ""), written("another/more.py", "x = 1\n")),
    ),
    Kept(name="an unrelated Python file that is gone", change=removed("unrelated.py")),
    Kept(name="a test that is new", change=written("tests/test_more.py", "def test_more():\n    assert True\n")),
    Kept(name="a test that is edited", change=written("tests/test_unrelated.py", "def test_nothing():\n    assert True\n")),
    Kept(
        name="another recipe file that is new, and patches torch",
        change=written(
            "more/onnx_recipes.py", "import torch\ntorch.onnx.is_in_onnx_export = lambda: False\n" + exported("return 2")
        ),
    ),
    Kept(
        name="another recipe file that is edited",
        files={"more/onnx_recipes.py": exported("return 2")},
        change=written("more/onnx_recipes.py", "import torch\ntorch.Tensor.__mul__ = None\n" + exported("return 2")),
    ),
    Kept(name="bytecode that is gone", change=_without_bytecode),
    Kept(name="another umask", change=_masked),
    Kept(name="ignored files of a build", change=both(written("build/lib/a.o", "a"), written("build/more.txt", "b"))),
    Kept(
        name="an ignored virtual environment",
        change=both(written(".venv/pyvenv.cfg", "home = /\n"), written(".venv/lib/a.py", "b")),
    ),
    Kept(
        name="the caches of other tools",
        change=both(
            written(".mypy_cache/a.json", "{}"),
            written(".ruff_cache/a", "a"),
            written(".pytest_cache/v", "a"),
            written(".idea/workspace.xml", "<x/>"),
            written(".vscode/settings.json", "{}"),
            written(".coverage", "a"),
        ),
    ),
    Kept(
        name="a virtual environment that nothing ignores",
        change=both(written("env/pyvenv.cfg", "home = /\n"), written("env/lib/a.py", "b")),
    ),
    Kept(name="a commit", change=git("commit", "--quiet", "--allow-empty", "--message=two")),
    Kept(
        name="a commit of a note",
        change=both(written("note.md", "two\n"), git("add", "note.md"), git("commit", "--quiet", "--message=two")),
    ),
    Kept(name="another branch", change=git("checkout", "--quiet", "-b", "topic")),
    Kept(name="git gc", change=git("gc", "--quiet")),
    Kept(name="a note that is staged", change=both(written("note.md", "two\n"), git("add", "note.md"))),
    Kept(
        name="a file elsewhere that is read, and touched",
        files={"onnx_recipes.py": exported(f"return int(open({HIDDEN}).read())")},
        before=written("<outside>/factor.bin", "2"),
        change=lambda place: place.path("<outside>/factor.bin").touch(),
    ),
    Kept(
        name="a file beside one elsewhere that is read",
        files={"onnx_recipes.py": exported(f"return int(open({OUTSIDE}).read())")},
        before=written("<outside>/factor.bin", "2"),
        change=written("<outside>/other.bin", "3"),
    ),
    Kept(
        name="temporary files that the model makes",
        files={
            "onnx_recipes.py": exported("""
                import os
                import tempfile
                with tempfile.TemporaryDirectory() as folder:
                    with open(os.path.join(folder, "factor"), "w") as file:
                        file.write("2")
                    os.listdir(folder)
                    with open(os.path.join(folder, "factor")) as file:
                        return int(file.read())
            """)
        },
        change=nothing,
    ),
    Kept(name="a folder that becomes a repository", change=git("init", "--quiet"), is_repository=False),
]
"""Changes after which every verdict of :data:`PROJECT` must come from the cache."""
