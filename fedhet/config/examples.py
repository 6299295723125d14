"""The examples of fedhet's source, by name: what somebody means who gives one as a preset.

They lie in ``examples/`` of a checkout; an installed package has none.
"""

from fedhet import layout

KEYS = {  # what runs it, in its own folder
    "fedrep": "quickstart method=fedrep:METHOD models=cnn-5",
    "own_rows": "kinds/table data-path=FILE.csv models=own_rows:deep,own_rows:wide",
    "own_words": "kinds/texts data-path=FILE.csv models=own_words:make",
    "shapes": "quickstart dataset=shapes:load",
    "tiny_net": "quickstart models=tiny_net:make",
}


def hint(name: str) -> str:
    """How to run the example of that name; empty if it is none."""
    name = name.removesuffix(".py")
    if name in KEYS:
        folder = layout.HERE.parent / "examples"
        found = (folder / f"{name}.py").is_file()
        place = f"in '{folder}'" if found else f"with examples/{name}.py of fedhet's source beside"
        return f"an example: {place} give `fedhet run {KEYS[name]}`"
    return ""
