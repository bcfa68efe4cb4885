"""Sizes that vary from call to call: how they are declared, named and computed with."""
