"""Where the runtime or the file format is the limit, not the exporter."""
