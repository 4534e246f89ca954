"""Other people's programs: a first look at one, how its steps are read, and the study written for it."""
