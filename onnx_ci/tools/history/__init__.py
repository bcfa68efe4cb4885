"""Commits of the baselines in, what each of them changed out: the command ``history`` and its page with plots."""
