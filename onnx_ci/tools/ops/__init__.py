"""Recipes in, a table out of which operators each exporter writes at which opset: the command ``ops``."""
