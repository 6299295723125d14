"""The server half of every method: how uploads are combined and what is sent down."""
