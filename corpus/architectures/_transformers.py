"""What the recipes of transformers' models share."""

import functools

from _libraries import import_transformers

import onnx_ci

SEEN = "torch 2.13.0, transformers 5.23.0"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
unsupported = functools.partial(onnx_ci.unsupported, seen=SEEN)
WINDOW = "the mask of the sliding window is written into views of the scores, which the trace does not follow"


def build(auto, case, options):
    """A model with random weights.

    Args:
        auto: the class that makes it, such as ``AutoModelForCausalLM``.
        case: the kind of its configuration, such as ``gpt2``.
        options: the configuration.
    """
    transformers = import_transformers()
    return getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(case, **options))
