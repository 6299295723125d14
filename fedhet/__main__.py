"""``python -m fedhet`` is ``fedhet``."""

from fedhet.cli import main

main()
