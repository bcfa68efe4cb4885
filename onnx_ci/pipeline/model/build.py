"""From a recipe to its model and the arguments of one call: its function is called, and what it returns is checked."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from onnx_ci.collection.keywords import RecipeKeywords, fields_of
from onnx_ci.collection.recipe import Recipe
from onnx_ci.errors import OnnxCiError, describe_exception
from onnx_ci.pipeline.model import devices
from onnx_ci.pipeline.model.call import (
    Call,
    SkippedByRecipeError,
    bound_arguments,
    input_tensors,
    names_in_model,
    recipe_error,
    with_inputs,
)
from onnx_ci.pipeline.model.containers import containers_in, name_of, named_leaves
from onnx_ci.pipeline.model.global_state import watched
from onnx_ci.pipeline.model.loaded_weights import watch_loading
from onnx_ci.pipeline.model.module import (
    as_model,
    has_closures,
    is_exportable,
    own_keywords,
    plain_weights_of,
    set_training,
    signature_of,
    to_device,
    unlike_others,
    unlisted,
    weights_of,
)
from onnx_ci.pipeline.model.operators import tensor_leaves
from onnx_ci.pipeline.model.running import run_tree, seeded
from onnx_ci.processes.signals import no_forks_leave
from onnx_ci.results.rules import REMEDIES
from onnx_ci.text import listed


def build(recipe: Recipe, device: str, weights: str | None) -> Call:
    """Call the recipe's function under its seed, check what it returns, and move that to ``device``."""
    with watched() as changes, watch_loading() as loaded_with:
        call = moved(_usable(recipe, _with_mode(_checked(recipe, _result_of(recipe, weights)), recipe.training)), device)
    return replace(call, global_changes=changes, loaded_with=tuple(sorted(loaded_with)))


def _usable(recipe: Recipe, call: Call) -> Call:
    """``call``, whose arguments can be replaced and whose weights exist and can be changed."""
    for container in containers_in(bound_arguments(call)):
        if container.has_tensors and not container.is_registered:
            name, kind = name_of(container.path), container.kind.__name__
            raise recipe_error(
                f"the argument {name} is of the class {kind}, whose tensors PyTorch cannot replace",
                REMEDIES["takes-tensors"].format(name, kind) + " Or register the class as a pytree.",
            )
    for path, leaf in named_leaves(bound_arguments(call)):
        if isinstance(leaf, torch.Tensor) and (reason := unlike_others(leaf)):
            raise recipe_error(
                f"the argument {name_of(path)} {reason}, so no input of a file can be compared with it",
                "Let the model take a plain tensor and make the other one of it: onnx_ci.adapt(model, inputs=FUNCTION).",
            )
    if any(is_lazy(parameter) for parameter in call.model.parameters()):
        run_tree(with_inputs(call), seed=recipe.seed)  # a lazy module initializes its weights in its first run
    # Tensors that are made in inference mode can be changed only there.
    if not any(tensor.is_inference() for tensor in (*plain_weights_of(call.model), *input_tensors(call))):
        return call
    if not has_closures(call.model):
        with contextlib.suppress(Exception):  # copying a model can raise anything
            return copy.deepcopy(call)
    message = "the model has weights of torch.inference_mode, which cannot be changed outside of it, and cannot be copied"
    raise recipe_error(message, "Build the model outside of torch.inference_mode.")


def _with_mode(call: Call, is_training: bool) -> Call:
    """``call`` in training or inference mode, with a remark about what has a mode of its own."""
    fixed = set_training(call.model, is_training)
    if not fixed:
        return call
    names = listed(repr(name) if name else "the model" for name in fixed)
    mode = "training" if is_training else "inference"
    remark = f"train() fails for {names}, which may not be in {mode} mode: it computes as the recipe leaves it"
    return replace(call, remarks=(*call.remarks, remark))


def _result_of(recipe: Recipe, weights: str | None) -> Any:
    options = {"weights": weights} if recipe.takes_weights else {}
    try:
        with no_forks_leave(), seeded(recipe.seed):
            result = recipe(**options)
            if not is_exportable(result):
                return result
            args, kwargs = result.example_arguments()
            return result, args, kwargs or {}
    except OnnxCiError as error:
        raise recipe_error(str(error), "Fix what the message names; the model was not built.") from None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # whatever a recipe raises is reported, SystemExit included
        if devices.ran_out_of_memory(error):
            raise
        if type(error).__name__ in ("Skipped", "SkipTest"):
            raise SkippedByRecipeError(str(error) or "the recipe skips itself") from None
        raise recipe_error(f"the recipe raised {describe_exception(error)}", _remedy_of(error)) from None


