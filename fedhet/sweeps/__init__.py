"""Grids of runs: their cells, how these are run side by side, tuning, FLOPs."""
