"""The search against its rivals on made-up spaces of flags and recorded tables (docs/search.md)."""