def _checked(recipe: Recipe, result: Any) -> Call:
    remedy = f"Return (model, args) or (model, args, kwargs) from {recipe.name}, or a torch.onnx.ExportableModule."
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        what = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise recipe_error(f"the recipe returned {what} instead of (model, args) or (model, args, kwargs)", remedy)
    returned, args, kwargs = result if len(result) == 3 else (*result, {})
    if (as_module := as_model(returned)) is None:
        is_class = isinstance(returned, type)
        what = f"the class {returned.__name__}; create an instance of it" if is_class else type(returned).__name__
        raise recipe_error(f"the recipe's model is not a torch.nn.Module but {what}", remedy)
    model, remarks = as_module
    if (error := unlisted(model)) is not None:
        message = f"{type(model).__name__} cannot list its modules and weights: {describe_exception(error)}"
        remedy = "Exporters need named_modules, named_parameters and named_buffers."
        if isinstance(error, RecursionError):
            limit = "raise the limit with sys.setrecursionlimit in the recipe."
            remedy = f"Its modules are nested more deeply than Python's calls may be: {limit}"
        raise recipe_error(message, remedy)
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, tuple):
        raise recipe_error(f"the recipe's args are a {type(args).__name__}, not a tuple", remedy)
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise recipe_error("the recipe's kwargs are not a dict with names as keys", remedy)
    signature = signature_of(model)
    if signature is None:
        return Call(model=model, args=args, kwargs=kwargs, remarks=tuple(remarks))
    if args and not kwargs and isinstance(args[-1], dict) and args[-1].keys() <= {*[*signature.parameters][len(args) - 1 :]}:
        args, kwargs = args[:-1], args[-1]  # torch.onnx.export takes them there, too
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        message = f"the recipe's args do not match {type(model).__name__}.forward{signature}: {error}"
        raise recipe_error(message, REMEDIES["arguments-of-forward"]) from None
    in_order = {name: kwargs[name] for name in signature.parameters if name in kwargs}
    return Call(model=model, args=args, kwargs=in_order | kwargs, remarks=tuple(remarks))


def completed(recipe: Recipe, call: Call) -> Recipe:
    """The recipe, with the names and the dynamic axes that the model itself declares where the recipe declares none.

    Such a model is an ``ExportableModule`` or an ``ExportedProgram``. A :class:`PrepareError` says that what it declares cannot
    be used.
    """
    try:
        declared = dict(own_keywords(call.model))
        if recipe.dynamic_axes or recipe.dynamic_shapes is not None:
            declared.pop("dynamic_shapes", None)
        fields = fields_of(cast("RecipeKeywords", declared))
    except Exception as error:  # the methods of a model can raise anything
        raise recipe_error(f"what {type(call.model).__name__} declares cannot be used: {describe_exception(error)}") from None
    return replace(recipe, **{name: fields[name] for name in declared if not getattr(recipe, name)})


def with_names(recipe: Recipe, call: Call) -> Recipe:
    """The recipe; if it declares dynamic axes and no names of inputs, with those that they have in the model."""
    if recipe.input_names or (recipe.dynamic_shapes is None and not recipe.dynamic_axes):
        return recipe
    return replace(recipe, input_names=tuple(filter(None, names_in_model(call))))


def moved(call: Call, device: str) -> Call:
    """``call`` with its model and tensors on ``device``, from wherever the recipe has put them."""
    tensors = [*weights_of(call.model), *tensor_leaves((call.args, call.kwargs))]
    if device == "cpu" and all(tensor.device.type in ("cpu", "meta") for tensor in tensors):
        return call
    place = torch.device("cpu") if device == "cpu" else devices.gpus.place(device)
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(place), (call.args, call.kwargs))
    return replace(call, model=to_device(call.model, place), args=args, kwargs=kwargs)


_SIGNS_OF_POINTERS = {
    "UnpicklingError": ("invalid load key, 'v'", "Unsupported operand 118"),
    "SafetensorError": ("header too large",),
}
"""The parts of messages that say that a file begins with the letter v, as the pointers of Git LFS do, by class of error."""


def _remedy_of(error: BaseException) -> str | None:
    """What helps a recipe that raises this error; ``None`` if that is not known."""
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        is_program = traceback.extract_tb(error.__traceback__)[-1].filename == subprocess.__file__  # that was to be started
        return None if is_program else _remedy_of_missing(error.filename)
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package in sys.modules:
            return f"The {package} that is installed has no {error.name}: install another version of it."
        return f"Install what contains {package} where onnx-ci is installed; if it is your own project, with pip install -e ."
    if any(sign in str(error) for sign in _SIGNS_OF_POINTERS.get(type(error).__name__, ())):
        return "If the file is kept with Git LFS, run git lfs pull; in a workflow, give actions/checkout lfs: true."
    return None


def _remedy_of_missing(file: str) -> str | None:
    path = Path(file)
    if not file or "://" in file:
        return None
    if path.parts[:1] == ("~",):
        return f"Python does not replace ~ by itself: Path({file!r}).expanduser() does."
    if path.is_absolute():
        return "Put the file there, or let the recipe fetch it. A fresh clone has only what is committed."
    beside = f"Path(__file__).parent / {path.as_posix()!r}"
    return f"Relative paths begin where the command runs; one that begins beside the recipe's file is {beside}."
