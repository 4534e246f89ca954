"""Results: winners, exports, library, comparisons, reports, and the notebook interface."""
