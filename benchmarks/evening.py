"""Runs everything that the project claims, one step after another, and says what ran, how long it took, and what did not.

    tox run -e evening -- [--hours=4] [--shard=1/3] [--only=GLOB,...] [--full] [--list]

The results of a commit are kept in ``build/evening``. So if no file has changed, a run that was interrupted, or that had no
time left, goes on where it ended; steps that failed run again. The corpus runs by thirds, another one at each commit. With
``--full``, mutations, false alarms and first cells are measured in full, an hour longer. The library runs at three opsets, in
the slow tests; ``.github/workflows/tables.yml`` checks the whole table of it. The exit code is 1 if a step failed, and 3 if
none failed but some did not run.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "evening"
_LAST_LINES = 12
"""How much of the output of a step is kept; its log has everything."""
_LONGEST = 3.0
"""A step that takes this many times what it should is stopped."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command that proves something."""

    name: str
    minutes: float
    """About how long it takes on two cores."""
    command: tuple[str, ...]


def _tox(environment: str, *words: str) -> tuple[str, ...]:
    return ("tox", "run", "-e", environment, *(["--", *words] if words else []))


def _slow(*words: str) -> tuple[str, ...]:
    return _tox("tests-slow", "--durations=30", *words)


def _benchmark(name: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, f"benchmarks/{name}.py", *words)


def steps(*, full: bool) -> list[Step]:
    """All steps, those first that fail most often; benchmarks in their short forms, or in full."""
    short = [
        Step(name="mutations", minutes=11, command=_benchmark("mutation", "--faults", "6")),
        Step(name="false alarms", minutes=12, command=_benchmark("false_alarms", "--opsets", "9,17")),
        Step(name="cost of a first cell", minutes=3, command=_benchmark("corpus_cost", "--repeat", "1")),
    ]
    whole = [
        Step(name="mutations, in full", minutes=35, command=_benchmark("mutation", "--faults", "20")),
        Step(name="false alarms, in full", minutes=30, command=_benchmark("false_alarms")),
        Step(name="cost of a first cell, in full", minutes=8, command=_benchmark("corpus_cost")),
    ]
    third = int(_git("rev-list", "--count", "HEAD")) % 3 + 1
    return [
        Step(name="lint, types and docs", minutes=3, command=_tox("lint,types,docs")),
        Step(name="tests", minutes=23, command=_tox("tests")),
        # The cells of tests/faults/lines are those of the step "lines of mistakes in Python", which fails where their tests do.
        Step(name="slow tests: faults", minutes=1, command=_slow("tests/faults", "--ignore=tests/faults/lines")),
        Step(name="slow tests: units and engine", minutes=24, command=_slow("tests/unit", "tests/engine")),
        Step(name="slow tests: cache", minutes=8, command=_slow("tests/e2e/cache")),
        Step(name="slow tests: chaos", minutes=13, command=_slow("tests/e2e/chaos")),
        Step(
            name="slow tests: commands and workflows",
            minutes=27,
            command=_slow("tests/e2e", "--ignore=tests/e2e/cache", "--ignore=tests/e2e/chaos"),
        ),
        Step(name="main job on Python 3.12", minutes=4, command=_tox("recipes-py312")),
        Step(name="main job on Python 3.13", minutes=4, command=_tox("recipes-py313")),
        Step(name="main job, lowest versions", minutes=5, command=_tox("lowest")),
        Step(name="faults: what notices them", minutes=6, command=_benchmark("catches", "--check", "README.md")),
        Step(name="lines of mistakes in Python", minutes=8, command=_benchmark("localisation_lines")),
        *(whole if full else short),
        Step(name="remedies", minutes=7, command=_benchmark("fixes", "--every", "16")),
        Step(
            name="cost of large examples",
            minutes=4,
            command=_benchmark("corpus_cost", "--file", "large_examples.py", "--repeat", "1"),
        ),
        Step(name="cost beside a plain script", minutes=5, command=_benchmark("gate", "--repeat", "1")),
        Step(name=f"corpus, third {third}", minutes=40, command=_tox("corpus-part", f"--shard={third}/3")),
    ]


def commit() -> str:
    """The commit that is checked out, with a mark if files have changed since."""
    return _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a step ended."""

    code: int
    minutes: float
    ended: str
    """The date and the time, in UTC."""
    last_lines: list[str]


def run(step: Step, log: Path) -> Outcome:
    """Run a step. Its output goes to ``log``; Ctrl-C ends it with its children."""
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            step.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=60 * _LONGEST * step.minutes)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            if isinstance(error, KeyboardInterrupt):
                raise
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return Outcome(
        code=code,
        minutes=round((time.monotonic() - began) / 60, 1),
        ended=datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="minutes"),
        last_lines=[line for line in lines if line.strip()][-_LAST_LINES:],
    )


def report(chosen: list[Step], outcomes: dict[str, Outcome], at: str) -> Iterator[str]:
    """The report as Markdown."""
    yield from (f"# What was proven at {at}", "", "| step | result | minutes | ended |", "| --- | --- | ---: | --- |")
    for step in chosen:
        outcome = outcomes.get(step.name)
        if outcome is None:
            yield f"| {step.name} | did not run | about {step.minutes:g} | |"
        else:
            result = "passed" if outcome.code == 0 else f"**failed ({outcome.code})**"
            yield f"| {step.name} | {result} | {outcome.minutes:g} | {outcome.ended} |"
    for step in chosen:
        if step.name in outcomes:
            yield from ("", f"## {step.name}", "", f"`{' '.join(step.command)}`", "", "```text")
            yield from (*outcomes[step.name].last_lines, "```")


def main() -> None:
    """Run what is left of the steps, and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=4.0, help="begin no step that would end later than this")
    parser.add_argument("--shard", default="1/1", help="only every Mth step from the Nth on: 2/3")
    parser.add_argument("--only", default="*", help="only the steps whose names match one of these globs")
    parser.add_argument("--full", action="store_true", help="mutations, false alarms and first cells in full, an hour longer")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args()
    number, shards = map(int, options.shard.split("/"))
    globs = options.only.split(",")
    shard = steps(full=options.full)[number - 1 :: shards]
    chosen = [step for step in shard if any(fnmatch.fnmatch(step.name, glob) for glob in globs)]
    if not chosen:
        sys.exit(f"no step matches --only={options.only} --shard={options.shard}")
    # A shell makes its background jobs ignore Ctrl-C, and children inherit that; the tests of interrupted runs need it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    at, began = commit(), time.monotonic()
    folder = FOLDER / at
    folder.mkdir(parents=True, exist_ok=True)
    kept = {
        file.stem: Outcome(**json.loads(file.read_text(encoding="utf-8")))
        for file in sorted(folder.glob("*.json"))
        if not at.endswith("-dirty")  # what has changed since is not known
    }
    for step in chosen if not options.list else []:
        left = 60 * options.hours - (time.monotonic() - began) / 60
        if (step.name in kept and kept[step.name].code == 0) or step.minutes > left:
            continue
        print(f"{step.name}: about {step.minutes:g} minutes", flush=True)
        kept[step.name] = run(step, folder / f"{step.name}.log")
        (folder / f"{step.name}.json").write_text(json.dumps(asdict(kept[step.name]), indent=1), encoding="utf-8")
    text = "\n".join(report(chosen, kept, at))
    (folder / "report.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    outcomes = [kept[step.name].code if step.name in kept else None for step in chosen]
    sys.exit(1 if any(outcomes) else 3 if None in outcomes else 0)


if __name__ == "__main__":
    main()
