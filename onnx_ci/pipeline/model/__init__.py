"""A recipe in; its model and the arguments of one call out, on the device of the cell, with copies for every use.

The room also knows what models take and return, and what a recipe changes in its process. Every later stage imports it.
"""
