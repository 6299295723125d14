"""The client half of every method: what is received, trained, sent up and used for inference."""
