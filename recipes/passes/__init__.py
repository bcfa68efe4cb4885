"""What happens to a file after the export, before it ships: each pass's file is judged as a cell of its own."""
