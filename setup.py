"""What pyproject.toml cannot say: strategies/, clients/ and configs/ are packages inside fedhet."""

from setuptools import find_namespace_packages, setup

INSIDE = ("strategies", "clients", "configs")


def found(top: str) -> list[str]:
    """A package and everything in it, folders of templates and presets included."""
    return list(find_namespace_packages(include=[top, f"{top}.*"]))


setup(
    packages=[*found("fedhet"), *(f"fedhet.{name}" for top in INSIDE for name in found(top))],
    package_dir={f"fedhet.{top}": top for top in INSIDE},
)
