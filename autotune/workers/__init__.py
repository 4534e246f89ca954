"""Worker processes that run a program under a flag set, and how they failed."""
