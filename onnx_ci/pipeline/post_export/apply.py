"""One post-export pass applied to a file. What the pass returns or raises becomes a file or a finding."""

from __future__ import annotations

import inspect
import traceback
import warnings
from pathlib import Path

import onnx

from onnx_ci.collection.post_export import GraphPass
from onnx_ci.errors import describe_exception, disk_error
from onnx_ci.onnx_model.files import NotAModelError, copy, write_returned
from onnx_ci.pipeline.export.export import Artifact, Written
from onnx_ci.pipeline.model.devices import ran_out_of_memory
from onnx_ci.pipeline.post_export.passes import CannotApplyError, Feeds
from onnx_ci.processes.capture import captured
from onnx_ci.results.records import Finding
from onnx_ci.results.rules import REMEDIES, finding


def apply_pass(graph_pass: GraphPass, before: Artifact, folder: Path, feeds: Feeds) -> Written:
    """Apply ``graph_pass`` to the file ``before``, which is not changed, and write its own to the new ``folder``.

    Only out-of-memory errors are raised.
    """
    folder.mkdir(parents=True)
    path = folder / before.path.name
    failure: BaseException | None = None
    with captured() as caught:
        warnings.simplefilter("ignore", DeprecationWarning)  # of the pass's package about what it uses
        try:
            _transform(graph_pass, before.path, path, feeds)
        except (Exception, SystemExit) as error:  # a pass can raise anything, which becomes a finding
            if ran_out_of_memory(error):
                raise
            failure = error
            traceback.print_exc()  # for the log; the finding has one line only
    if failure is None and not path.is_file():
        failure = NotAModelError("returned without writing a file")
    if failure is None:
        return Written(artifact=Artifact(path=path), findings=(), log=caught.text)
    return Written(artifact=None, findings=(_finding_of(failure, graph_pass, (before.path, path)),), log=caught.text)


def _finding_of(error: BaseException, graph_pass: GraphPass, paths: tuple[Path, ...]) -> Finding:
    if full := disk_error(error):
        return finding("disk-error", f"{full.filename or 'a file'}: {full.strerror}; {graph_pass.name} was writing its file")
    message, remedy = f"{graph_pass.name} raised {describe_exception(error)}", None
    if isinstance(error, CannotApplyError):
        message, remedy = f"{graph_pass.name} {error}", error.remedy
    elif isinstance(error, NotAModelError):
        message, remedy = f"{graph_pass.name} {error}", REMEDIES["return-of-pass"]
    for path in paths:  # they differ in each run
        message = message.replace(str(path), "the file")
    return finding("pass-error", message, remedy=remedy, introduced_by=graph_pass.name)


def _transform(graph_pass: GraphPass, before: Path, path: Path, feeds: Feeds) -> None:
    """Call the function of a pass in the way that its parameters ask for, and write what it returns to ``path``."""
    function = graph_pass.transform
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a function of C may have no signature
        parameters = []
    offered = {"feeds": feeds, "keep_io_types": graph_pass.keep_io_types}
    # One with a default, or bound by functools.partial, has what its author wants.
    names = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    keywords = {**graph_pass.options, **{name: value for name, value in offered.items() if name in names}}
    if len(parameters) > 1 and all(
        _is_path(parameter) and parameter.default is parameter.empty for parameter in parameters[:2]
    ):
        function(before, path, **keywords)
        return
    if parameters and _is_path(parameters[0]):
        copy(before, path)  # so that a function that changes its file does not change that of the pass before
        returned = function(path, **keywords)
    else:
        returned = function(onnx.load(before), **keywords)
    write_returned(returned, path)


def _is_path(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is annotated as a path."""
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.rpartition(".")[2] in ("Path", "str", "PathLike")
