"""Recipes that take their process down, or change it: each costs its own cells, and nobody else anything."""
