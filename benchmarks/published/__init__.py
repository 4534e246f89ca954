"""Step times that others published, held against predictions of the same configurations."""
