"""Settings: the catalogue, the installed build's answers, checks, and the search space."""
