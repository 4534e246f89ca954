"""Holds the search to its rivals on made-up spaces of flags and on recorded tables; see
docs/search.md.
"""
