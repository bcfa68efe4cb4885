"""Several files of one model, run together by the recipe's own function: what it computes is what the model computes."""

from __future__ import annotations

import functools
import shutil

import onnx
import pytest
import torch
from toolbox.cells import errors, rules, run_one

import onnx_ci
from onnx_ci import Status

BATCH = {0: "batch"}
NAMES = {"input_names": ["tokens"], "output_names": ["scores"], "dynamic_axes": {"tokens": BATCH, "scores": BATCH}}
NEW = 4


class Decoder(torch.nn.Module):
    """Continues a text: its state is what it has read."""

    def __init__(self):
        super().__init__()
        self.embedding, self.cell, self.logits = torch.nn.Embedding(50, 16), torch.nn.GRUCell(16, 16), torch.nn.Linear(16, 50)

    def forward(self, tokens):
        state = torch.zeros(len(tokens), 16, dtype=self.logits.weight.dtype)
        scores, state = Prefill(self)(state, tokens)
        made = [scores]
        for _ in range(NEW):
            scores, state = Decode(self)(state, scores.argmax(-1))
            made.append(scores)
        return torch.stack(made, 1)


class Prefill(torch.nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, state, tokens):
        for token in self.decoder.embedding(tokens).unbind(1):
            state = self.decoder.cell(token, state)
        return self.decoder.logits(state), state


class Decode(torch.nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, state, token):
        state = self.decoder.cell(self.decoder.embedding(token), state)
        return self.decoder.logits(state), state


def export(model, args, kwargs, opset, path, *, frozen=(), decoder=None, opsets=None):
    (tokens,) = args
    state = torch.zeros(len(tokens), 16)
    calls = {"prefill": (Prefill, (state, tokens)), "decode": (Decode, (state, tokens[:, 0]))}
    files = {}
    for name, (part, inputs) in calls.items():
        files[name] = path.with_name(f"{name}.onnx")
        names = ["state", "tokens"], ["scores", "next"]
        torch.onnx.export(
            part(decoder if decoder is not None and name == "decode" else model),
            inputs,
            files[name],
            opset_version=(opsets or {}).get(name, opset),
            dynamo=False,
            input_names=names[0],
            output_names=names[1],
            dynamic_axes={} if name in frozen else dict.fromkeys([*names[0], *names[1]], BATCH),
        )
    return files


def generate(files, tokens, *, between=lambda state, token: (state, token)):
    made = files["prefill"](tokens=tokens, state=torch.zeros(len(tokens), 16))
    scores = [made["scores"]]
    for _ in range(NEW):
        state, token = between(made["next"], scores[-1].argmax(-1))
        made = files["decode"]({"state": state, "tokens": token})
        scores.append(made["scores"])
    return torch.stack(scores, 1)


def recipe(*, export=export, run_files=generate, model=Decoder, **keywords):
    declared = {**NAMES, "export": export, "run_files": run_files, **keywords}
    return onnx_ci.recipe(name="decoder", **declared)(lambda: (model(), (torch.randint(50, (2, 5)),)))


def judged(**keywords):
    return run_one(recipe(**keywords), opsets=17)


def error_of(result):
    [error] = errors(result)
    return error


# --- right ones ---------------------------------------------------------------------------------------------------------


def test_what_the_files_compute_together_is_compared_on_all_inputs():
    result = judged()
    assert (result.status, rules(result)) == (Status.PASSED, [])
    assert {"example", "random values", "batch=1"} < {output.probe for output in result.outputs}


def test_each_file_has_names_and_takes_inputs_by_them():
    seen = {}

    def noting(files, tokens):
        seen.update({name: (file.inputs, file.outputs) for name, file in files.items()})
        return generate(files, tokens)

    assert judged(run_files=noting).status is Status.PASSED
    assert seen == dict.fromkeys(("decode", "prefill"), (("state", "tokens"), ("scores", "next")))


class Tokens(Decoder):
    """Returns the tokens themselves, from scores that are rounded to 0.001. Those of tokens 0 and 1 are close to each other."""

    def __init__(self, gap):
        super().__init__()
        with torch.no_grad():
            self.logits.weight[1] = self.logits.weight[0]
            self.logits.bias[:2] = torch.tensor([0.3, 0.3 + gap])

    def forward(self, tokens):
        return (super().forward(tokens) + 1e4).argmax(-1)


