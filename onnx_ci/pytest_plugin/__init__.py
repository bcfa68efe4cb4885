"""The pytest plugin. Imported only by pytest, through its entry point."""
