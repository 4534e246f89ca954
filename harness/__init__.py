"""Attackers and sandboxes that tests and benchmarks share: killers of drivers, and real daemons on
loopback.
"""
