"""Attackers and sandboxes of tests and benchmarks: killers of drivers, daemons on loopback."""
