"""Equivariant operations of e3nn."""

import torch
from _libraries import import_after_torchvision

import onnx_ci

VECTORS = {0: "points"}


@onnx_ci.recipe(
    each={case: {} for case in ("norms", "spherical_harmonics")},
    input_names=["vectors"],
    output_names=["features"],
    dynamic_axes={"vectors": VECTORS, "features": VECTORS},
    tags=["e3nn", "equivariant"],
)
def of_vectors(case):
    o3 = import_after_torchvision("e3nn.o3")
    model = o3.Norm("2x1o") if case == "norms" else o3.SphericalHarmonics([0, 1, 2], normalize=True)
    return model, (torch.randn(5, 6 if case == "norms" else 3),)


@onnx_ci.recipe(
    input_names=["left", "right"],
    output_names=["product"],
    dynamic_axes=dict.fromkeys(("left", "right", "product"), VECTORS),
    tags=["e3nn", "equivariant"],
)
def tensor_product():
    o3, irreps = import_after_torchvision("e3nn.o3"), "8x0e+4x1o"
    return o3.FullyConnectedTensorProduct(irreps, "1x0e+1x1o", irreps), (torch.randn(5, 20), torch.randn(5, 4))
