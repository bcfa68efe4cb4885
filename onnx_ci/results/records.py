"""The records of a run: cells, findings, drifts, facts and results. Each has the same structure in memory and in JSON."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from onnx_ci.opsets import default_exporter
from onnx_ci.results.json_data import field_of, from_json, shortened, to_json


class Status(enum.StrEnum):
    """The verdict on a cell."""

    PASSED = "passed"
    """Every rule was checked, and none was broken."""
    FAILED = "failed"
    """A rule was broken: the export is wrong."""
    ERROR = "error"
    """The cell could not be judged: the recipe cannot be used, or onnx-ci itself failed."""
    SKIPPED = "skipped"
    """The cell was not run, for the reason given."""
    XFAILED = "xfailed"
    """The cell failed as its recipe expects."""
    XPASSED = "xpassed"
    """The cell does not fail as its recipe expects. Expectations are strict, so this fails the run."""

    @property
    def is_bad(self) -> bool:
        """Whether this status fails the run."""
        return self in (Status.FAILED, Status.ERROR, Status.XPASSED)


class SkipCause(enum.StrEnum):
    """Why a cell was not run."""

    MISSING_DEVICE = "missing-device"
    """Its device is absent, or no runtime can use it."""
    RECIPE = "recipe"
    """The recipe skipped itself."""


class Severity(enum.StrEnum):
    """What a finding means for its cell."""

    ERROR = "error"
    """It fails the cell."""
    WARNING = "warning"
    """The cell passes and is marked, unless the run is strict."""
    NOTE = "note"
    """It is reported and has no other effect, unless the run is strict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One recipe × exporter × opset × device × post-export pass: the unit that passes or fails."""

    source: str
    """The recipe's file, relative to the project's root, with forward slashes."""
    recipe: str
    exporter: str
    opset: int
    device: str
    graph_pass: str | None = None
    """The post-export pass whose file is judged; ``None`` for the exporter's own file."""
    environment: str | None = None
    """``torch==2.15.0,onnxruntime==1.32.0``: the versions that set its environment apart, in a report that is merged from
    several; otherwise ``None``."""

    @property
    def label(self) -> str:
        """``opset9-cpu``, ``opset9-cpu+onnxslim``; ``opset18-cpu-torchscript`` if that is not the opset's default exporter.

        In a report of several environments, ``opset9-cpu@torch==2.15.0``.
        """
        suffix = "" if self.has_default_exporter else f"-{self.exporter}"
        suffix += "" if self.graph_pass is None else f"+{self.graph_pass}"
        suffix += "" if self.environment is None else f"@{self.environment}"
        return f"opset{self.opset}-{self.device}{suffix}"

    @property
    def has_default_exporter(self) -> bool:
        """Whether its exporter is the default one for its opset."""
        return self.exporter == default_exporter(self.opset)

    @property
    def versions(self) -> str:
        """``torch 2.15.0, onnxruntime 1.32.0``: the environment in words; empty if it has no name."""
        return "" if self.environment is None else format_versions(self.environment)

    @property
    def gpu(self) -> str | None:
        """The GPU that the cell needs, with its number: ``cuda:0`` for ``cuda``; ``None`` on the CPU."""
        return None if self.device == "cpu" else f"{self.device}:0" if ":" not in self.device else self.device

    @property
    def id(self) -> str:
        """``recipes/models/alexnet.py::alexnet::opset9-cpu``, which pytest takes as an argument."""
        return f"{self.source}::{self.recipe}::{self.label}"

    @classmethod
    def from_id(cls, id: str) -> Self | None:
        """The cell that ``id`` names, or ``None`` if it is not the id of a cell."""
        match = _CELL_ID.fullmatch(id)
        if match is None:
            return None
        fields: dict[str, Any] = {**match.groupdict(), "opset": int(match["opset"])}
        return cls(**{**fields, "exporter": fields["exporter"] or default_exporter(fields["opset"])})


def format_versions(environment: str) -> str:
    """``torch 2.15.0, onnxruntime 1.32.0`` for :attr:`Cell.environment`."""
    return environment.replace("==", " ").replace(",", ", ")


