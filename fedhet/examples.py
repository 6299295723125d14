"""The examples of fedhet's source, by name: what somebody means who gives one as a preset.

They lie in ``examples/`` of a checkout; an installed package has none.
"""

from fedhet import layout

KEYS = {  # what runs it, in its own folder
    "fedrep": "method=fedrep:METHOD models=cnn-5",
    "shapes": "dataset=shapes:load",
    "tiny_net": "models=tiny_net:make",
}


def hint(name: str) -> str:
    """How to run the example of that name; empty if it is none."""
    name = name.removesuffix(".py")
    if name in KEYS:
        folder = layout.HERE.parent / "examples"
        found = (folder / f"{name}.py").is_file()
        place = f"in '{folder}'" if found else f"with examples/{name}.py of fedhet's source beside"
        return f"an example: {place} give `fedhet run quickstart {KEYS[name]}`"
    return ""
