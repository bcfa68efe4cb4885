"""What pip says has to change for another version, the folder with exactly that, and why it cannot be had."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from toolbox.distributions import wheel

from onnx_ci.errors import ConfigurationError
from onnx_ci.tools.versions.overlay import KEPT_FOR, Request, environment_with, overlay_of, resolved
from onnx_ci.tools.versions.pip import ImpossibleError, available


@pytest.fixture
def here(index, monkeypatch):
    """The stand-in index for this process, which has what is installed from it."""
    for name, value in index.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(index.site)
    for version in ("1.0", "1.1", "2.0"):
        index.other("glass", version)
    return index


def wheels(*requirements, **more):
    return resolved(Request(requirements=requirements, **more))


def versions(*requirements, **more):
    return {name: wheel.version for name, wheel in wheels(*requirements, **more).items()}


def test_a_process_imports_the_other_version_which_is_installed_once(here):
    here.install("glass==1.0")
    overlay = overlay_of(wheels("glass==2.0"))
    assert overlay is not None and overlay.name.startswith("glass-2.0-")
    code = "import glass, importlib.metadata as m; print(glass.VERSION, m.version('glass'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment_with(overlay), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2.0", "2.0"]
    again = wheels("glass==2.0")
    shutil.rmtree(here.wheels)
    assert overlay_of(again) == overlay
    assert here.overlays == ["glass-2.0"]


def test_what_is_installed_needs_no_folder(here):
    here.install("glass==1.0")
    assert overlay_of(wheels("glass==1.0")) is None


def test_what_another_version_requires_and_what_would_break_changes_too(here):
    here.other("frame", "1.0", "glass==1.0")
    here.other("frame", "2.0", "glass>=1.1", "hook>=2")
    here.other("hook", "1.0")
    here.other("hook", "2.0")
    here.other("nail", "1.0", "glass<9")  # still has what it requires
    here.other("crooked", "1.0", "glass==3.0")  # has never had it
    here.install("glass==1.0", "frame==1.0", "hook==1.0", "nail==1.0", "crooked==1.0")
    assert versions("glass==1.1") == {"glass": "1.1", "frame": "2.0", "hook": "2.0"}
    assert versions("hook==2.0") == {"hook": "2.0"}


def test_the_newest_that_the_project_and_the_constraints_allow(here, tmp_path):
    here.other("glass", "3.0rc1")
    here.other("house", "1.0", "glass<2")
    here.install("glass==1.0")
    assert versions("glass", upgrade=True) == {"glass": "2.0"}
    assert versions("glass", upgrade=True, pre=True) == {"glass": "3.0rc1"}
    here.install("house==1.0")
    (info,) = here.site.glob("house-1.0.dist-info")
    (info / "direct_url.json").write_text(json.dumps({"url": "file:///house", "dir_info": {"editable": True}}))
    assert versions("glass", upgrade=True) == {"glass": "1.1"}
    (tmp_path / "constraints.txt").write_text("glass<1.1\n")
    assert versions("glass", upgrade=True, constraints=(tmp_path / "constraints.txt",)) == {}
    here.other("house", "2.0")  # another project's
    assert versions("glass", "house", upgrade=True) == {"glass": "1.1"}
    with pytest.raises(ImpossibleError, match=r"^house needs glass<2, so glass==2.0 cannot be tried beside it$"):
        wheels("glass==2.0")


def test_versions_come_in_order_and_pre_releases_on_request(here):
    here.other("glass", "1.10")
    here.other("glass", "2.1rc1")
    assert list(map(str, available("glass"))) == ["1.0", "1.1", "1.10", "2.0"]
    assert str(available("glass", pre=True)[-1]) == "2.1rc1"


def test_a_version_that_does_not_exist_is_refused_with_the_nearest(here):
    with pytest.raises(
        ImpossibleError, match=r"no wheel of glass==1\.5 for Python .*; the nearest that it has: 1\.1 and 2\.0$"
    ):
        wheels("glass==1.5")
    with pytest.raises(ImpossibleError, match=r"^the package index has no wheel of glas for Python [^;]*$"):
        wheels("glas==1.5")


def test_a_wheel_for_another_python_does_not_exist_here(here):
    wheel(here.wheels, "glass", "4.0", {})
    (here.wheels / "glass-4.0-py3-none-any.whl").rename(here.wheels / "glass-4.0-cp27-cp27m-win32.whl")
    with pytest.raises(ImpossibleError, match=r"no wheel of glass==4\.0 for Python .*; the nearest that it has: 2\.0$"):
        wheels("glass==4.0")


def test_versions_that_do_not_fit_together_are_named(here):
    here.other("frame", "1.0", "glass<1.1")
    with pytest.raises(ImpossibleError) as raised:
        wheels("frame==1.0", "glass==2.0")
    said = str(raised.value)
    assert said.startswith("pip finds no versions for frame==1.0 and glass==2.0 that fit together: ")
    assert "frame 1.0 depends on glass<1.1" in said
    assert "\n" not in said


def test_a_full_disk_is_said_and_leaves_nothing_behind(here):
    resource = pytest.importorskip("resource")
    wheel(here.wheels, "mirrors", "1.0", {"mirrors.py": "X = 1\n" + "#" * 300_000})
    resolution = wheels("mirrors==1.0")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ConfigurationError, match=r"^pip cannot install mirrors==1.0: File too large; free some space"):
            overlay_of(resolution)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert here.overlays == []
    assert overlay_of(resolution).name.startswith("mirrors-1.0-")


def test_a_folder_that_cannot_be_written_is_named(here, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match=r"file/onnx-ci/overlays cannot be written: .*XDG_CACHE_HOME"):
        overlay_of(wheels("glass==1.0"))


def test_without_pip_the_remedy_is_named(here, monkeypatch, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    monkeypatch.setattr(sys, "executable", str(next((tmp_path / "venv").glob("[bS]*/python*"))))
    with pytest.raises(ConfigurationError, match=r"^pip is not installed here.*: python -m ensurepip$"):
        wheels("glass==1.0")


def test_what_nobody_uses_any_more_is_removed(here):
    first = overlay_of(wheels("glass==1.0"))
    used = overlay_of(wheels("glass==1.1"))
    dead, living = (first.with_name(f".glass-2.0.0123456{digit}.tmp") for digit in "78")
    for folder, age in ((first, KEPT_FOR + 60), (used, KEPT_FOR - 3600), (dead, 25 * 3600), (living, 3600)):
        folder.mkdir(exist_ok=True)
        os.utime(folder, (time.time() - age,) * 2)
    newest = overlay_of(wheels("glass==2.0"))
    assert set(first.parent.iterdir()) == {used, living, newest}
    overlay_of(wheels("glass==1.1"))
    assert used.stat().st_mtime > time.time() - 3600
