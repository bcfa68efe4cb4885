"""What is changed in a tiny project after its cell has passed, and whether the cell must run again.

The model of a project multiplies by two. While it is exported, it multiplies by what its function ``factor`` returns: the cell
passes while that is 2, and fails once it is 3. A row of :data:`AGAIN` says where ``factor`` looks and what is changed there, so
the verdict that was right before is wrong afterwards, and a cache that shows it is stale. A row of
:data:`KEPT` changes what the cell cannot notice, or what onnx-ci promises to ignore.

A mechanism has a row for each way in which it sees a change, not one for each way to write the same program.

``test_changes.py`` runs the rows. In paths and in the text of files, ``<root>`` is the project's folder and ``<outside>`` another.
"""

from __future__ import annotations

import base64
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
from typing import Any

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
        return text.replace("<outside>", str(self.outside)).replace("<root>", str(self.root))


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


ANOTHER = exported("return 2").replace("def model():", "def another():")

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


def removed(name: str) -> Step:
    def remove(place: Place) -> None:
        path = place.path(name)
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return remove


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


def _program(path: Path, number: int) -> None:
    import torch

    class Multiplied(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * number

    with path.open("wb") as file:  # it wants another name
        torch.export.save(torch.export.export(Multiplied(), (torch.ones(1),)), file)


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
TORCH_MAPPED = "return int(torch.load({0}, mmap=True)['factor'])\n"
SCRIPTED = "return int(torch.jit.load({0})(torch.ones(1)))\n"
PROGRAM = "return int(torch.export.load({0}).module()(torch.ones(1)))\n"
FROM_FILE = "return int(torch.from_file({0}, size=1))\n"
MAPPED = "import numpy\nreturn int(numpy.memmap({0}, dtype='float32', mode='r')[0])\n"
DATABASE = """
import contextlib
import sqlite3
with contextlib.closing(sqlite3.connect({0})) as connection:
    return connection.execute("select factor from factors").fetchone()[0]
"""
HDF5 = "import h5py\nwith h5py.File({0}) as file:\n    return int(file['factor'][()])\n"
ONNX = "import onnxruntime\nreturn int(onnxruntime.InferenceSession({0}, providers=['CPUExecutionProvider']).run(None, {{}})[0][0])\n"
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


_TWO, _THREE = "FACTOR = 2\n", "FACTOR = 3\n"


def _edited(name: str, recipe: str, file: str, two: str = _TWO, three: str = _THREE, **more: Any) -> Again:
    """A row in which a file that says two says three."""
    return Again(name=name, recipe=recipe, before=written(file, two), change=written(file, three), **more)


def _appears(name: str, recipe: str, file: str, text: str = _THREE, **more: Any) -> Again:
    """A row in which a file is new."""
    return Again(name=name, recipe=recipe, change=written(file, text), **more)


INSIDE, OUTSIDE = "'data/factor.bin'", "'<outside>/factor.bin'"
"""Paths as a recipe file writes them: of the project, and elsewhere."""


def _text(path: Path, number: int) -> None:
    path.write_text(str(number))


def _read_by_library(
    name: str, kind: Callable[[Path, int], None], code: str, *, recipe: Callable[[str], str] = built, **more: Any
) -> list[Again]:
    """Rows in which a library opens a file of the project, and one elsewhere."""
    rows = []
    for place, expression in (("of the project", INSIDE), ("elsewhere", OUTSIDE)):
        file = expression.strip("'")
        row = {
            "name": f"{name} reads a file {place}",
            "recipe": recipe(code.format(expression)),
            "before": holding(kind, file, 2),
            "change": holding(kind, file, 3),
            "is_always_kept": place == "of the project",
        }
        rows.append(Again(**{**row, **more}))
    return rows


def _read_elsewhere(name: str, kind: Callable[[Path, int], None], code: str, **more: Any) -> Again:
    """A row in which a library opens a file elsewhere. One of the project counts however it is opened."""
    return _read_by_library(name, kind, code, **more)[1]


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
        name="a variable of CI that programs read",
        recipe=built("import os\nreturn 3 if os.environ.get('CI') else 2"),
        environment={"CI": ""},
        change=variable("CI", "true"),
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
        name="the locale, in forward",
        recipe=each_time("import locale\nreturn 3 if locale.setlocale(locale.LC_ALL, '') == 'C' else 2"),
        environment={"LC_ALL": "C.UTF-8"},
        change=variable("LC_ALL", "C"),
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
    _appears(
        "a file that appears, whose existence the export asks for",
        exported("import os\nreturn 3 if os.path.exists('data/fast.flag') else 2"),
        "data/fast.flag",
        "",
        files={"data/a.txt": "a"},
    ),
    _appears(
        "a file outside of a repository that appears",
        exported("import os\nreturn 3 if os.path.exists('fast.flag') else 2"),
        "fast.flag",
        "",
        is_repository=False,
    ),
    _appears(
        "a folder that the export lists",
        exported("import os\nreturn 1 + len(os.listdir('data'))"),
        "data/b.txt",
        "b",
        files={"data/a.txt": "a"},
    ),
]

