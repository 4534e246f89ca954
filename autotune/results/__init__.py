"""What was found: winners, exports, reports, comparisons, and what notebooks see."""
