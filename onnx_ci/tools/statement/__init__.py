"""Statements that travel with a file: what was judged, how, and with which result."""
