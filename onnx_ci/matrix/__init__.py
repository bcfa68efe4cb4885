"""Recipes and settings in, the ordered cells of a run out, each with the values that apply to it.

Any later room may import this one.
"""
