"""Keys of a run with their checks and messages, presets, and methods by name."""
