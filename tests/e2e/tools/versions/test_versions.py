"""``onnx-ci versions CELL`` finds the version of a package with which a failing cell passes."""

from __future__ import annotations

import re
import shutil

import pytest
from e2e.tools.versions.stand_in import BESIDE_OLD_LENS, RAISES, WRONG

CELL = "scale::opset13-cpu-mirror"


def tried(done):
    """What was tried, in order, with what came of it in one word; and the last line."""
    shown = re.findall(r"^  (\S.*?): (\w+)", done.stdout, re.MULTILINE)
    return shown, done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_the_first_newer_version_that_is_right_is_found(cli, index):
    index.mirror("1.0", **WRONG)
    index.mirror("1.1", **RAISES)
    index.mirror("1.2", "lens==2.0", **BESIDE_OLD_LENS)  # wrong beside what it requires
    index.mirror("1.3", "lens==1.0", **BESIDE_OLD_LENS)
    index.mirror("1.4rc1")
    index.lens("1.0", turns=False)
    index.lens("2.0", turns=True)
    index.install("mirror==1.0", "lens==2.0")
    done = cli("versions", CELL)
    assert (done.returncode, done.stderr) == (1, "")
    assert tried(done) == (
        [
            ("mirror 1.3 (with lens 1.0, which it needs)", "passed"),
            ("mirror 1.1", "failed"),
            ("mirror 1.2", "failed"),
        ],
        "passes with mirror 1.3 and later (fails with 1.2)",
    )
    assert index.overlays == ["mirror-1.1", "mirror-1.2", "mirror-1.3"]


@pytest.mark.slow
def test_an_older_version_is_tried_where_no_newer_one_is_right(cli, index):
    index.mirror("1.0")
    index.mirror("1.1", **WRONG)
    index.mirror("1.2", **WRONG)
    index.mirror("1.3", **RAISES)
    index.install("mirror==1.2")
    done = cli("versions", CELL)
    assert tried(done) == (
        [("mirror 1.3", "failed"), ("mirror 1.1", "failed"), ("mirror 1.0", "passed")],
        "passes with mirror 1.0 and earlier (fails with 1.1)",
    )


@pytest.mark.slow
def test_where_no_version_is_right_that_is_said(cli, index):
    index.mirror("1.0", **WRONG)
    index.mirror("1.1", **WRONG)
    index.install("mirror==1.0")
    done = cli("versions", CELL)
    assert tried(done)[0] == [("mirror 1.1", "failed")]
    assert "no other version of" in done.stdout
    assert "mirror" in done.stdout.splitlines()[-2]
    assert "--with-torch" in done.stdout.splitlines()[-1]


def test_nothing_is_tried_for_a_cell_that_passes(cli, index):
    index.mirror("1.0")
    index.install("mirror==1.0")
    done = cli("versions", CELL)
    assert (done.returncode, tried(done)) == (0, ([], "no other version is tried: the cell does not fail"))


@pytest.mark.slow
def test_without_a_network_it_is_said_in_one_line(cli, index):
    index.mirror("1.0", **WRONG)
    index.install("mirror==1.0")
    shutil.rmtree(index.wheels)
    done = cli("versions", CELL, PIP_NO_INDEX="0", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1")
    assert done.returncode == 2
    assert "numeric-drift" in done.stdout  # what is known without it is shown
    (line,) = done.stderr.splitlines()
    assert (
        line == "onnx-ci: the package index cannot be reached: [Errno 111] Connection refused; PIP_INDEX_URL sets another one"
    )


@pytest.mark.slow
def test_a_newer_version_that_another_package_holds_back_is_named(cli, index):
    index.mirror("1.0", **WRONG)
    index.mirror("1.1", "lens==9")
    index.install("mirror==1.0")
    done = cli("versions", CELL)
    assert done.returncode == 1
    assert re.search(r"^  mirror 1\.1 was not tried: .*lens", done.stdout, re.MULTILINE), done.stdout
