"""The one training loop, its step, losses, augmentation."""
