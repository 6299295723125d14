"""``fedhet watch``: one run or sweep while it goes on, from the files of its folder alone."""