_READ_ONCE = [
    _edited(
        "a configuration that becomes an attribute of torch",
        exported("import settings\nreturn torch.my_factor"),
        "settings.json",
        "2",
        "3",
        files={"settings.py": "import json, torch\ntorch.my_factor = json.load(open('settings.json'))"},
    ),
    _edited(
        "a variable from a file of variables that git ignores",
        imported("import os, settings\nreturn int(os.environ['FACTOR'])"),
        ".env",
        "FACTOR=2\n",
        "FACTOR=3\n",
        files={
            "settings.py": "import os\nos.environ.update([line.strip().split('=') for line in open('.env')])\n",
            ".gitignore": ".env\n",
        },
    ),
    _edited(
        "notes that are read, though notes do not count", built("return int(open('NOTES.md').read())"), "NOTES.md", "2", "3"
    ),
]

_LIBRARIES = [
    *_read_by_library("SQLite", _database, DATABASE, recipe=exported),
    *_read_by_library("C", _text, C_READER, recipe=each_time, is_always_kept=False),
    *_read_by_library("safetensors", _safetensors, SAFETENSORS, needs="safetensors"),
    _read_elsewhere("HDF5", _hdf5, HDF5, needs="h5py"),
    _read_elsewhere("ONNX Runtime", _onnx, ONNX, limit=UNSEEN),
    _read_elsewhere("a loaded library", _library, LIBRARY, needs="cc"),
    _read_elsewhere("torch.load, mapped,", _torch, TORCH_MAPPED),
    _read_elsewhere("torch.jit.load", _scripted, SCRIPTED),
    _read_elsewhere("torch.export.load", _program, PROGRAM),
    _read_elsewhere("torch.from_file", _floats, FROM_FILE, recipe=exported, limit=UNSEEN),
    _read_elsewhere("numpy.memmap", _floats, MAPPED, recipe=exported),
    Again(
        name="safetensors maps a file elsewhere, when imported",
        recipe="from safetensors.torch import load_file\n"
        + exported("return int(WEIGHTS['factor'])").replace("def factor", f"WEIGHTS = load_file({OUTSIDE})\n\n\ndef factor"),
        before=holding(_safetensors, "<outside>/factor.bin", 2),
        change=holding(_safetensors, "<outside>/factor.bin", 3),
        needs="safetensors",
    ),
    _edited(
        "a file elsewhere that Python opens", exported(f"return int(open({OUTSIDE}).read())"), "<outside>/factor.bin", "2", "3"
    ),
    _edited(
        "a file elsewhere that a process of the model reads",
        exported(f"""
            import os
            ours, theirs = os.pipe()
            child = os.fork()
            if not child:
                os.write(theirs, open({OUTSIDE}, "rb").read())
                os._exit(0)
            number = int(os.read(ours, 1))
            os.waitpid(child, 0)
            os.close(ours), os.close(theirs)
            return number
        """),
        "<outside>/factor.bin",
        "2",
        "3",
        is_always_kept=False,
    ),
]

_PROGRAMS = [
    _edited(
        "a script that the export starts",
        exported("import subprocess, sys\nreturn int(subprocess.run([sys.executable, 'tool.py'], capture_output=True).stdout)"),
        "tool.py",
        "print(2)\n",
        "print(3)\n",
        is_always_kept=False,
    ),
    _appears(
        "a file elsewhere that a shell asks for",
        exported("import os\nreturn 3 if os.system('test -e \"$PLACE\"/flag') == 0 else 2"),
        "<outside>/flag",
        "",
        environment={"PLACE": "<outside>"},
        is_always_kept=False,
    ),
]

