"""Secure sum: the server learns the sum of what clients send, and nothing of one of them.

Masks cancel in pairs (Bonawitz et al. 2017, ACM CCS; Bell et al. 2020, ACM CCS). ``masks``,
``noise`` and ``contribution`` know neither methods nor Flower; ``client`` and ``server`` do.
"""
