"""Reading and writing elements by index."""
