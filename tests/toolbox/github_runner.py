"""GitHub's runner, as far as the action needs it: expressions, environment files, commands in the log, steps in order."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from toolbox import warm_python

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
COMMANDS = {"add-mask", "add-path", "debug", "echo", "endgroup", "error", "group", "notice", "save-state", "set-env", "set-output", "stop-commands", "warning"}  # fmt: skip
BASH = shutil.which("bash")
_TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_][\w.-]*)|(?P<operator>\|\||&&|==|!=|!|\(|\)))")
_WORDS = {"||": " or ", "&&": " and ", "!": " not "}
_STATUS = re.compile(r"\b(always|cancelled|failure|success)\(\)")
MAIN = "refs/heads/main"
"""The default branch."""


def evaluate(expression, contexts):
    """An expression of GitHub's language, without ``${{ }}``. A name that is not there is empty, as on GitHub."""
    python, place = "", 0
    while place < len(expression.rstrip()):
        match = _TOKEN.match(expression, place)
        assert match, f"{expression!r} at {place}"
        place = match.end()
        if match["text"]:
            python += repr(match["text"][1:-1].replace("''", "'"))
        elif match["name"]:
            python += f"lookup({match['name']!r})" if expression[place : place + 1] != "(" else f"call({match['name']!r})"
            place += 2 * (expression[place : place + 1] == "(")
        else:
            python += _WORDS.get(match["operator"], match["operator"])

    def lookup(name):
        value = contexts
        for part in name.split("."):
            value = value.get(part, "") if isinstance(value, dict) else ""
        return value

    return eval(python, {"lookup": lookup, "call": lambda name: contexts[f"{name}()"]})


def expand(text, contexts):
    """``text`` with every ``${{ … }}`` in it evaluated."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(evaluate(match[1], contexts)), str(text), flags=re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A command that the runner found in the log."""

    name: str
    properties: dict[str, str]
    message: str


def commands_in(log):
    """What the runner takes for commands, and whether it still listens to them at the end."""
    found, token = [], None
    for line in re.split(r"\r\n|\r|\n", log):
        match = re.match(r"\s*::([\w-]+)(?: (.*?))?::(.*)", line) or re.search(r"##\[([\w-]+)(?: (.*?))?\](.*)", line)
        if match is None or (match[1] not in COMMANDS and match[1] != token):
            continue
        if token is not None:
            token = None if match[1] == token else token
        elif match[1] == "stop-commands":
            token = match[3]
        else:
            pairs = (pair.split("=", 1) for pair in (match[2] or "").split(",") if pair)
            found.append(Command(match[1], {key: _decoded(value) for key, value in pairs}, _decoded(match[3])))
    return found, token is None


def _decoded(text):
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def outputs_in(text):
    """An environment file as the runner reads it: name<<delimiter, lines, delimiter."""
    outputs, lines = {}, iter(text.split("\n")[:-1])
    for line in lines:
        name, delimiter = line.split("<<", 1)
        outputs[name] = "\n".join(iter(lambda end=delimiter: next(lines), delimiter))
    return outputs


@dataclass
class Ran:
    """What GitHub would know after a use of the action."""

    code: int = 0
    """The exit code of the first step that failed."""
    log: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    uses: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """The other actions that were used, with what."""
    uploads: dict[str, set[str]] = field(default_factory=dict)
    """The files of each upload, by its name."""
    restored: list[str] = field(default_factory=list)
    """The key of each cache that was restored; empty if there was none."""

    @property
    def saves(self):
        """The keys of the caches that it saves."""
        return [given["key"] for action, given in self.uses if action == "actions/cache/save"]

    @property
    def commands(self):
        found, listens = commands_in(self.log)
        assert listens
        return found

    @property
    def annotations(self):
        return [each for each in self.commands if each.name in ("error", "warning", "notice")]


class Caches:
    """GitHub's caches of a repository: none ever changes, and each belongs to the ref of the run that has saved it."""

    def __init__(self, folder):
        self._folder = folder
        self.saved = []
        """The ref and the key of each, the oldest first."""

    def save(self, ref, key, path):
        # GitHub only warns that a key is taken or a folder missing; what the action saves must never need that warning.
        assert (ref, key) not in self.saved
        assert "," not in key and len(key) <= 512
        shutil.copytree(path, self._folder / str(len(self.saved)))
        self.saved.append((ref, key))

    def restore(self, refs, keys, path):
        """Restore the newest cache of the first of ``refs`` that has one for the first of ``keys`` that one begins with."""
        for ref in refs:
            for key in keys:
                for number, (its_ref, its_key) in reversed([*enumerate(self.saved)]):
                    if its_ref == ref and its_key.startswith(key):
                        shutil.copytree(self._folder / str(number), path, dirs_exist_ok=True)
                        return its_key
        return ""


