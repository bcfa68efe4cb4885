"""Reasons for known failures that recipes of more than one library give."""

NOT_CONTIGUOUS = (
    "dynamo takes the output of attention for contiguous, and cannot view it in another shape when it decomposes the graph"
)
NO_ADAPTIVE_POOLING = "adaptive average pooling of an image whose size is dynamic"
