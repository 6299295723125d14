"""Where a run is started, and where its clients run: the grid, its executors, signals."""