class Job:
    """A job that uses the action, perhaps several times; at first one that a push to the default branch has started.

    Args:
        folder: for everything of the job; the checkout is in ``folder / "checkout"``.
        caches: those of the repository, if other jobs have them, too.
    """

    def __init__(self, folder, caches=None):
        self.folder = folder
        self.caches = Caches(folder / "caches") if caches is None else caches
        self.checkout = folder / "checkout"
        self.temporary = folder / "temp"
        self.environment = {
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_WORKSPACE": str(self.checkout),
            "GITHUB_JOB": "export",
            "GITHUB_RUN_ID": "17",
            "GITHUB_RUN_ATTEMPT": "1",
            "RUNNER_OS": "Linux",
            "RUNNER_ARCH": "X64",
            "RUNNER_TEMP": str(self.temporary),
        }
        self.job_index = "0"
        self.is_cancelled = False
        for each in (self.checkout, self.temporary):
            each.mkdir(parents=True, exist_ok=True)
        self.starts_by("push", MAIN)

    def starts_by(self, event, ref):
        """Let ``event`` have started the job, with ``ref`` as its ``github.ref``."""
        self.environment |= {"GITHUB_EVENT_NAME": event, "GITHUB_REF": ref}
        # The payload of a schedule need not have more than its times.
        self.github = {"event": {} if event == "schedule" else {"repository": {"default_branch": MAIN.rpartition("/")[2]}}}

    def use(self, *, python=None, install="false", meanwhile=None, **inputs):
        """Take the action's steps in order, as the runner would.

        Args:
            python: the interpreter, if it matters which one.
            meanwhile: called with the process of the gate while it runs.
            inputs: those of the action, their names with ``_`` for ``-``.
        """
        given = {name.replace("_", "-"): str(value) for name, value in inputs.items()}
        assert given.keys() <= ACTION["inputs"].keys()
        defaults = {name: each["default"] for name, each in ACTION["inputs"].items()}
        steps = {}
        ran = Ran()
        contexts = {
            "inputs": {
                **defaults,
                "python": warm_python.executable() if python is None else python,
                "install": install,
                **given,
            },
            "github": self.github,
            "strategy": {"job-index": self.job_index},
            "steps": steps,
            "always()": True,
        }
        for number, step in enumerate(ACTION["runs"]["steps"]):
            condition = step.get("if", "")
            contexts["cancelled()"] = self.is_cancelled
            is_over = (ran.code or self.is_cancelled) and not _STATUS.search(condition)
            if is_over or (condition and not evaluate(condition, contexts)):
                steps[step.get("id", number)] = {"outcome": "skipped", "outputs": {}}
                continue
            if "uses" in step:
                self._use_other(ran, step["uses"], {name: expand(text, contexts) for name, text in step["with"].items()})
                continue
            environment = {name: expand(text, contexts) for name, text in step["env"].items()}
            code, outputs = self._run(ran, step["run"], environment, meanwhile if step.get("id") == "gate" else None)
            ran.code = ran.code or code
            steps[step.get("id", number)] = {"outcome": "failure" if code else "success", "outputs": outputs}
        ran.outputs = {name: expand(each["value"], contexts) for name, each in ACTION["outputs"].items()}
        return ran

    def _run(self, ran, script, environment, meanwhile):
        files = {name: self.folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV")}
        for file in files.values():
            file.write_text("")
        # An outer CI's variables, and a developer's, are not the job's.
        own = {name: text for name, text in os.environ.items() if not name.startswith(("GITHUB_", "INPUT_", "ONNX_CI_"))}
        process = subprocess.Popen(
            [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.checkout,
            env={**own, **self.environment, **{name: str(file) for name, file in files.items()}, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if meanwhile is not None:
            meanwhile(process)
        ran.log += process.communicate(timeout=600)[0].decode()
        ran.summary += files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
        return process.returncode, outputs_in(files["GITHUB_OUTPUT"].read_text(encoding="utf-8"))

    def _use_other(self, ran, action, given):
        ran.uses.append((action.partition("@")[0], given))
        ref = self.environment["GITHUB_REF"]
        if action.startswith("actions/cache/restore@"):
            keys = [given["key"], *given["restore-keys"].split("\n")]
            ran.restored.append(self.caches.restore([ref, MAIN], keys, given["path"]))
        if action.startswith("actions/cache/save@") and Path(given["path"]).exists():
            self.caches.save(ref, given["key"], given["path"])
        if action.startswith("actions/upload-artifact@"):
            folder = Path(given["path"])
            ran.uploads[given["name"]] = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}


def installed_tool(name):
    """A program that is installed beside the running Python, or else on the PATH."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name) or name


PUSH = {"event": {"repository": {"default_branch": "main"}}, "repository": "me/nets"}


class Call:
    """A call of the reusable workflow: its jobs in order, each on a machine of its own. The caller needs no packages.

    Args:
        folder: for everything of the call.
        checkout: the caller's repository.
        inputs: what the caller gives ``with``.
        github: the context of the event.
        caches: those of the repository, if other calls have them, too.
    """

    def __init__(self, folder, checkout, inputs, github=None, caches=None):
        self._folder, self._checkout = folder, checkout
        self._caches = Caches(folder / "caches") if caches is None else caches
        workflow = yaml.safe_load((ROOT / ".github/workflows/onnx-export.yml").read_text(encoding="utf-8"))
        declared = workflow[True]["workflow_call"]["inputs"]  # YAML reads the key `on` as true
        assert inputs.keys() <= declared.keys()
        self._contexts = {
            "github": github or PUSH,
            "inputs": {**{name: each["default"] for name, each in declared.items()}, **inputs, "requirements": ""},
            "needs": {},
            "always()": True,
        }
        self._uploads = {}
        self.jobs = {}
        """What became of the last use of the action in each job, by the job's name."""
        for name, job in workflow["jobs"].items():
            needed = [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
            results = {self._contexts["needs"][each]["result"] for each in needed}
            if results - {"success"} and "always()" not in job.get("if", ""):
                self._contexts["needs"][name] = {"result": "skipped", "outputs": {}}
            else:
                self._contexts["needs"][name] = self._run(job, folder)
        self.outputs = {
            name: expand(each["value"], {"jobs": self._contexts["needs"]})
            for name, each in workflow[True]["workflow_call"]["outputs"].items()
        }

    def _run(self, job, folder):
        result, outputs = "success", {}
        for index, matrix in enumerate(
            json.loads(expand(job["strategy"]["matrix"].replace("fromJSON", ""), self._contexts))["include"]
            if "strategy" in job
            else [{}]
        ):
            contexts = {**self._contexts, "matrix": matrix, "steps": {}}
            title = expand(job["name"], contexts)
            machine = Job(folder / title, self._caches)
            machine.job_index = str(index)
            if "pull_request" in contexts["github"]["event"]:
                machine.starts_by("pull_request", "refs/pull/7/merge")
            self.jobs[title] = self._take(job["steps"], contexts, machine)
            result = "failure" if self.jobs[title].code else result
            outputs = {name: expand(value, contexts) for name, value in job.get("outputs", {}).items()}
        return {"result": result, "outputs": outputs}

    def _take(self, steps, contexts, job):
        shutil.copytree(self._checkout, job.checkout, dirs_exist_ok=True)
        contexts["runner"] = {"temp": str(job.temporary)}
        ran = Ran()
        for step in steps:
            action = step.get("uses", "").partition("@")[0]
            given = {name.replace("-", "_"): expand(text, contexts) for name, text in step.get("with", {}).items()}
            if ran.code or (step.get("if") and not evaluate(step["if"], contexts)):
                continue
            if action == "actions/download-artifact":
                for name in fnmatch.filter(self._uploads, given["pattern"]):
                    shutil.copytree(self._uploads[name], Path(given["path"], name))
            elif action == "./.onnx-ci-action":
                ran = job.use(**given)
                contexts["steps"][step.get("id")] = {"outputs": ran.outputs}
                for other, upload in ran.uses:
                    if other == "actions/upload-artifact":
                        assert upload["name"] not in self._uploads
                        self._uploads[upload["name"]] = upload["path"]
            elif "run" in step:
                done = subprocess.run(
                    [BASH, "-e", "-c", step["run"]], cwd=job.checkout, capture_output=True, text=True, check=False
                )
                ran.code, ran.log = done.returncode, ran.log + done.stdout
        return ran
