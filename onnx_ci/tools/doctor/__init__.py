"""Installed packages and settings in, what prevents cells from running here out: the command ``doctor``."""
