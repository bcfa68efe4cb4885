"""What a container may use, as Linux says it in files, and what onnx-ci makes of that."""

from __future__ import annotations

import os

import pytest

from onnx_ci.processes import limits
from onnx_ci.processes.limits import ControlGroups, usable_cores

NO_LIMIT = {"memory.max": "max", "cpu.max": "max 100000"}
NO_LIMIT_V1 = {"memory.limit_in_bytes": "9223372036854771712", "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}


@pytest.fixture
def groups(tmp_path):
    """Control groups with the given membership, and files by folder."""

    def groups(membership, folders):
        (tmp_path / "cgroup").write_text(membership)
        for folder, files in folders.items():
            (tmp_path / "fs" / folder).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (tmp_path / "fs" / folder / name).write_text(f"{text}\n")
        return ControlGroups(membership=tmp_path / "cgroup", hierarchies=tmp_path / "fs")

    return groups


def test_version_2_limits_a_container_at_the_root_of_its_own_namespace(groups):
    known = groups("0::/\n", {".": {"memory.max": "8589934592", "cpu.max": "250000 100000"}})
    assert (known.memory(), known.cores()) == (2**33, 2.5)


def test_the_smallest_limit_of_all_groups_around_a_process_counts(groups):
    folders = {
        "pods": {"cpu.max": "400000 100000", "memory.max": "17179869184"},
        "pods/one": {"cpu.max": "50000 100000", "memory.max": "max"},
        "pods/one/main": NO_LIMIT,
    }
    known = groups("0::/pods/one/main\n", folders)
    assert (known.memory(), known.cores()) == (2**34, 0.5)


@pytest.mark.parametrize("name", ["cpu,cpuacct", "cpu"])
def test_version_1_has_a_folder_for_each_controller_or_one_for_several(groups, name):
    folders = {
        f"{name}/docker/a": {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "50000"},
        "memory/docker/a": {"memory.limit_in_bytes": "4294967296"},
    }
    known = groups("7:cpu,cpuacct:/docker/a\n5:memory:/docker/a\n2:cpuset:/docker/a\n0::/system\n", folders)
    assert (known.memory(), known.cores()) == (2**32, 3.0)


def test_version_1_shows_a_container_its_own_group_as_the_root(groups):
    files = {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}
    assert groups("4:cpu,cpuacct:/kubepods/pod1/c\n", {"cpu,cpuacct": files}).cores() == 2.0


def test_version_2_may_be_beside_version_1(groups):
    folders = {"unified/a": {"cpu.max": "100000 100000"}, "memory/a": {"memory.limit_in_bytes": "1048576"}}
    known = groups("5:memory:/a\n0::/a\n", folders)
    assert (known.memory(), known.cores()) == (2**20, 1.0)


def test_what_cannot_be_understood_limits_nothing(groups, tmp_path):
    odd = {"cpu.max": "100000 0", "memory.max": "-1"}
    known = groups("\n0::/a\x0cb\nno colon\n1:name=systemd:/x\n", {".": odd, "a\x0cb": {"cpu.max": "many"}})
    assert (known.memory(), known.cores()) == (None, None)
    (tmp_path / "cgroup").write_bytes(b"0::/\xff\xfe\n")
    assert (known.memory(), known.cores()) == (None, None)


def test_no_limit_is_none(groups):
    assert groups("0::/a\n", {"a": NO_LIMIT}).cores() is None
    assert groups("0::/a\n", {"a": NO_LIMIT}).memory() is None
    assert groups("4:cpu:/a\n", {"cpu/a": NO_LIMIT_V1}).cores() is None


def test_a_system_without_control_groups_has_no_limit(tmp_path):
    known = ControlGroups(membership=tmp_path / "none", hierarchies=tmp_path)
    assert (known.memory(), known.cores()) == (None, None)


@pytest.mark.parametrize(("quota", "cores"), [(1, 1), (150_000, 2), (200_000, 2), (9_900_000, 4), (-1, 4)])
def test_part_of_a_core_is_one_and_no_more_count_than_this_process_may_run_on(groups, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5}, raising=False)
    files = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": 100_000}
    assert usable_cores(groups("4:cpu:/a\n", {"cpu/a": files})) == cores


@pytest.mark.parametrize(
    ("memory", "cores", "share", "jobs"),
    [
        (2**34, 4, 1, 4),  # a runner of GitHub
        (2**33, 64, 1, 8),  # a container that sees all cores of its machine
        (2**33, 32, 2, 4),
        (2**29, 2, 1, 1),
        (2**40, 1, 8, 1),
    ],
)
def test_as_many_cells_run_at_once_as_there_are_cores_and_memory_for(monkeypatch, memory, cores, share, jobs):
    monkeypatch.setattr(limits, "machine_memory", lambda: memory)
    assert limits.default_jobs(cores, share) == jobs
