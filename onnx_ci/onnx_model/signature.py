"""What an ONNX file declares: facts and findings that need neither its recipe nor inference. Does not import torch."""

from __future__ import annotations

import contextlib
import math
import re
import sysconfig
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import onnx

from onnx_ci.errors import first_line, working_directory
from onnx_ci.onnx_model.contents import Contents
from onnx_ci.results.json_data import shortened
from onnx_ci.results.records import Finding, Severity
from onnx_ci.results.rules import REMEDIES, RULES, finding


@dataclass(frozen=True, kw_only=True)
class Value:
    """An input or output as the graph declares it."""

    name: str
    element_type: int
    dims: tuple[int | str | None, ...] | None
    """Numbers for fixed axes, names for symbolic ones, ``None`` for unnamed ones; no tuple if the rank is unknown."""


@dataclass(frozen=True, kw_only=True)
class ExternalData:
    """The location of a tensor's data, as it is written in the file."""

    tensor: str
    location: str
    offset: str
    length: str


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The inputs and outputs that a file declares, and a summary of its content."""

    inputs: tuple[Value, ...]
    weights: tuple[str, ...]
    """Other inputs, which take the model's weights: the file was exported without them."""
    outputs: tuple[Value, ...]
    opset: int | None
    """The version of the default operator domain, or ``None`` if the file imports none."""
    ir_version: int
    foreign_domains: tuple[str, ...]
    """Domains of operators that are neither standard nor defined by a function in the file."""
    paths: tuple[str, ...]
    """Absolute paths in the file, shortened."""
    external_data: tuple[ExternalData, ...]
    domains: Mapping[str, int]
    """The versions of the operator sets that it imports besides the default one."""
    operators: Mapping[str, int]
    """How often each operator occurs, with those of other domains as ``domain.name``; sorted by name."""
    has_other_powers: bool
    """Whether a ``Pow`` may compute anything but a square: its exponent is not a constant 2. ONNX Runtime's optimizer fuses the
    nodes of a LayerNorm whatever the exponent is, and so repairs a file that is wrong."""
    initializers: int
    initializer_bytes: int
    largest_initializer_bytes: int
    text_bytes: int
    """The size of the doc strings and the metadata, which say where the file comes from and which runtimes ignore."""
    has_probe_weights: bool
    """Whether the file is marked as one that onnx-ci exported with probe weights."""


def read_model(path: Path) -> onnx.ModelProto | Finding:
    """The model without its external data; a finding if the file is not valid ONNX."""
    read = _read(path)
    return read if isinstance(read, Finding) else read[0]


def _read(path: Path) -> tuple[onnx.ModelProto, Contents] | Finding:
    """:func:`read_model`, and what the model contains."""
    if _is_lfs_pointer(path):
        return finding("checker", "the file is a Git LFS pointer, not the model itself", remedy="Run git lfs pull.")
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf raises its own classes on a damaged file
        reason = str(error).strip() or type(error).__name__
        return finding("checker", f"the file is not a readable ONNX model: {reason}", remedy=_EXPORT_AGAIN)
    if not model.ByteSize():
        message = "the file contains no ONNX model" if path.stat().st_size else "the file is empty"
        return finding("checker", message, remedy=_EXPORT_AGAIN)
    contents = Contents.of(model)
    if (damaged := _not_text(model, contents)) is not None:
        message = f"the file is not a readable ONNX model: {damaged!r} should be a text, but is not UTF-8"
        return finding("checker", message, remedy=_EXPORT_AGAIN)
    for tensor in contents.tensors:
        if (problem := _problem_of_tensor(tensor)) is not None:
            message = f"the file is not a readable ONNX model: tensor {tensor.name!r} {problem}"
            return finding("checker", message, remedy=_EXPORT_AGAIN)
    return _name_of_two_values(model.graph) or (model, contents)


def _not_text(model: onnx.ModelProto, contents: Contents) -> bytes | None:
    """The first name or other text in the model that is not UTF-8; protobuf returns it as bytes. ONNX's checker accepts it."""
    infos = [info for graph in contents.graphs for info in (*graph.input, *graph.output, *graph.value_info)]
    texts = chain(
        (model.producer_name, model.producer_version, model.domain, *(opset.domain for opset in model.opset_import)),
        *((node.op_type, node.domain, *node.input, *node.output) for node in contents.nodes),
        (text for function in model.functions for text in (function.domain, *function.input, *function.output)),
        (attribute.name for _, attribute in contents.attributes),
        (text for info in infos for text in (info.name, *(dim.dim_param for dim in info.type.tensor_type.shape.dim))),
        (text for tensor in contents.tensors for entry in tensor.external_data for text in (entry.key, entry.value)),
        (entry.key for holder in _holders(model, contents) for entry in holder.metadata_props),
        _names(contents),
        _texts(model, contents),
    )
    return next((each for each in texts if isinstance(each, bytes)), None)


