"""A project in, its first recipe and workflows out: the command ``init``."""
