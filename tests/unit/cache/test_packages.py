"""What is installed: versions, what was edited, and what belongs to no distribution."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from onnx_ci.cache import packages
from onnx_ci.cache.folder import Contents, Folder
from onnx_ci.cache.packages import Packages, recorded_files
from onnx_ci.cache.places import Places


class Site:
    """A folder like site-packages, in which something is installed."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str = "") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def install(self, name: str, version: str = "1.0", **files: str) -> None:
        """Install a distribution as pip does: the record is written last."""
        lines = []
        for module, text in (files or {name: "X = 1\n"}).items():
            path = self.write(f"{name}/{module}.py", text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
            lines.append(f"{name}/{module}.py,sha256={digest},{path.stat().st_size}")
        info = f"{name}-{version}.dist-info"
        self.write(f"{info}/METADATA", "")
        self.write(f"{info}/RECORD", "\n".join([*lines, f"../../../bin/{name},sha256=abc,12", f"{info}/RECORD,,"]) + "\n")

    def found(self, *before: Path) -> dict[str, str]:
        places = Places(str(self.root), {"HOME": "/home/somebody"})
        path = tuple(map(str, (*before, self.folder)))
        return Packages(places=places, path=path, contents=Contents(Folder(self.root / "cache"))).digests()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The only folder with installed packages."""
    site = Site(tmp_path / "venv" / "site-packages", tmp_path / "project")
    site.root.mkdir()
    inside = f"{site.folder}{os.sep}"
    monkeypatch.setattr(packages, "is_installed", lambda file: file.startswith(inside) or "onnx_ci" in file)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "venv" / name))
    monkeypatch.setattr("site.getsitepackages", list)
    monkeypatch.setattr("site.getusersitepackages", lambda: str(tmp_path / "none"))
    return site


def test_a_distribution_counts_by_version_and_by_its_files(site):
    site.install("net", "1.0")
    first = site.found()
    assert list(first) == ["net"]
    assert first["net"].startswith("1.0 ")
    shutil.rmtree(site.folder / "net-1.0.dist-info")
    site.install("net", "1.1")
    assert site.found()["net"].startswith("1.1 ")
    shutil.rmtree(site.folder / "net-1.1.dist-info")
    site.install("net", "1.0", net="X = 2\n")  # reinstalled under the same version
    assert site.found()["net"] != first["net"]


def test_where_it_is_installed_does_not_count(site, tmp_path):
    site.install("net")
    other = Site(tmp_path / "other" / "place", site.root)
    other.install("net")
    assert site.found()["net"] == other.found()["net"]


@pytest.mark.parametrize("how", ["edited", "same size", "old times", "gone"])
def test_a_file_that_was_edited_in_place_is_seen(site, how):
    site.install("net", model="X = 1\n", other="")
    before = site.found()
    path = site.folder / "net" / "model.py"
    if how == "gone":
        path.unlink()
    else:
        path.write_text("X = 1 + 1\n" if how == "edited" else "X = 2\n")
    if how == "old times":
        os.utime(path, (1, 1))
    changed = site.found()
    (name,) = changed.keys() - before.keys()
    assert name.endswith("net/model.py")


def test_metadata_that_were_edited_in_place_are_seen(site):
    site.install("far")
    metadata = site.write("far-1.0.dist-info/METADATA", "Summary: a")
    digest = base64.urlsafe_b64encode(hashlib.sha256(metadata.read_bytes()).digest()).rstrip(b"=").decode()
    site.write("far-1.0.dist-info/RECORD", f"far-1.0.dist-info/METADATA,sha256={digest},{metadata.stat().st_size}\n")
    before = site.found()
    metadata.write_text("Summary: b")
    assert before.keys() < site.found().keys()


def test_a_restored_copy_is_no_edit_and_keeps_none_secret(site):
    site.install("net", model="X = 1\n")
    before = site.found()
    for path in sorted(site.folder.rglob("*.py"), reverse=True):  # all times are new, and later than the record's
        path.write_bytes(path.read_bytes())
    assert site.found() == before
    path.write_text("X = 2\n")
    os.utime(path, (2**31, 2**31))
    record = site.folder / "net-1.0.dist-info" / "RECORD"
    record.write_bytes(record.read_bytes())  # the record was restored last
    assert site.found() != before


def test_a_pth_file_counts_by_content(site):
    site.install("net")
    before = site.found()
    site.write("a.pth", "1")
    new = site.found()
    (label,) = new.keys() - before.keys()
    assert label.endswith("a.pth")
    site.write("a.pth", "2")
    assert site.found()[label] != new[label]


def test_what_no_record_names_counts_where_it_is_used(site):
    site.install("net")
    before = site.found()
    for name in ("loose.py", "net/downloaded.bin", "native.so", "sitecustomize.py"):
        site.write(name, "1")
    assert site.found() == before
    recorded = recorded_files([str(site.folder)])
    assert str(site.folder / "net/net.py") in recorded
    assert (
        not {str(site.folder / name) for name in ("loose.py", "net/downloaded.bin", "native.so", "sitecustomize.py")} & recorded
    )


def test_bytecode_does_not_count(site):
    site.install("net")
    before = site.found()
    site.write("net/__pycache__/net.cpython-311.pyc", "1")
    site.write("__pycache__/x.cpython-311.pyc", "1")
    assert site.found() == before


def test_the_finder_of_an_editable_distribution_is_the_same_in_another_clone(site, tmp_path):
    path = site.write("__editable___net_finder.py", f"MAPPING = {{'net': '{site.root}/src/net'}}\n")
    before = site.found()
    other = Site(site.folder, tmp_path / "clone")
    other.root.mkdir()
    path.write_text(f"MAPPING = {{'net': '{other.root}/src/net'}}\n")
    assert other.found() == before


def test_data_count_and_headers_do_not(site):
    record = "net/a.json,sha256=abc,1\nnet/a.h,sha256=abc,1\nnet/a.pyi,sha256=abc,1\n"
    site.write("net-1.0.dist-info/RECORD", record)
    for name in ("net/a.json", "net/a.h", "net/a.pyi"):
        site.write(name, "1")
    before = site.found()
    for name in ("net/a.h", "net/a.pyi"):
        site.write(name, "2")
    assert site.found() == before
    site.write("net/a.json", "2")
    assert site.found() != before


def test_what_pip_installs_into_a_folder_counts(site, tmp_path):
    target = Site(tmp_path / "target", site.root)
    target.install("net", "3.0")
    assert target.found()["net"].startswith("3.0 ")
    (target.folder / "net" / "net.py").write_text("X = 2\n")
    assert any(name.endswith("net/net.py") for name in target.found())


def test_another_version_before_what_is_installed_counts_and_comes_first(site, tmp_path):
    site.install("net", "3.0")
    overlay = Site(tmp_path / "overlay", site.root)
    overlay.install("net", "2.0")
    alone, before = site.found(), site.found(overlay.folder)
    assert (alone["net"].split()[0], before["net"].split()[0]) == ("3.0", "2.0")
    overlay.install("net", "2.0", net="X = 2\n")
    assert site.found(overlay.folder)["net"] != before["net"]
    site.install("net", "3.0", net="X = 3\n")
    assert site.found()["net"] != alone["net"]


@pytest.mark.parametrize("record", ["", "\0\n,,\n", "net/a.py,sha256=???,x\n", "net/a.py,sha256=abc,12\n", "a" * 100_000])
def test_a_damaged_record_raises_nothing(site, record):
    site.write("net-1.0.dist-info/RECORD", record)
    site.write("odd.dist-info/RECORD", record)
    site.write("net-1.0.dist-info/direct_url.json", record)
    assert "net" in site.found()


def test_the_name_of_what_is_absent_stands_for_no_other_file(monkeypatch, tmp_path):
    for name, folder in (("prefix", "environment"), ("base_prefix", "python")):
        (tmp_path / folder).mkdir()
        monkeypatch.setattr(sys, name, str(tmp_path / folder))
    (tmp_path / "environment" / "pyvenv.cfg").touch()
    places, absent = Places(str(tmp_path / "project"), {"HOME": "/home/somebody"}), str(tmp_path / "python" / "pyvenv.cfg")
    assert places.path(places.name_of_absent(absent)) == absent
    assert places.name_of_absent(str(tmp_path / "python" / "x.py")) == "<python>/x.py"
