"""One client's side: its data, its state, the noise that it adds, and what its site allows."""