_INSTALLED = [
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
    _appears(
        "a package without a RECORD",
        built(FAR),
        "<outside>/target/far/__init__.py",
        environment=TARGET,
        is_fresh=True,
        before=installed("<outside>/target", {"far/__init__.py": "FACTOR = 2\n"}, has_record=False),
    ),
    _appears(
        "a new package that a package looks for",
        built(FAR),
        "<outside>/target/farther.py",
        environment=TARGET,
        is_fresh=True,
        before=installed(
            "<outside>/target",
            {"far/__init__.py": "try:\n    from farther import FACTOR\nexcept ImportError:\n    FACTOR = 2\n"},
        ),
    ),
    _appears(
        "a package of the environment that is edited in place",
        exported(FAR),
        f"{IN_VENV}/far/__init__.py",
        before=both(environment_of_its_own, installed(IN_VENV, {"far/__init__.py": "FACTOR = 2\n"})),
    ),
    _appears(
        "a .pth file that sets a variable",
        each_time("import sys\nreturn getattr(sys, 'factor', 2)"),
        f"{IN_VENV}/factor.pth",
        "import sys; sys.factor = 3\n",
        before=environment_of_its_own,
    ),
    _appears(
        "a .pth file that leads elsewhere",
        built(FAR),
        f"{IN_VENV}/far.pth",
        "<outside>/three\n",
        before=both(
            environment_of_its_own,
            written("<outside>/two/far.py", "FACTOR = 2\n"),
            written("<outside>/three/far.py", "FACTOR = 3\n"),
            written(f"{IN_VENV}/far.pth", "<outside>/two\n"),
        ),
    ),
    _appears(
        "sitecustomize",
        exported("import sys\nreturn getattr(sys, 'factor', 2)"),
        f"{IN_VENV}/sitecustomize.py",
        "import sys\nsys.factor = 3\n",
        before=both(environment_of_its_own, written(f"{IN_VENV}/sitecustomize.py", "import sys\nsys.factor = 2\n")),
    ),
    _edited(
        "a module elsewhere",
        exported(FAR),
        "<outside>/more/far.py",
        environment={"PYTHONPATH": "<outside>/more"},
        is_fresh=True,
    ),
    _appears(
        "a module elsewhere that is found before another",
        built(FAR),
        "<outside>/first/far.py",
        environment={"PYTHONPATH": f"<outside>/first{os.pathsep}<outside>/second"},
        is_fresh=True,
        before=both(folder("<outside>/first"), written("<outside>/second/far.py", "FACTOR = 2\n")),
    ),
    Again(
        name="a module in an archive elsewhere",
        recipe=built("import sys\nsys.path.insert(0, '<outside>/far.zip')\n" + FAR),
        before=holding(_archive, "<outside>/far.zip", 2),
        change=holding(_archive, "<outside>/far.zip", 3),
    ),
]

_IMPORTS = [
    _appears("the recipe file itself", exported("return 2"), "onnx_recipes.py", exported("return 3")),
    _edited("a module that the export imports", exported("from helper import FACTOR\nreturn FACTOR"), "helper.py"),
    _appears(
        "a module that appears where an import may fail",
        imported("try:\n    from fast import FACTOR\nexcept ImportError:\n    FACTOR = 2\nreturn FACTOR"),
        "fast.py",
    ),
    Again(
        name="a module that disappears where an import may fail",
        recipe=imported("try:\n    from fast import FACTOR\nexcept ImportError:\n    FACTOR = 3\nreturn FACTOR"),
        files={"fast.py": _TWO},
        change=removed("fast.py"),
    ),
    _appears(
        "a package that hides a module",
        built("import helper\nreturn helper.FACTOR"),
        "helper/__init__.py",
        files={"helper.py": _TWO},
    ),
    _appears(
        "a module that hides one of Python's", built("import tabnanny\nreturn getattr(tabnanny, 'FACTOR', 2)"), "tabnanny.py"
    ),
    _appears(
        "a submodule that appears where an import from its package may fail",
        exported("try:\n    from package import fast\nexcept ImportError:\n    return 2\nreturn fast.FACTOR"),
        "package/fast.py",
        files={"package/__init__.py": ""},
    ),
    _appears(
        "an __init__.py that is new",
        exported("import space.factor\nreturn getattr(space, 'FACTOR', 2)"),
        "space/__init__.py",
        files={"space/factor.py": ""},
    ),
    _appears(
        "plugins that are found by listing a package",
        imported("""
            import importlib, pkgutil, plugins
            modules = [importlib.import_module(f"plugins.{each.name}") for each in pkgutil.iter_modules(plugins.__path__)]
            return sum(module.FACTOR for module in modules)
        """),
        "plugins/b.py",
        "FACTOR = 1\n",
        files={"plugins/__init__.py": "", "plugins/a.py": _TWO},
    ),
    Again(
        name="a module without a source",
        recipe=built("import far\nreturn far.FACTOR"),
        before=holding(_bytecode, "far.pyc", 2),
        change=holding(_bytecode, "far.pyc", 3),
    ),
    Again(
        name="a conftest.py that is new",
        recipe=exported("return 2"),
        change=both(written("conftest.py", "import torch\ntorch.my_factor = 3\n"), git("add", "conftest.py")),
        has_other_verdict=False,
    ),
    _edited("a conftest.py that is edited", exported("return 2"), "conftest.py", "FACTOR = 2\n", has_other_verdict=False),
    _edited(
        "a module in a folder that pytest adds to the path",
        "import helper\n" + exported("return helper.FACTOR"),
        "lib/helper.py",
        files={"pytest.ini": "[pytest]\npythonpath = lib\n"},
        front_ends=("pytest",),
    ),
]

