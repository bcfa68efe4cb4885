"""What is done for a cell; each step is a package, and none imports a later one.

In order: model, reference, inputs and prepare; export and post_export; contract, run and compare; reduce and locate.
"""
