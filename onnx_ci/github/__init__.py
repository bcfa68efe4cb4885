"""The GitHub Action. Only ``action.py`` imports it."""
