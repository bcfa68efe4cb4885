"""The verdicts of earlier runs, and whether they still hold. Imported by the engine; needs no torch."""
