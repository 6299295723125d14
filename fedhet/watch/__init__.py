"""``fedhet watch``: show one run or sweep from the files of its folder."""
