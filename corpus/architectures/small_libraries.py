"""Libraries of a single purpose: structured prediction, sparse attention, flows, tabular data and sequences."""

import functools

import torch

import onnx_ci

SEEN = "torch 2.13.0"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
SERIES = {0: "batch", 1: "time"}


class Likelihood(torch.nn.Module):
    """The log-likelihood of tags in a conditional random field."""

    def __init__(self):
        import torchcrf

        super().__init__()
        self.field = torchcrf.CRF(5, batch_first=True)

    def forward(self, emissions, tags, mask):
        return self.field(emissions, tags, mask, reduction="none")


@onnx_ci.recipe(
    input_names=["emissions", "tags", "mask"],
    output_names=["likelihood"],
    dynamic_axes={name: {0: "batch"} for name in ("emissions", "tags", "mask", "likelihood")},
    inputs={"tags": onnx_ci.integers(0, 5), "mask": onnx_ci.mask(min_true=1, starts_with=True)},
    expect={"dynamo": wrong("export-error", "pytorch-crf checks the values of the mask")},
    tags=["torchcrf"],
)
def random_field():
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    return Likelihood(), (torch.randn(2, 7, 5), torch.randint(5, (2, 7)), mask)


@onnx_ci.recipe(
    each={"Entmax15": {}, "Sparsemax": {}},
    input_names=["scores"],
    output_names=["probabilities"],
    dynamic_axes={"scores": {0: "batch", 1: "classes"}, "probabilities": {0: "batch", 1: "classes"}},
    tags=["entmax"],
)
def sparse_softmax(case):
    import entmax

    return getattr(entmax, case)(dim=-1), (torch.randn(2, 16),)


class MaskedConformer(torch.nn.Module):
    """A block that gets its mask by position."""

    def __init__(self):
        import conformer

        super().__init__()
        self.block = conformer.ConformerBlock(dim=32, dim_head=8, heads=4, conv_kernel_size=7)

    def forward(self, frames, mask):
        return self.block(frames, mask=mask)


@onnx_ci.recipe(
    input_names=["frames", "mask"],
    output_names=["features"],
    dynamic_axes={"frames": SERIES, "mask": SERIES, "features": SERIES},
    inputs={"mask": onnx_ci.mask(min_true=1)},
    tags=["conformer"],
)
def conformer_block():
    return MaskedConformer(), (torch.randn(2, 16, 32), torch.arange(16) < torch.tensor([[16], [9]]))


@onnx_ci.recipe(
    input_names=["series"],
    output_names=["features"],
    dynamic_axes={"series": {0: "batch", 2: "time"}, "features": {0: "batch", 2: "time"}},
    tags=["pytorch_tcn"],
)
def temporal_convolution():
    import pytorch_tcn

    return pytorch_tcn.TCN(8, [16, 16], kernel_size=3, causal=True), (torch.randn(2, 8, 16),)


class Density(torch.nn.Module):
    """The log-density of a neural spline flow, given a context."""

    def __init__(self):
        import zuko

        super().__init__()
        self.flow = zuko.flows.NSF(4, 3, transforms=2, hidden_features=(16, 16))

    def forward(self, x, context):
        return self.flow(context).log_prob(x)


@onnx_ci.recipe(
    input_names=["x", "context"],
    output_names=["log_density"],
    dynamic_axes={"x": {0: "batch"}, "context": {0: "batch"}, "log_density": {0: "batch"}},
    tags=["zuko"],
)
def spline_flow():
    return Density(), (torch.randn(2, 4), torch.randn(2, 3))


@onnx_ci.recipe(
    input_names=["numbers"],
    output_names=["embeddings"],
    dynamic_axes={"numbers": {0: "batch"}, "embeddings": {0: "batch"}},
    tags=["rtdl_num_embeddings"],
)
def piecewise_linear():
    import rtdl_num_embeddings

    bins = rtdl_num_embeddings.compute_bins(torch.randn(200, 4), n_bins=6)
    return rtdl_num_embeddings.PiecewiseLinearEmbeddings(bins, 8, activation=True, version="B"), (torch.randn(2, 4),)


class Perceiver(torch.nn.Module):
    """Perceiver IO, which gets its queries by position."""

    def __init__(self):
        import perceiver_pytorch

        super().__init__()
        sizes = {"dim": 16, "queries_dim": 16, "logits_dim": 10, "depth": 2, "num_latents": 8, "latent_dim": 32}
        heads = {"cross_heads": 1, "latent_heads": 4, "cross_dim_head": 16, "latent_dim_head": 8}
        self.perceiver = perceiver_pytorch.PerceiverIO(**sizes, **heads)

    def forward(self, features, queries):
        return self.perceiver(features, queries=queries)


@onnx_ci.recipe(
    input_names=["features", "queries"],
    output_names=["logits"],
    dynamic_axes={"features": SERIES, "queries": {0: "queries"}, "logits": {0: "batch", 1: "queries"}},
    tags=["perceiver_pytorch"],
)
def perceiver_io():
    return Perceiver(), (torch.randn(2, 16, 16), torch.randn(6, 16))
