"""Recommenders of DeepCTR-Torch and TabNet, for tables of categories and numbers."""

import functools

import torch
from _libraries import import_after_torchvision, import_deepctr

import onnx_ci

SEEN = "torch 2.13.0, deepctr_torch 0.3.0"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
SUPPORT = wrong("export-error", "the optimizer of onnxscript fails on the file of its sparse softmax")
KNOWN = {"tabnet_entmax": {"expect": {"dynamo": SUPPORT}}, "tabnet_sparsemax": {"expect": {"dynamo": SUPPORT}}}
"""What is known to fail, by case."""

HIDDEN = {"dnn_hidden_units": (16, 8)}
MODELS = {
    "afm": ("AFM", {"attention_factor": 4}),
    "afn": ("AFN", {"ltl_hidden_size": 8, "afn_dnn_hidden_units": (8,)}),
    "autoint": ("AutoInt", {**HIDDEN, "att_layer_num": 2}),
    "ccpm": ("CCPM", {"conv_kernel_width": (3, 2), "conv_filters": (2, 2), "dnn_hidden_units": (8,)}),
    "dcn": ("DCN", {**HIDDEN, "cross_parameterization": "matrix"}),
    "dcn_mix": ("DCNMix", {**HIDDEN, "low_rank": 4, "num_experts": 2}),
    "deepfm": ("DeepFM", HIDDEN),
    "difm": ("DIFM", {**HIDDEN, "att_head_num": 2}),
    "fibinet": ("FiBiNET", HIDDEN),
    "nfm": ("NFM", HIDDEN),
    "onn": ("ONN", HIDDEN),
    "pnn": ("PNN", {**HIDDEN, "use_outter": True}),
    "wide_deep": ("WDL", {**HIDDEN, "dnn_use_bn": True, "dnn_activation": "prelu"}),
    "xdeepfm": ("xDeepFM", {**HIDDEN, "cin_layer_size": (8, 8)}),
}
CATEGORIES = 3
VALUES = 7
"""The number of values of each category."""


class OfTypes(torch.nn.Module):
    """A recommender, which takes one matrix of floats, with an input of its own for the categories."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, categories, numbers):
        return self.model(torch.cat([categories.float(), numbers], dim=1))


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in MODELS},
    input_names=["categories", "numbers"],
    output_names=["probability"],
    dynamic_axes={name: {0: "batch"} for name in ("categories", "numbers", "probability")},
    inputs={"categories": onnx_ci.integers(0, VALUES)},
    tags=["deepctr_torch", "recommender"],
)
def recommender(case):
    library = import_deepctr()
    name, options = MODELS[case]
    categories = [library.inputs.SparseFeat(f"category_{at}", VALUES, embedding_dim=4) for at in range(CATEGORIES)]
    columns = [*categories, *(library.inputs.DenseFeat(f"number_{at}", 1) for at in range(2))]
    deep = categories if case in ("afm", "ccpm") else columns
    wide = [] if case == "pnn" else [columns]
    model = getattr(library.models, name)(*wide, deep, **options, init_std=0.1)
    return OfTypes(model), (torch.randint(0, VALUES, (4, CATEGORIES)), torch.randn(4, 2))


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in ("tabnet_sparsemax", "tabnet_entmax")},
    input_names=["columns"],
    output_names=["logits"],
    dynamic_axes={"columns": {0: "batch"}, "logits": {0: "batch"}},
    tags=["pytorch_tabnet", "table"],
)
def table(case):
    networks = import_after_torchvision("pytorch_tabnet.tab_network")
    model = networks.TabNetNoEmbeddings(
        8,
        3,
        n_d=4,
        n_a=4,
        n_steps=2,
        n_independent=1,
        n_shared=1,
        mask_type=case.partition("_")[2],
        group_attention_matrix=torch.eye(8),
    )
    return onnx_ci.adapt(model, outputs=lambda made: made[0]), (torch.randn(4, 8),)
