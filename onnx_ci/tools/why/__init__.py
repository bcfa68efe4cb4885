"""A failing cell or a wrong file in, where it goes wrong out, node by node: the command ``why``, which shows rules, too."""
