"""Source ``image-folder``: ``<root>/<class>/<image>``, as a directory or as a zip of it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedhet.data.decode import decode_all, open_zip
from fedhet.data.image_source import Listing, Losses, Shape
from fedhet.errors import UserError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


@dataclass(frozen=True)
class _Tree:
    """Class folders and files below the root; paths are relative, with ``/``."""

    classes: tuple[str, ...]
    images: tuple[str, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class ImageFolder:
    """A directory of class folders, or a zip of one; ``path`` is absolute and exists."""

    path: Path

    def fingerprint(self) -> list[object]:
        """Return the zip's size and time, or those of every file of the directory."""
        if not self.path.is_dir():
            stat = self.path.stat()
            return ["image-folder", str(self.path), stat.st_size, stat.st_mtime_ns]
        tree = _scan_directory(self.path)
        files: list[object] = []
        try:
            for name in tree.images:
                stat = (self.path / name).stat()
                files.append([name, stat.st_size, stat.st_mtime_ns])
        except OSError as error:
            raise UserError(f"data-path {self.path}: {error.strerror}: {name}") from error
        return ["image-folder", str(self.path), list(tree.classes), list(tree.ignored), files]

    def extent(self) -> tuple[int, int]:
        """Return the numbers of images and of class folders by their names; no image is opened.

        Raises:
            UserError: no zip, or a folder that cannot be read.

        """
        tree, _ = self._scan()
        return len(tree.images), len(tree.classes)

    def _scan(self) -> tuple[_Tree, str]:
        """Return the tree, and the prefix that its paths have inside a zip."""
        return (_scan_directory(self.path), "") if self.path.is_dir() else _scan_zip(self.path)

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Listing:
        """Images ordered by label, then by file name, the same for a directory and its zip.

        Raises:
            UserError: no zip, no class folders, or a folder that is not in ``classes``.

        """
        tree, prefix = self._scan()
        if not tree.images:
            raise UserError(
                f"data-path {self.path}: no images found; expected <class>/<image> with one of "
                + " ".join(sorted(SUFFIXES))
            )
        names = classes or tree.classes
        label_of = {name: label for label, name in enumerate(names)}
        for folder in tree.classes:
            if folder not in label_of:
                raise UserError(
                    f"data-path {self.path}: folder {folder!r} is not one of the classes "
                    f"({_shorten(names)})"
                )
        order = sorted(tree.images, key=lambda path: (label_of[_folder_of(path)], path))
        lost = Losses()
        return Listing(
            classes=names,
            paths=tuple(order),
            labels=np.array([label_of[_folder_of(path)] for path in order], dtype=np.int64),
            images=decode_all(self.path, [prefix + path for path in order], shape, lost),
            losses=lost,
            ignored=tree.ignored,
            keep_empty=bool(classes),
        )


def open_image_folder(data_path: str) -> ImageFolder:
    """Return the source at ``data_path``.

    Raises:
        UserError: the path is empty or does not exist.

    """
    if not data_path:
        raise UserError(
            "data-path is empty: dataset image-folder needs the folder (or the zip of it) "
            "that holds <class>/<image>"
        )
    try:
        path = Path(data_path).expanduser().resolve()
    except RuntimeError as error:
        raise UserError(f"data-path {data_path}: links that lead to each other") from error
    if not path.exists():
        raise UserError(f"data-path {data_path}: no such file or directory")
    return ImageFolder(path)


def _folder_of(path: str) -> str:
    return path.split("/", 1)[0]


def _shorten(names: Sequence[str], limit: int = 10) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _scan_directory(root: Path) -> _Tree:
    """Two levels only: a wrong path such as ``/`` must not walk a whole disk."""
    classes: list[str] = []
    images: list[str] = []
    ignored: list[str] = []
    try:
        top = sorted(entry.name for entry in os.scandir(root) if not _is_hidden(entry.name))
        for folder in top:
            if not (root / folder).is_dir():
                ignored.append(folder)
                continue
            classes.append(folder)
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    if _is_hidden(entry.name):
                        continue
                    is_image = _is_image(entry.name) and entry.is_file()
                    (images if is_image else ignored).append(f"{folder}/{entry.name}")
    except OSError as error:
        raise UserError(f"data-path {root}: {error.strerror}: {error.filename}") from error
    return _Tree(tuple(classes), tuple(sorted(images)), tuple(sorted(ignored)))


def _scan_zip(path: Path) -> tuple[_Tree, str]:
    """Return the tree and the prefix (``""`` or ``"top/"``) that its paths have inside the zip."""
    with open_zip(path) as archive:
        names = [name for name in dict.fromkeys(archive.namelist()) if not _hidden_path(name)]
    prefix = _top_folder(names)
    classes: set[str] = set()
    images: list[str] = []
    ignored: list[str] = []
    for name in names:
        inner = name[len(prefix) :] if name.startswith(prefix) else ""
        parts = inner.rstrip("/").split("/")
        if name.endswith("/"):
            if inner and len(parts) == 1:
                classes.add(parts[0])
        elif inner and len(parts) == 2 and _is_image(inner):
            classes.add(parts[0])
            images.append(inner)
        else:
            if inner and len(parts) > 1:
                classes.add(parts[0])
            ignored.append(inner or name)
    return _Tree(tuple(sorted(classes)), tuple(sorted(images)), tuple(sorted(ignored))), prefix


def _hidden_path(name: str) -> bool:
    return any(_is_hidden(part) for part in name.split("/"))


def _top_folder(names: Sequence[str]) -> str:
    """``"top/"`` when every image lies in ``top/<class>/``, else nothing."""
    images = [name.split("/") for name in names if _is_image(name)]
    tops = {parts[0] for parts in images}
    if len(tops) == 1 and all(len(parts) > 2 for parts in images):
        return f"{tops.pop()}/"
    return ""
