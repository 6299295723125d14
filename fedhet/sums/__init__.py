"""Secure sum: the server learns the sum of what clients send, and nothing of one of them.

Masks cancel in pairs (Bonawitz et al. 2017, ACM CCS; Bell et al. 2020, ACM CCS). What stands here
knows no method and no Flower object: texts, numbers, bytes and vectors go in and out.
"""
