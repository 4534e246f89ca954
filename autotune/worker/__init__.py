"""Programs that run under one flag set; started by a launcher, imported by nobody."""
