"""The stages of a study, in order."""