@pytest.mark.parametrize(("gap", "found"), [(1e-4, []), (1e-2, ["baked-value"])])
def test_another_token_is_excused_only_where_the_two_best_are_equal_up_to_rounding(gap, found):
    def first(files, tokens):
        best = (generate(files, tokens) + 1e4).argmax(-1)
        return torch.where(best == 1, 0, best)

    tokens = recipe(model=functools.partial(Tokens, gap), run_files=first, weights="trained")
    assert rules(run_one(tokens, opsets=17)) == found


# --- wrong ones ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "between",
    [
        lambda state, token: (torch.zeros_like(state), token),
        lambda state, token: (state * 0.999, token),
    ],
    ids=["forgotten", "scaled"],
)
def test_what_is_handed_on_wrongly_is_found(between):
    result = judged(run_files=functools.partial(generate, between=between))
    assert rules(result) == ["numeric-drift"]
    assert error_of(result).remedy.startswith("Look at what run_files hands from one file to the next")


def test_a_file_of_another_model_is_found():
    result = judged(export=functools.partial(export, decoder=Decoder()))
    assert "numeric-drift" in rules(result)


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_a_file_with_a_frozen_batch_is_named(name):
    error = error_of(judged(export=functools.partial(export, frozen=[name])))
    assert error.rule == "baked-shape"
    assert f"on 'batch=3', {name} fails: " in error.message


def test_each_file_must_have_the_opset():
    error = error_of(judged(export=functools.partial(export, opsets={"decode": 16})))
    assert (error.rule, error.message) == (
        "opset-mismatch",
        "decode: opset 17 was requested, but the file is written at opset 16",
    )


def test_each_file_must_be_what_is_required():
    messages = [each.message for each in judged(operators=["Gemm"]).findings if each.rule == "unlisted-operator"]
    assert [message.split(": ")[0] for message in messages] == ["decode", "prefill"]


# --- what the functions do wrong ----------------------------------------------------------------------------------------


def raising(files, tokens):
    return files["decode"](tokens=tokens)["next"] + files["prefill"]["next"]


def without_state(files, tokens):
    return files["prefill"](tokens=tokens)["scores"]


def two(files, tokens):
    return generate(files, tokens), tokens


@pytest.mark.parametrize(
    ("run_files", "message"),
    [
        (raising, "on 'example', decode fails: "),
        (without_state, "on 'example', prefill fails: "),
        (lambda files, tokens: files["encode"](tokens), "on 'example', run_files raised KeyError: 'encode' (tests/engine/"),
        (two, "on 'example', run_files returned 2 tensors, and the model returns 1"),
    ],
)
def test_a_function_that_cannot_run_the_files_is_an_error_at_its_line(run_files, message):
    error = error_of(judged(run_files=run_files))
    assert error.rule == "run-error"
    assert message in error.message


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned None instead of the files by name, which run_files runs"),
        ({}, "returned an empty dictionary instead of the files by name"),
        ({"decode/1": onnx.ModelProto()}, "returned a file with the name 'decode/1'; use letters"),
        ({"decode": 7}, "returned a int instead of a model for 'decode'"),
    ],
)
def test_an_export_without_files_by_name_is_an_error(returned, message):
    error = error_of(judged(export=lambda model, args, kwargs, opset, path: returned))
    assert error.rule == "export-error"
    assert message in error.message
    assert error.remedy.startswith("Return each file by name")


# --- kept files and baselines -------------------------------------------------------------------------------------------


def test_kept_files_can_be_verified(tmp_path):
    declared = recipe()
    kept = run_one(declared, opsets=17, artifacts=tmp_path).artifact
    assert kept == str(tmp_path / "decoder" / "opset17-cpu-custom")
    assert onnx_ci.verify(kept, declared).status is Status.PASSED
    run_one(declared, opsets=17, artifacts=tmp_path)  # replaces them
    shutil.copy(tmp_path / "decoder/opset17-cpu-custom/decode.onnx", tmp_path / "decoder/opset17-cpu-custom/prefill.onnx")
    assert rules(onnx_ci.verify(kept, declared)) == ["run-error"]


def test_one_of_several_files_is_not_verified_alone(tmp_path):
    file = tmp_path / "decode.onnx"
    file.touch()
    with pytest.raises(onnx_ci.ConfigurationError, match="the recipe 'decoder' has several files: give the folder"):
        onnx_ci.verify(file, recipe())
