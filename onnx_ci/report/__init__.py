"""Renders a finished :class:`RunReport` as text, Markdown, HTML or tables, without deciding anything.

Imported by the front-ends.
"""
