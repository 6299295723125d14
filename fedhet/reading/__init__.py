"""The one reader of each kind of file and message; nothing else in fedhet parses (a test)."""
