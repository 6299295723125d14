"""What crosses the wire: payloads, messages, handshake, checks; Flower's private names."""
