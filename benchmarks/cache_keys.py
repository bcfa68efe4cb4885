"""Which architectures of the corpus have the same key in every process, so that the cache knows them again.

Two Python processes with different hash seeds build every model, as two runs would, and their keys are compared part by part.
A part that differs depends on chance. A model without a key is listed with the reason. Linux only.
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
import warnings
from collections.abc import Iterator
from typing import Any

from corpus_cost import CORPUS, in_a_fork, plans, settings_of


def keys(patterns: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The key of each architecture by its name, each computed in a process of its own."""
    for name, planned in plans(settings_of(17)).items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            yield name, in_a_fork(lambda planned=planned: key_of(planned))


def key_of(planned: Any) -> dict[str, Any]:
    """The digest of each part of a key by the part's name, or the reason why there is no key."""
    from onnx_ci.cache.fingerprint import NotCacheableError, fingerprint
    from onnx_ci.stages.prepare.live_model import build_on

    try:
        return {"parts": dict(fingerprint(planned, build_on(planned.recipe, "cpu", planned.weights)).parts)}
    except NotCacheableError as error:
        return {"missing": str(error)}


def main() -> None:
    """Print the architectures whose key is missing or differs, and how many have the same one."""
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
        if missing := key.get("missing") or other[name].get("missing"):
            print(f"{name} has no key: {missing}")
        elif differing := [part for part, digest in key["parts"].items() if digest != other[name]["parts"][part]]:
            print(f"{name} has a different key in each process: {', '.join(differing)}")
        else:
            same += 1
    print(f"{same} of {len(one)} have the same key in both processes")


if __name__ == "__main__":
    main()
