"""Everything that touches the operating system: SuperLink, processes, preflight, signals."""