_IGNORED_AND_LINKED = [
    _edited(
        "an ignored file that is read",
        exported("return int(open('build/factor.txt').read())"),
        "build/factor.txt",
        "2",
        "3",
        files={".gitignore": "build/\n"},
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
    _edited(
        "a file that a nested .gitignore hides",
        built("return int(open('data/local.txt').read())"),
        "data/local.txt",
        "2",
        "3",
        files={"data/.gitignore": "*\n"},
        is_repository=False,
    ),
    _appears(
        "a file elsewhere to which a link of the project leads",
        built("return int(open('factor.txt').read())"),
        "<outside>/a.txt",
        "3",
        before=both(written("<outside>/a.txt", "2"), linked("factor.txt", "<outside>/a.txt")),
    ),
    _appears(
        "a module elsewhere to which a link of the project leads",
        exported("import helper\nreturn helper.FACTOR"),
        "<outside>/a.py",
        before=both(written("<outside>/a.py", _TWO), linked("helper.py", "<outside>/a.py")),
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
        name="a file that is edited and keeps its size and time",
        recipe=exported("return int(open('factor.txt').read())"),
        files={"factor.txt": "2"},
        change=unnoticed("factor.txt", "3", in_place=True),
    ),
    Again(
        name="a file elsewhere that is replaced by one of the same size and time",
        recipe=built(f"return int(open({OUTSIDE}).read())"),
        before=written("<outside>/factor.bin", "2"),
        change=unnoticed("<outside>/factor.bin", "3", in_place=False),
    ),
    _appears(
        "a file of a repository within the project",
        exported("return int(open('vendor/factor.txt').read())"),
        "vendor/factor.txt",
        "3",
        before=both(
            written("vendor/factor.txt", "2"),
            git("init", "--quiet", "vendor"),
            git("-C", "vendor", "add", "."),
            git("-C", "vendor", "commit", "--quiet", "--message=vendor"),
        ),
    ),
    _edited(
        "a module of a folder that is not a repository",
        built("import helper\nreturn helper.FACTOR"),
        "helper.py",
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
        recipe=built(f"import pathlib\nreturn int((pathlib.Path({OUTSIDE}) / 'latest').resolve().joinpath('f').read_text())"),
        before=both(
            written("<outside>/factor.bin/v1/f", "2"),
            written("<outside>/factor.bin/v2/f", "3"),
            linked("<outside>/factor.bin/latest", "v1"),
        ),
        change=linked("<outside>/factor.bin/latest", "v2"),
    ),
    _appears(
        "a file that the recipe makes if it is missing, and then reads",
        built(f"""
            import pathlib
            file = pathlib.Path({OUTSIDE}) / "made.txt"
            file.parent.mkdir(exist_ok=True)
            if not file.exists():
                file.write_text("2")
            return int(file.read_text())
        """),
        "<outside>/factor.bin/made.txt",
        "3",
        is_always_kept=False,
    ),
    Again(
        name="the id of a run that the code names",
        recipe=built("import os\nreturn int(open(f\"runs/{os.environ['RUN_ID']}/factor.txt\").read())"),
        files={".gitignore": "runs/\n", "runs/a/factor.txt": "2", "runs/b/factor.txt": "3"},
        environment={"RUN_ID": "a"},
        change=variable("RUN_ID", "b"),
    ),
    _appears(
        "a module that git ignores and that appears",
        imported("try:\n    from local_settings import FACTOR\nexcept ImportError:\n    return 2\nreturn FACTOR"),
        "local_settings.py",
        files={".gitignore": "local_settings.py\n"},
    ),
    _appears(
        "a compiled module that is built beside its fallback",
        imported("from shop.ops import FACTOR\nreturn FACTOR"),
        f"shop/_fast{sysconfig.get_config_var('EXT_SUFFIX')}",
        "no library",
        files={
            ".gitignore": "*.so\n",
            "shop/__init__.py": "",
            "shop/ops.py": "try:\n    from ._fast import FACTOR\nexcept ImportError:\n    FACTOR = 2\n",
        },
        has_other_verdict=False,
    ),
    _edited(
        "a module in the folder of the baselines",
        imported("from models.net import FACTOR\nreturn FACTOR"),
        "models/net.py",
        files={
            "pyproject.toml": '[tool.onnx-ci]\nopsets = 13\nexporters = "torchscript"\nbaseline-folder = "models"\n',
            "models/__init__.py": "",
        },
    ),
    _appears(
        "data of a folder of Python's environment that no RECORD names",
        built("import pathlib, sys\nreturn int(pathlib.Path(sys.prefix, 'share/factor.txt').read_text())"),
        "<outside>/venv/share/factor.txt",
        "3",
        before=both(environment_of_its_own, written("<outside>/venv/share/factor.txt", "2")),
    ),
    _appears(
        "data that a package has downloaded into its folder",
        built("import far, pathlib\nreturn int(pathlib.Path(far.__file__).with_name('factor.txt').read_text())"),
        f"{IN_VENV}/far/factor.txt",
        "3",
        before=both(
            environment_of_its_own, installed(IN_VENV, {"far/__init__.py": ""}), written(f"{IN_VENV}/far/factor.txt", "2")
        ),
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
    "README.md": "one\n",
    "docs/index.md": "one\n",
    ".gitignore": ".onnx-ci-cache/\n__pycache__/\nbuild/\n",
}
"""A small project, of which the recipe uses three files."""


def _moved(place: Place, to: Path) -> None:
    """Continue elsewhere, with the cache of before. Its files are new ones, as where a cache was restored."""
    shutil.copytree(place.root / ".onnx-ci-cache", to / ".onnx-ci-cache", copy_function=shutil.copyfile)
    place.root = to


def cloned(place: Place) -> None:
    target = place.outside / "deeper" / "clone"
    git("clone", "--quiet", ".", str(target))(place)
    _moved(place, target)


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


def _without_bytecode(place: Place) -> None:
    for path in [*place.root.rglob("__pycache__")]:
        shutil.rmtree(path)


def _masked(place: Place) -> None:
    place.mask = 0o077


KEPT = [
    Kept(name="nothing", change=nothing),
    Kept(name="a fresh clone with a restored cache", change=cloned),
    Kept(name="a copy that is not a repository", change=_copied, is_repository=False),
    Kept(name="a repository that is restored from an archive", change=_restored),
    Kept(name="touch", change=_touched),
    Kept(
        name="a log that nobody reads", change=both(written("run.txt", "1 cell: 1 passed\n"), written("metrics.csv", "1,2\n"))
    ),
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
    Kept(name="an edited README", change=written("README.md", "two\n")),
    Kept(name="a new page of docs", change=written("docs/more/page.html", "two\n")),
    Kept(name="notes of which one is gone", change=removed("README.md")),
    Kept(name="another home folder", change=both(folder("<outside>/home"), variable("HOME", "<outside>/home"))),
    Kept(
        name="another user in another session",
        change=variables(
            USER="somebody",
            LOGNAME="somebody",
            TERM="dumb",
            COLUMNS="60",
            SHLVL="7",
            OLDPWD="<outside>",
            SHELL="/bin/zsh",
            _="/x",
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
    Kept(name="an unrelated Python file that is new", change=written("another.py", "VALUE = 2\n")),
    Kept(name="an unrelated Python file that is gone", change=removed("unrelated.py")),
    Kept(
        name="another recipe file that is new, and patches torch",
        change=written("more/onnx_recipes.py", "import torch\ntorch.onnx.is_in_onnx_export = lambda: False\n" + ANOTHER),
    ),
    Kept(
        name="another recipe file that is edited",
        files={"more/onnx_recipes.py": ANOTHER},
        change=written("more/onnx_recipes.py", "import torch\ntorch.Tensor.__mul__ = None\n" + ANOTHER),
    ),
    Kept(name="bytecode that is gone", change=_without_bytecode),
    Kept(name="another umask", change=_masked),
    Kept(name="ignored files of a build", change=both(written("build/lib/a.o", "a"), written("build/more.txt", "b"))),
    Kept(name="a commit", change=git("commit", "--quiet", "--allow-empty", "--message=two")),
    Kept(name="another branch", change=git("checkout", "--quiet", "-b", "topic")),
    Kept(name="a note that is staged", change=both(written("note.md", "two\n"), git("add", "note.md"))),
    Kept(
        name="a file elsewhere that is read, and touched",
        files={"onnx_recipes.py": exported(f"return int(open({OUTSIDE}).read())")},
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
