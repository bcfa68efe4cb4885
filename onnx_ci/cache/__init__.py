"""Verdicts of finished cells, stored in a folder under a key made of everything they depend on. Imported by the engine."""
