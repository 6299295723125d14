"""Watching runs and sweeps while they go on, from the files in their folders alone.

A page on 127.0.0.1 or lines in a terminal. Whose folder it is does not matter: nothing of it is
imported or executed, nothing in it is written, and what is read keeps :mod:`fedhet.reading`'s
bounds.
"""
