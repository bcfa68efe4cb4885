"""Which architectures of the corpus have the same key in every process, so that the cache knows them again.

Two Pythons with different hash seeds each build every model, as two runs would, and compare what its key consists of: what
differs depends on chance, and what has no key says why. Linux only.
Usage: ``python benchmarks/cache_keys.py [--recipes 'timm-*,encoder-bert']``.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

from corpus_cost import CORPUS, plans, settings_of

Key = dict[str, str] | str
"""The digests of what a key consists of, or why there is no key."""


def keys(patterns: list[str]) -> Iterator[tuple[str, Key]]:
    """The key of each architecture, which is computed in a process of its own."""
    for name, planned in plans(settings_of(17)).items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            yield name, _in_a_fork(planned)


def _in_a_fork(planned: Any) -> Key:
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, json.dumps(_key(planned)).encode())
        except BaseException as error:
            os.write(writing, json.dumps("".join(traceback.format_exception_only(error)).strip()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    key: Key = json.loads(text or '"its process died"')
    return key


def _key(planned: Any) -> Key:
    from onnx_ci.cache.fingerprint import fingerprint
    from onnx_ci.stages.prepare.live_model import build_on

    return dict(fingerprint(planned, build_on(planned.recipe, "cpu", planned.weights)).parts)


def main() -> None:
    """Print what has no key that holds, and how many have one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="*", help="globs, separated by commas")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # one of the two processes
    options = parser.parse_args()
    if options.one:
        os.chdir(CORPUS)
        warnings.simplefilter("ignore")  # of the libraries
        for name, key in keys(options.recipes.split(",")):
            print(json.dumps([name, key]), flush=True)
        return
    command = [sys.executable, __file__, "--one", f"--recipes={options.recipes}"]
    with tempfile.TemporaryFile("w+") as first, tempfile.TemporaryFile("w+") as second:  # a pipe would fill
        running = [
            subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=output)
            for seed, output in (("1", first), ("2", second))
        ]
        for each in running:
            each.wait()
        for output in (first, second):
            output.seek(0)
        one, other = (dict(map(json.loads, output)) for output in (first, second))
    if not one or one.keys() != other.keys() or any(each.returncode for each in running):
        sys.exit("a process failed; see above")
    same = 0
    for name, key in one.items():
        if isinstance(key, str):
            print(f"{name} has no key: {key}")
        elif differing := [part for part in key if key[part] != other[name][part]]:
            print(f"{name} has another key in each process: {', '.join(differing)}")
        else:
            same += 1
    print(f"{same} of {len(one)} have the same key in both processes")


if __name__ == "__main__":
    main()