def _name_of_two_values(graph: onnx.GraphProto) -> Finding | None:
    """A finding if an input or output has the name of another value: no runtime loads such a file."""
    roles = {info.name: role for role, infos in (("output", graph.output), ("input", graph.input)) for info in infos}
    taken = {info.name for info in (*graph.input, *graph.initializer)}
    writers: dict[str, str] = {}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in roles and (name in taken or name in writers):
                other = writers.get(name, node.op_type)
                message = f"the {roles[name]} {name!r} has the same name as what a {other} node computes"
                return finding("name-mismatch", message, remedy=REMEDIES["other-name"])
            writers[name] = node.op_type
    return None


def _problem_of_tensor(tensor: onnx.TensorProto) -> str | None:
    """Why the data in a tensor cannot be read; ``None`` if it can. So no other function has to check that.

    External data is not opened.
    """
    if tensor.data_type not in onnx.TensorProto.DataType.values()[1:]:
        return f"has the unknown type {tensor.data_type}"
    if any(dim < 0 for dim in tensor.dims) or math.prod(tensor.dims) >= _TOO_LARGE:
        return f"has the impossible shape {shortened([*tensor.dims])}"
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        try:
            onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # onnx and numpy raise many classes
            return f"cannot be read: {first_line(error)}"
    return None


_TOO_LARGE = 2**60
"""As a number of elements: their bytes could not be counted in 64 bits."""


def read_signature(path: Path, weights: Container[str] = ()) -> Signature | Finding:
    """The file's signature; a finding if the file is not valid ONNX. Inputs named in ``weights`` take the model's weights."""
    read = _read(path)
    if isinstance(read, Finding):
        return read
    model, contents = read
    # Before IR version 4 every initializer is listed as an input, too.
    initializers = {tensor.name for tensor in model.graph.initializer}
    tensors = [tensor for graph in contents.graphs for tensor in graph.initializer]
    inputs = [info for info in model.graph.input if info.name not in initializers]
    texts = [*_texts(model, contents)]
    defined = {(function.domain, function.name) for function in model.functions}
    used = {(node.domain, node.op_type) for node in contents.nodes}
    operators = Counter(f"{node.domain}.{node.op_type}".removeprefix("ai.onnx.").lstrip(".") for node in contents.nodes)
    sizes = [bytes_of(tensor) or len(tensor.raw_data) for tensor in tensors]
    return Signature(
        inputs=tuple(_value(info) for info in inputs if info.name not in weights),
        weights=tuple(info.name for info in inputs if info.name in weights),
        outputs=tuple(_value(info) for info in model.graph.output),
        opset=opset_of_model(model),
        ir_version=model.ir_version,
        foreign_domains=tuple(sorted({domain for domain, name in used - defined if domain not in STANDARD_DOMAINS})),
        paths=_absolute_paths(texts, _names(contents)),
        external_data=tuple(_external_data(contents)),
        domains={each.domain: each.version for each in model.opset_import if each.domain not in ("", "ai.onnx")},
        operators=dict(sorted(operators.items())),
        has_other_powers=_has_other_powers(contents),
        initializers=len(tensors),
        initializer_bytes=sum(sizes),
        largest_initializer_bytes=max(sizes, default=0),
        text_bytes=sum(len(text.encode()) for text in texts),
        has_probe_weights=any((entry.key, entry.value) == _PROBE_MARK for entry in model.metadata_props),
    )


_EXPORT_AGAIN = "It is damaged, truncated, or not ONNX: export it again, or copy it again as binary data."


def opset_of_model(model: onnx.ModelProto) -> int | None:
    """The version of the standard operators that a model imports, or ``None`` if it imports none."""
    return next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), None)


def opset_of(path: Path) -> int | None:
    """The opset of the file, or ``None`` if it cannot be read."""
    signature = read_signature(path)
    return None if isinstance(signature, Finding) else signature.opset


def check(path: Path, signature: Signature) -> list[Finding]:
    """Check external data, then run ``onnx.checker`` with full shape inference, which reads the file itself."""
    if missing := list(_missing_data(path.parent, signature.external_data)):
        return missing  # the checker would report only the first of them, or none
    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception as error:  # ValidationError, and errors of C++ and protobuf
        reason = str(error).strip() or type(error).__name__
        return [finding("checker", f"onnx.checker rejects the file: {reason}", remedy=remedy_of_type(reason))]
    return []


