"""Remedies that were tried: a failing cell goes in, and out comes what passes the whole gate, such as a changed line.

A remedy is another opset or exporter, an option of the exporter, or a known rewrite of a line that the failure names. Files of
the project are only changed by the command line, and only on request.
"""
