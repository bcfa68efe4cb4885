"""The exporter of transformers for its own models, which recipes name as ``transformers``."""
