"""What pyproject.toml cannot say: strategies/, clients/ and configs/ are packages inside fedhet."""

import sys
import tempfile

from setuptools import find_namespace_packages, setup

INSIDE = ("strategies", "clients", "configs")


def found(top: str) -> list[str]:
    """Return a package and everything in it, folders of templates and presets included."""
    return list(find_namespace_packages(include=[top, f"{top}.*"]))


packages = found("fedhet")
folders = {"": "."}
# An editable install is a line on the path, and fedhet/__init__.py finds the three beside it. With
# names for them setuptools would make an import hook, which comes after the path: then any folder
# called `fedhet` in the working folder, such as a checkout, hides the package.
if "editable_wheel" not in sys.argv:
    packages += [f"fedhet.{name}" for top in INSIDE for name in found(top)]
    folders |= {f"fedhet.{top}": top for top in INSIDE}

# Built elsewhere: a build/ of before would bring files that are gone into the wheel.
with tempfile.TemporaryDirectory() as made:
    setup(packages=packages, package_dir=folders, options={"build": {"build_base": made}})
