"""Baselines: committed files with the accepted facts about each export, and the comparison of results with them.

Imported by the engine, the report and the front-ends.
"""
