"""The settings of a project in, each with where it comes from out: the command ``config``."""
