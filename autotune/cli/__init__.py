"""Command line: parsing and printing."""
