"""The GitHub Actions: the gate, and what publishes its verdict. Only ``action.py`` imports it."""
