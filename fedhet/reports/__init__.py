"""What many runs say together: reading, statistics, tables, figures, a page."""
