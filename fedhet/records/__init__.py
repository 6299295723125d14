"""What a run leaves behind: run folder, ledger, hash chain, checkpoint."""
