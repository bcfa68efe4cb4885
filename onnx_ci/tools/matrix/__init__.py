"""Recipes and settings in, the jobs of a GitHub ``strategy.matrix`` out: the command ``matrix``."""
