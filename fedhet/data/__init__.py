"""Images and who holds them: sources, the memory-mapped cache and the partitions to clients."""
