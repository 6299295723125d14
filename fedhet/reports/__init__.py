"""Compare many runs: reading, statistics, tables, figures, a page."""