LONGEST_TIME = 1e9
"""Thirty years in seconds: no measured time is longer."""
_CELL_ID = re.compile(
    r"(?P<source>[^\x00-\x1f]+)::(?P<recipe>[\w.-]+)::opset(?P<opset>\d+)-(?P<device>[a-z]+(?::\d+)?)"
    r"(?:-(?P<exporter>[A-Za-z][A-Za-z0-9_-]*))?(?:\+(?P<graph_pass>[A-Za-z_][\w.-]*))?"
    r"(?:@(?P<environment>[\w.+,=-]+))?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLine:
    """A line of code."""

    file: str
    """Relative to the working directory if it is below it."""
    line: int
    """Counted from 1."""
    text: str
    """Without its indentation; empty if it cannot be read."""
    library: str = ""
    """Of a line that leads to code of an installed package, the innermost line there: ``einops/einops.py:410``."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def quoted(self) -> str:
        """The line with its text, and that of a library: ``net.py:7, `return relu(x)` → lib/relu.py:3``."""
        text = f", `{self.text}`" if self.text else ""
        return f"{self}{text}{f' → {self.library}' if self.library else ''}"


class FrozenKind(enum.StrEnum):
    """What an exporter can freeze at the example: how a line differs between the example and the failing input."""

    CONDITION = "condition"
    """Its condition is true on one of them and false on the other."""
    BRANCH = "branch"
    """It runs on one of them only."""
    LOOP = "loop"
    """It runs a different number of times."""
    TENSORS = "tensors"
    """It gives a different number of tensors, as ``for row in x`` does."""
    NUMBER = "number"
    """It uses different numbers."""
    CONSTANT = "constant"
    """It makes a tensor of other values or another size."""
    WRITE = "write"
    """It writes into a tensor on both, and the file does without it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frozen:
    """What a line of the model does on the failing input, and on the example, from which the file was made."""

    kind: FrozenKind
    here: tuple[float, ...]
    """On the failing input: how often the line runs, how many tensors it gives, or the numbers that it uses. For a condition, 1
    if it is true. Empty for tensors and writes."""
    on_example: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """Where a fault lies: nodes that turn right inputs into a wrong output, or a part of the model that fails by itself."""

    nodes: tuple[str, ...]
    """The nodes, the likeliest first: ``Conv '/conv1/Conv'``. Several if their values cannot be told apart; none if a part of
    the model fails by itself and no node shows the fault."""
    operators: tuple[str, ...]
    """What the model computes there, as torch names it: an operator, ``aten.convolution``, or the functions of the part,
    ``torch.Tensor.cumsum``."""
    module: str
    """The path of the module that computes it; empty for the model itself."""
    source: SourceLine | None
    """The line that computes it; ``None`` if it is not known."""
    recipe: SourceLine | None = None
    """The line of the recipe that builds the model, where no line is known."""
    frozen: Frozen | None = None
    """What the file has of the example, or without a write; ``None`` if that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeStep:
    """A node near a fault, on the failing input: its value in the file, and the model's value there."""

    node: str
    """``Conv '/conv1/Conv'``."""
    is_culprit: bool
    can_run: bool
    """Whether it runs without an error on these inputs."""
    source: SourceLine | None
    """The line that computes the same value."""
    index: tuple[int, ...] | None
    """Where the two values differ most; ``None`` if they cannot be compared."""
    file_value: float | None
    """The element there in the file."""
    model_value: float | None
    """The element there in the model, in float64."""
    error: float | None
    """Their absolute difference."""
    noise: float | None
    """How much the operator's own rounding in float32 changes its value; 1 for integers and booleans."""

    @property
    def drift(self) -> float | None:
        """``error ÷ noise``; ``None`` if they cannot be compared."""
        if self.error is None or self.noise is None:
            return None
        if not self.noise or not math.isfinite(self.error):
            return math.inf if self.error else 0.0
        return self.error / self.noise


WRITTEN_SIZES = "written_sizes"
"""The key of :attr:`Finding.details` for numbers in the line that should be sizes, each with what to write there."""
AXES_OF_ONE = "axes_of_one"
"""The key of :attr:`Finding.details` for the names of dynamic axes along which the example has size 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One rule broken in one cell, with the location, the numbers and the remedy."""

    rule: str
    severity: Severity
    message: str
    remedy: str
    output: str | None = None
    """The output of the graph that it is about."""
    probe: str | None = None
    """The first input that shows it: ``example``, or the name of a probe."""
    also_on: tuple[str, ...] = ()
    """The names of the other inputs that show it."""
    probe_weights: bool = False
    """Whether only the export with probe weights shows it, not the one with the model's own weights."""
    is_expected: bool = False
    """Whether the recipe expects it, in a cell that fails because of others."""
    operator: str | None = None
    """The operator that the exporter or runtime names."""
    opset: int | None = None
    """The opset of the file, if it is not the requested one."""
    drift: float | None = None
    """The drift of ``output`` on ``probe``."""
    introduced_by: str | None = None
    """The first post-export pass whose file shows it; ``export`` if the exporter's own file does."""
    baseline_change: str | None = None
    """The kind of change since the baseline, one of :data:`~onnx_ci.results.rules.BASELINE_CHANGES`."""
    source: SourceLine | None = None
    """The line of the project that an exporter's error or warning is about; ``None`` if it is not known."""
    culprits: tuple[Culprit, ...] = ()
    """Where the wrong values come from, in the order of the file; empty if that is not known."""
    optimizer_passes: tuple[str, ...] = ()
    """The passes of ONNX Runtime's optimizer that make a right file compute wrong values."""
    steps: tuple[NodeStep, ...] = ()
    """The nodes around the culprits, in the order of the file."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Other numbers behind the message, under stable names, for programs."""

    @property
    def lines(self) -> tuple[SourceLine, ...]:
        """The lines of code that it is about, the likeliest first."""
        lines = (self.source, *(culprit.source for culprit in self.culprits))
        return tuple(line for line in lines if line is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Similarity:
    """How similar an output of a lossy pass's file is to the model's. It never decides the verdict."""

    cosine: float | None
    """The cosine of the angle between the two, from -1 to 1; ``None`` for integers and booleans."""
    sqnr: float | None
    """Signal to quantization noise in decibels: 10 · log10(Σ reference² ÷ Σ error²); ``None`` as above."""
    agreement: float | None
    """The share of rows along the last axis whose largest element is the same; of integers and booleans, the share of equal
    elements. Ties are left out; ``None`` if nothing is left."""
    ties: int
    """How many rows have their two largest values within the noise, or how many integers depend on the noise."""

    @property
    def in_words(self) -> str:
        """``cosine 0.99987, SQNR 35.1 dB, same top class in 97 % of rows (3 ties left out)``."""
        words = []
        if self.cosine is not None:
            words.append(f"cosine {self.cosine:.5f}")
        if self.sqnr is not None:
            words.append(f"SQNR {self.sqnr:.1f} dB")
        if self.agreement is not None:
            words.append(f"{'equal in' if self.cosine is None else 'same top class in'} {self.agreement:.0%}")
        if self.ties:
            words.append(f"{self.ties} {'tie' if self.ties == 1 else 'ties'} left out")
        return ", ".join(words)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputDrift:
    """How far one output of the ONNX file deviates from the model, on one input."""

    name: str
    """The output's name in the graph."""
    probe: str
    """The input: ``example``, axes with other sizes such as ``sequence=6``, or the step if outputs are fed back: ``step=3``."""
    dtype: str
    """The output's data type, as torch names it."""
    shape: tuple[int, ...]
    drift: float
    """``error ÷ noise``: how many times larger than PyTorch's own rounding error."""
    limit: float
    """The largest drift that passes. For integers and booleans it is 0: they are compared exactly."""
    error: float
    """The absolute difference from the reference where the drift is largest."""
    noise: float
    """The largest change by PyTorch's own rounding: of the output, or of that channel if channels differ in size. It is 1 for
    integers and booleans."""
    max_abs: float
    """Largest absolute value of the reference."""
    max_rel: float
    """Largest difference relative to the element's own reference value."""
    index: tuple[int, ...] | None
    """Where that is; ``None`` if no element was compared."""
    reference: str
    """What the reference and the noise are. ``float64``: the model in float64. ``proportion``: the model itself, with noise in
    proportion to that on another input. ``perturbation``: the noise of perturbed runs, because the model cannot run in float64,
    or because the file fails on a special input, on which the model may be ill-conditioned. ``runtime rounding``: the noise
    includes what runtimes round more than PyTorch, long sums and sigmoids, because the file fails without it. ``exact``:
    integers and booleans. ``float16`` or ``int8``: the noise of the lower precision that a given file computes in, because it
    passes only with that. ``simulated float16`` or ``simulated int8``: the noise of a lossy pass."""
    runtime: str = "onnxruntime"
    """The runtime that ran the file."""
    probe_weights: bool = False
    """Whether the file has probe weights, which show what the model's own weights hide."""
    similarity: Similarity | None = None
    """After a lossy pass, other measures of the difference; ``None`` otherwise."""
    is_decisive: bool = True
    """Whether a drift above the limit fails the cell. It does not for indices of equal values, whose order is undefined, nor on
    special inputs that a quantized file clips. On degenerate inputs it is a warning."""
    unproven: str = ""
    """Why the comparison proves nothing: ``nothing finite``, or ``too noisy`` if zeros would pass; otherwise empty."""

    @property
    def title(self) -> str:
        """The output's name; with the runtime if it is not the default one: ``power (reference)``."""
        return self.name if self.runtime == "onnxruntime" else f"{self.name} ({self.runtime})"

    @property
    def input_title(self) -> str:
        """The input's name: ``batch=5``, or ``batch=5, probe weights``."""
        return f"{self.probe}, probe weights" if self.probe_weights else self.probe

    @property
    def share_of_limit(self) -> float:
        """``drift ÷ limit``, to compare outputs with different limits; infinite for NaN, and for drift above a limit of 0."""
        if not self.limit:
            return math.inf if self.drift else 0.0
        share = self.drift / self.limit
        return math.inf if math.isnan(share) else share


def worst_of(outputs: Iterable[OutputDrift]) -> OutputDrift | None:
    """The output with the largest drift relative to its limit, preferably a decisive one; ``None`` if there is no output."""
    return max(
        outputs,
        key=lambda output: (output.is_decisive, output.share_of_limit, math.isnan(output.drift), output.drift),
        default=None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuVsGpu:
    """One output of the example as PyTorch and ONNX Runtime compute it, each on the CPU and on the GPU."""

    name: str
    """The output's name in the graph."""
    errors: Mapping[str, float]
    """The largest difference from the reference for each side, such as ``PyTorch on cpu``. A side that cannot compute the
    output is left out."""
    apart: tuple[str, ...]
    """The sides whose difference exceeds that of the others by more than rounding explains."""

    @property
    def verdict(self) -> str:
        """``ONNX Runtime on cuda deviates from the others``."""
        verb = "deviates from the others" if len(self.apart) == 1 else "deviate from the others"
        return f"{' and '.join(self.apart)} {verb}" if self.apart else "all sides agree"

    @property
    def in_words(self) -> str:
        """``y: all sides agree; errors against float64: PyTorch on cpu 1.2e-06, …``."""
        errors = ", ".join(f"{side} {error:.2g}" for side, error in self.errors.items())
        return f"{self.name}: {self.verdict}; errors against float64: {errors}"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredValue:
    """An input or output as the file declares it."""

    name: str
    dtype: str
    """As ONNX names it: ``float``, ``int64``."""
    dims: tuple[str, ...] | None
    """Numbers, names of axes, ``?`` for an unnamed axis; ``None`` if the rank is not declared."""

    @property
    def type_text(self) -> str:
        """``float[batch, 3]``; without a rank, only ``float``."""
        return self.dtype if self.dims is None else f"{self.dtype}[{', '.join(self.dims)}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputDomain:
    """One input of a model, and the domain of its values."""

    name: str
    """Its name in the graph, or else the parameter of forward, or else its position."""
    dtype: str
    """As torch names it: ``float32``."""
    shape: tuple[int, ...]
    """Of the example."""
    domain: str | None
    """The domain of its random values, as a recipe declares it: ``mask()``; ``None`` if they are like the example's."""
    reason: str | None
    """``declared``, or what the domain was inferred from; ``None`` if nothing is known."""

    @property
    def in_words(self) -> str:
        """``mask: int64[2, 8], mask(min_true=2) (declared)``."""
        values = f"{self.name}: {self.dtype}{list(self.shape)}, {self.domain or 'like the example'}"
        return values if self.reason is None else f"{values} ({self.reason})"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSketch:
    """A few numbers that identify tensors. They are the same on every machine except for the last digits."""

    tensors: int
    values: int
    """The total number of their elements."""
    layout: str
    """A digest of their shapes and data types, in order."""
    norm: float
    projections: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputValues:
    """A few numbers about one output of the model on the example."""

    name: str
    noise: float
    """How much PyTorch's own rounding changes it; 0 for integers and booleans, which are exact."""
    least: float
    mean: float
    largest: float
    spread: float
    """The standard deviation."""
    sample: tuple[float, ...]
    """Values at evenly spaced positions, with as many digits as the output's data type has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFacts:
    """What a baseline records about the file of a cell and about the model."""

    opset: int | None
    """The opset of the file."""
    ir_version: int
    domains: Mapping[str, int]
    """The other operator sets that the file imports."""
    inputs: tuple[DeclaredValue, ...]
    outputs: tuple[DeclaredValue, ...]
    operators: Mapping[str, int]
    """How often each operator occurs in the graph, its subgraphs and its functions."""
    initializers: int
    initializer_bytes: int
    file_bytes: int
    """The size of the file with its external data, but without texts about where it was built."""
    weights: TensorSketch
    arguments: TensorSketch
    values: tuple[OutputValues, ...]
    """Of outputs whose values can be compared; empty for a nondeterministic model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellEvidence:
    """All that the stages found out about one cell, before the verdict."""

    cell: Cell
    findings: tuple[Finding, ...] = ()
    outputs: tuple[OutputDrift, ...] = ()
    skip_cause: SkipCause | None = None
    """Why the cell was not run; ``None`` if it was."""
    reason: str = ""
    """Why the cell was skipped; in a result, also why it was expected to fail."""
    line: int | None = None
    """The line of its file on which the recipe's definition starts; ``None`` if it is defined in another file."""
    log: str = ""
    """What the exporter printed, and its warnings."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds, by stage."""
    artifact: str | None = None
    """The path of the ONNX file, if it is kept."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of each kept file, the ONNX file and its external data, by its path from the folder of the artifact."""
    observability: float | None = None
    """The share of the model that affects the compared outputs; ``None`` if it was not measured."""
    cpu_vs_gpu: tuple[CpuVsGpu, ...] = ()
    """On a GPU, each output of the example as PyTorch and ONNX Runtime compute it on the CPU and on the GPU."""
    inputs: tuple[InputDomain, ...] = ()
    """The model's inputs and their domains; empty if the recipe could not be prepared."""
    left_out: tuple[str, ...] = ()
    """Special values on which nothing is compared, because a run on the example takes as long as an export, or longer."""
    facts: ExportFacts | None = None
    """What a baseline records about the file; ``None`` if no file was written."""
    cached: bool = False
    """Whether this is the evidence of an earlier run."""
    why_run: str = ""
    """Why the cell ran although verdicts are cached: ``model.py changed``; empty without a cache."""

    @property
    def seconds(self) -> float:
        """The total time of all stages."""
        return sum(self.timings.values())

    @property
    def worst(self) -> OutputDrift | None:
        """The output with the largest drift relative to its limit."""
        return worst_of(self.outputs)

    @property
    def unproven_inputs(self) -> dict[str, str]:
        """The inputs on which no comparison proves anything, by their names, each with the reason."""
        proven = {each.probe for each in self.outputs if not each.unproven}
        return {each.probe: each.unproven for each in self.outputs if each.probe not in proven}

    def as_json(self) -> dict[str, Any]:
        """The evidence as plain JSON data: the id and the fields of the cell, then the other fields."""
        data = to_json(self)
        cell = data.pop("cell")
        return {"id": self.cell.id, **cell, **data}

    @classmethod
    def from_json(cls, data: Any, place: str = "") -> Self:
        """The value that :meth:`as_json` returned. Raises ``ValueError``, which says what is wrong, and where."""
        cell = from_json(Cell, data, place)
        id = field_of(data, "id", place)
        if id != cell.id or Cell.from_id(id) != cell:
            raise ValueError(f"{place} has the id {shortened(id)}, which does not match its cell")
        result: Self = from_json(cls, {**data, "cell": data}, place)
        if not all(0 <= seconds <= LONGEST_TIME for seconds in result.timings.values()):
            timings = f"{place}.timings".removeprefix(".")
            raise ValueError(f"{timings} are not times in seconds")
        return result


@dataclass(frozen=True, kw_only=True, slots=True)
class CellResult(CellEvidence):
    """The evidence about one cell and the verdict on it."""

    status: Status

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The warnings of a cell that passes."""
        passes = self.status is Status.PASSED
        return tuple(each for each in self.findings if passes and each.severity is Severity.WARNING)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The notes on a cell that passes."""
        passes = self.status is Status.PASSED
        return tuple(each for each in self.findings if passes and each.severity is Severity.NOTE)

    def as_json(self) -> dict[str, Any]:
        """The result as in the report: the id and the fields of the cell, the status, then the evidence."""
        data = CellEvidence.as_json(self)
        first = {
            name: data.pop(name) for name in ("id", "source", "recipe", "exporter", "opset", "device", "graph_pass", "status")
        }
        return {**first, **data}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Why recipes did not become cells: a file cannot be imported, a name is used twice."""

    source: str
    """The recipe file, relative to the project's root."""
    message: str
    file: str | None = None
    """The file with the faulty line, relative to the project's root: the recipe file, or one that it imports."""
    line: int | None = None
    """The faulty line of ``file``, counted from 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """The reason why a recipe excludes cells that the settings request."""

    recipe: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """What was checked out when a run began."""

    commit: str
    """Its full hash."""
    branch: str | None
    """``None`` if it is not known, because a tag or a commit is checked out outside of a job on GitHub."""
    is_modified: bool
    """Whether tracked files differed from the commit."""

    @property
    def short(self) -> str:
        """The first seven digits of the hash, as git shows it."""
        return self.commit[:7]

    @property
    def in_words(self) -> str:
        """``a1b2c3d on main, with uncommitted changes``."""
        branch = f" on {self.branch}" if self.branch else ""
        return f"{self.short}{branch}{', with uncommitted changes' if self.is_modified else ''}"


class SettingSource(enum.StrEnum):
    """Where the value of a setting came from."""

    DEFAULT = "default"
    PROJECT_FILE = "project-file"
    """``[tool.onnx-ci]`` in ``pyproject.toml``."""
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command-line"
    """A flag of ``onnx-ci``."""
    PYTEST = "pytest"
    """A flag of pytest."""
    PYTHON = "python"
    """A keyword of :func:`onnx_ci.run` or :func:`onnx_ci.verify`."""

    @property
    def is_of_this_run(self) -> bool:
        """Whether the value is of this run only, so the command that repeats a cell must include it."""
        return self not in (SettingSource.DEFAULT, SettingSource.PROJECT_FILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where the value of a setting came from."""

    source: SettingSource
    given_as: str
    """``--opsets``, ``ONNX_CI_OPSETS``, ``[tool.onnx-ci] opsets`` or ``default``. Where merged runs differ, a text with all
    of them."""

    def __str__(self) -> str:
        return self.given_as


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingValue:
    """The value of one setting of a run, and where it came from."""

    value: str | None
    """As written in a flag."""
    origin: Origin
