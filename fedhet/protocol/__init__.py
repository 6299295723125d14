"""What crosses the wire: payloads, messages, mail, handshake, roster, checks."""
