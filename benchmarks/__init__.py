"""Programs that measure; each prints one machine-readable line (JSON)."""
