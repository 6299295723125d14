"""Dataset ``texts``: CSV or Parquet files with a column of texts; words are hashed to token ids.

A hash needs no vocabulary that somebody would have to collect from everybody's texts: the same
word has the same id everywhere. Id 0 is for padding.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedhet.data.data_file import (
    Chunk,
    Classes,
    Content,
    DataFile,
    Reading,
    Sites,
    Stream,
    need,
)
from fedhet.data.image_source import Shape
from fedhet.data.inputs import TOKENS, Inputs
from fedhet.data.row_files import ROW_SUFFIXES, find_files, open_rows
from fedhet.data.table import keys, stored_chunks
from fedhet.reading.columns import Piece, RowFile

_WORD = re.compile(r"\w+|[^\w\s]")


def token_ids(texts: Sequence[str], inputs: Inputs) -> npt.NDArray[np.int32]:
    """(k, l) int32: the first l words of every text in lower case, 1 + CRC-32 mod (V - 1) each."""
    found = inputs.zeros(len(texts))
    length = inputs.shape[0]
    for row, text in zip(found, texts, strict=True):
        for place, word in enumerate(_WORD.finditer(text.lower())):
            if place == length:
                break
            row[place] = 1 + zlib.crc32(word[0].encode()) % (inputs.vocabulary - 1)
    return found


@dataclass(frozen=True)
class Texts(DataFile):
    """Texts, with the target and the sites."""

    dataset = "texts"

    def listing(self, shape: Shape, classes: tuple[str, ...]) -> Stream:
        """The texts in the file's order."""
        del shape
        return self.rows(open_rows(self.paths), classes)

    def rows(self, file: RowFile, classes: tuple[str, ...]) -> Stream:
        """The texts of a file, in its order."""
        reading = self.reading
        need(file.columns, [reading.text], "text", file.where)
        need(file.columns, [reading.target], "target", file.where)
        need(file.columns, reading.site, "site", file.where)
        inputs = Inputs(TOKENS, (reading.length,), reading.vocabulary, (reading.text,))
        targets, sites = Classes(reading, classes), Sites()
        empty = 0

        def tokens(piece: Piece) -> Chunk:
            nonlocal empty
            found = token_ids(piece.texts(reading.text), inputs)
            empty += int((found[:, 0] == 0).sum())
            return found

        def content() -> Content:
            labels, names = targets.done()
            warnings = (f"{empty} texts have no word",) if empty else ()
            return Content(inputs, labels, names, *sites.done(), warnings)

        pieces = file.pieces(keys(reading, [reading.text]))
        return Stream(stored_chunks(pieces, reading, targets, sites, tokens), content)


def open_texts(data_path: str, reading: Reading) -> Texts:
    """The source at ``data_path``; UserError for no file."""
    return Texts(find_files("texts", data_path, ROW_SUFFIXES), reading)
