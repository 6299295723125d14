"""Who a client is, what it keeps, the noise that it adds."""
