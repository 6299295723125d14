"""The one training loop, its step and optimisers, losses, metrics."""
