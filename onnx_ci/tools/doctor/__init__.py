"""What is installed here in, what keeps cells from running out, each with its remedy: the command ``doctor``."""
