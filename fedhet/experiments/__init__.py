"""What many runs say together: statistics, figures, a report."""
