"""What may be set: the catalogue, what the installed build says of it, and the search space."""