_WRONG_TYPE = (
    re.compile(r"op_type: ?(?P<operator>\w+).*unsupported type: tensor\((?P<type>\w+)\)", re.DOTALL),
    re.compile(r"Type 'tensor\((?P<type>\w+)\)' of input parameter \(.*\) of operator \((?P<operator>\w+)\)"),
)
"""How onnx.checker and ONNX Runtime say that an operator does not take a type."""


def remedy_of_type(reason: str) -> str | None:
    """What to do about an operator that gets a type which it does not take, if that is why a file is refused."""
    match = next(filter(None, (pattern.search(reason) for pattern in _WRONG_TYPE)), None)
    return match and f"ONNX's {match['operator']} takes no {match['type']}: cast before it, as x.long() or x.float() does."


_PATHS_SHOWN = 3


def check_paths(signature: Signature, severity: Severity = RULES["absolute-path"].severity) -> list[Finding]:
    """A finding if the file contains absolute paths."""
    if not signature.paths:
        return []
    rest = len(signature.paths) - _PATHS_SHOWN
    named = ", ".join(signature.paths[:_PATHS_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
    return [finding("absolute-path", f"the file contains paths below {named}", severity=severity)]


# --- probe weights: a file that has them is kept only to show a fault, and must not be deployed -------------------------

PROBE_SUFFIX = ".probe-weights"
"""What the name of such a file ends with, before ``.onnx``."""

_PROBE_MARK = ("onnx-ci.weights", "probe")


def mark_probe_weights(path: Path) -> Path:
    """Mark the ONNX file at ``path`` in its metadata and in its name, and return its new path.

    Its external data keeps its name. The weights are not read: appending a message to another one in protobuf's wire format
    merges both.
    """
    mark = onnx.StringStringEntryProto(key=_PROBE_MARK[0], value=_PROBE_MARK[1])
    with path.open("ab") as file:
        file.write(onnx.ModelProto(metadata_props=[mark]).SerializeToString())
    return path.rename(path.with_name(f"{path.stem}{PROBE_SUFFIX}{path.suffix}"))


def check_weights(signature: Signature) -> list[Finding]:
    """A finding if the file has probe weights."""
    if not signature.has_probe_weights:
        return []
    message = "the file has probe weights, which onnx-ci chose to make faults visible, not the model's own: do not deploy it"
    return [finding("probe-weights", message)]


# --- what is declared ---------------------------------------------------------------------------------------------------


def _value(info: onnx.ValueInfoProto) -> Value:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return Value(name=info.name, element_type=tensor.elem_type, dims=None)
    # A negative number means what no number means, also to ONNX Runtime: converters write -1.
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None for dim in tensor.shape.dim
    )
    return Value(name=info.name, element_type=tensor.elem_type, dims=dims)


def _has_other_powers(contents: Contents) -> bool:
    def is_two(tensor: onnx.TensorProto) -> bool:
        is_here = math.prod(tensor.dims) == 1 and tensor.data_location != onnx.TensorProto.EXTERNAL
        return is_here and bool(onnx.numpy_helper.to_array(tensor).item() == 2)

    exponents = {name for node in contents.nodes if node.op_type == "Pow" for name in node.input[1:]}
    # Functions and branches may use one name for several constants.
    constants = [(name, tensor) for name, tensor in contents.constants if name in exponents] if exponents else []
    return bool(exponents - {name for name, _ in constants}) or not all(is_two(tensor) for _, tensor in constants)


def data_type_name(kind: int) -> str:
    """A data type as ONNX names it, such as ``float16``. A file can also have a number that names none."""
    return onnx.TensorProto.DataType.Name(kind).lower() if kind in onnx.TensorProto.DataType.values() else f"type {kind}"


def bytes_of(tensor: onnx.TensorProto) -> int | None:
    """How many bytes the raw data of a tensor must have, or ``None`` if its type packs several elements into one."""
    try:
        size = int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except KeyError:
        return None
    return math.prod(map(int, tensor.dims)) * size


# --- domains and paths ----------------------------------------------------------------------------------------------

STANDARD_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


_PART = r"""[^\s/\\:;,"'<>|()\[\]{}]+"""
_FILE = rf"(?:/{_PART})+/{_PART}\.(?:py|pyc|ipynb|pth?|onnx|ckpt|safetensors|so|cc|cpp|cu|h)\b"
_WINDOWS = rf"[A-Za-z]:[\\/]+(?:{_PART}[\\/]+)+"
_HOMES = "home|Users|root|mnt|media|opt|srv|tmp|usr|var|private|workspace|builds|github|__w"
_BEFORE = r"(?<![\w.:/\\-])"
# Nodes are named after modules, such as /root/layer1/conv1/Conv, so a name is only a path if it ends like a file.
_IN_NAMES = re.compile(rf"{_BEFORE}(?:{_FILE}|{_WINDOWS})")
_IN_TEXTS = re.compile(rf"""(?<=File ")/[^"]+|{_BEFORE}(?:/(?:{_HOMES})(?:/{_PART}){{2,}}|{_FILE}|{_WINDOWS})""")


def _absolute_paths(texts: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """The folders of absolute paths in the texts and names of a file.

    For paths below the current directory, the home directory or the installed packages, it is that folder.
    """
    places = [working_directory(), Path(sysconfig.get_path("purelib"))]
    with contextlib.suppress(RuntimeError):  # the user of a container may have no home directory
        places.append(Path.home())
    # A single folder, such as /root, may also be a module's name.
    roots = tuple(f"{folder}/" for folder in places if len(folder.parts) > 2)
    different_texts = set(texts)
    folders = {root[:-1] for root in roots if any(root in text for text in different_texts)}
    paths = chain(*map(_IN_TEXTS.findall, different_texts), *map(_IN_NAMES.findall, set(names)))
    for path in paths:
        if not path.startswith(roots):
            kind = PurePosixPath if path.startswith("/") else PureWindowsPath
            folders.add(str(kind(*kind(path).parent.parts[:4])))  # at most three folders deep
    return tuple(sorted(folders))


def _holders(model: onnx.ModelProto, contents: Contents) -> Iterator[Any]:
    """The messages that can have a doc string and metadata."""
    return chain((model, *model.functions), contents.graphs, contents.nodes, contents.tensors)


def _texts(model: onnx.ModelProto, contents: Contents) -> Iterator[str]:
    for holder in _holders(model, contents):
        yield holder.doc_string
        yield from (entry.value for entry in holder.metadata_props)


def _names(contents: Contents) -> Iterator[str]:
    for holders in (contents.graphs, contents.nodes, contents.tensors):
        yield from (holder.name for holder in holders)


# --- external data --------------------------------------------------------------------------------------------------

_LFS = b"version https://git-lfs.github.com/spec/"


def _is_lfs_pointer(path: Path) -> bool:
    """Whether the file is a Git LFS pointer."""
    try:
        with path.open("rb") as file:
            return file.read(len(_LFS)) == _LFS
    except OSError:
        return False  # whoever reads it next reports the error


def _external_data(contents: Contents) -> Iterator[ExternalData]:
    for tensor in contents.tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            yield ExternalData(
                tensor=tensor.name,
                location=entries.get("location", ""),
                offset=entries.get("offset", "0"),
                length=entries.get("length", "0"),
            )


_COPY_BOTH = "The file and its external data belong together: commit and copy both, or export again."
_RESAVE = "Save the model again with its data beside it: onnx.save_model(…, save_as_external_data=True, location='NAME.data')."


def _missing_data(folder: Path, external: Iterable[ExternalData]) -> Iterator[Finding]:
    """What is wrong with the files of external data, one finding for each file."""
    by_location: dict[str, list[ExternalData]] = {}
    for data in external:
        by_location.setdefault(data.location, []).append(data)
    for location, tensors in by_location.items():
        if (wrong := _problem_with(folder, location, tensors)) is not None:
            problem, remedy = wrong
            named = f"tensor {tensors[0].tensor!r}" + (f" and {len(tensors) - 1} more" if len(tensors) > 1 else "")
            message = f"the data of {named} should be in {location!r}, {problem}"
            yield finding("external-data", message, remedy=remedy, details={"location": location})


_DIGITS = 18
"""The digits of a number of bytes that 64 bits can hold."""
_BYTES = re.compile(rf"[0-9]{{1,{_DIGITS}}}")


def _problem_with(folder: Path, location: str, tensors: Iterable[ExternalData]) -> tuple[str, str] | None:
    """What is wrong with one file of external data, and the remedy."""
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive:
        return "which is an absolute path", _RESAVE
    if ".." in (*PurePosixPath(location).parts, *PureWindowsPath(location).parts):
        return "which is outside the file's folder", _RESAVE
    path = folder / location
    try:
        is_there = bool(location) and path.is_file()
    except OSError as error:
        return f"which cannot be the name of a file: {error.strerror}", _RESAVE
    if not is_there:
        return "which does not exist", _COPY_BOTH
    if _is_lfs_pointer(path):
        return "which is a Git LFS pointer, not the data itself", "Run git lfs pull."
    for data in tensors:
        if not (_BYTES.fullmatch(data.offset) and _BYTES.fullmatch(data.length)):
            return f"at offset {data.offset[:_DIGITS]} for {data.length[:_DIGITS]} bytes, which is not valid", _RESAVE
    needed = max(int(each.offset) + int(each.length) for each in tensors)
    if needed > (size := path.stat().st_size):
        return f"which has {size} bytes, but {needed} are needed", _COPY_BOTH
    return None
