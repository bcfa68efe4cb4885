"""What is done for a cell; each step is a package, and none imports a later one.

In order: model, trace, reference, domains, inputs and prepare; export and post_export; contract, run and compare, which
:mod:`.judge` puts in this order for one file; locate.
"""
