"""Files of other programs, and images that a table lists: read, or named with what to do."""

import io

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedhet.data.cache import open_dataset
from fedhet.data.inputs import Reading
from fedhet.errors import UserError
from fedhet.site.local_data import load_dataset

FRAME = pd.DataFrame({"site": list("abab") * 15, "age": range(20, 80), "ill": [0, 1, 1, 0] * 15})
CSV = FRAME.to_csv(index=False).encode()
READING = Reading(target="ill", site=("site",))
ARFF = "@relation r\n@attribute site {a,b}\n@attribute age numeric\n@attribute ill {0,1}\n@data\n"


WRITERS = {
    "p.xlsx": lambda path: FRAME.to_excel(path, index=False),
    "t.xlsx": lambda path: pd.DataFrame([["A title"], [], [*FRAME], *FRAME.values]).to_excel(
        path, index=False, header=False
    ),
    "p.dta": lambda path: FRAME.to_stata(path, write_index=False),
    "p.feather": FRAME.to_feather,
    "p.parquet": lambda path: FRAME.set_axis(range(7, 67)).to_parquet(path),  # no feature
    "p.arff": lambda path: path.write_text(ARFF + FRAME.to_csv(index=False, header=False)),
    "p.jsonl": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "p.json": lambda path: FRAME.to_json(path, orient="records"),
    "p.svm": lambda path: path.write_text(
        "".join(f"{ill} 1:{age}{' 2:1' * (site == 'b')}\n" for site, age, ill in FRAME.values)
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_of_another_program_is_the_csv_of_the_same_rows(tmp_path, opened, name):
    WRITERS[name](tmp_path / name)
    svm = name == "p.svm"  # which has numbers alone, and no names
    data = opened(None, Reading(target="label", site=("x2",)) if svm else READING, name)
    assert np.array_equal(data.examples, np.arange(20, 80)[:, None])
    assert data.labels.tolist() == FRAME.ill.tolist() and len(data.site_names) == 2


def test_one_sheet_of_several_is_named(tmp_path, opened):
    with pd.ExcelWriter(tmp_path / "p.xlsx") as writer:
        for sheet in ("north", "south"):
            FRAME.to_excel(writer, sheet_name=sheet, index=False)
    with pytest.raises(UserError, match=r"several sheets, north \(60 rows\), south .*give sheet="):
        opened(None, READING, "p.xlsx")
    data = opened(None, Reading(target="ill", sheet="south"), "p.xlsx")
    assert "sheet 'south' is read, and not: north" in " ".join(data.notes)


NAMED = {  # first bytes of a file, and the format that is named
    "p.dcm": (b"\0" * 128 + b"DICM", "DICOM"), "p.nii": (b"\0" * 344 + b"n+1\0", "NIfTI"),
    "p.csv.zip": (b"PK", "an archive: unpack it"), "p.tsv": (b"BZh", "an archive: unpack it"),
    "p.pkl": (b"\x80\x04\x95", "a pickle"), "p.parquet": (b"PAR1", "not a valid Parquet file"),
    "p.csv": (b"\x00\x01\xff" * 99, "a file of an unknown format"),
    "p.mat": (b"MATLAB 5.0 MAT-file", "a file of MATLAB: scipy.io.loadmat"),
    "p.ts": (b"# of a clinic\n@problemName X\n", "a file of sktime: save windows"),
    "p.arff": (b"@relation r\n@attribute b relational\n", "a relational ARFF: save windows"),
    "p.sav": (b"$FL2", "a file of SPSS .*pyreadstat.*: save its rows as CSV"),
    "p.sas7bdat": (b"\0" * 32, "not readable as a file of SAS .*save its rows as CSV"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_what_is_not_read_is_named_and_never_taken_for_text(tmp_path, opened, name):
    head, what = NAMED[name]
    with pytest.raises(UserError, match=what) as error:
        opened(head + bytes(99), READING, name)
    assert "utf-16" not in str(error.value)


def test_a_folder_of_scans_of_another_format_is_named(tmp_path, opened):
    (tmp_path / "in" / "ill").mkdir(parents=True)
    (tmp_path / "in" / "ill" / "1").write_bytes(NAMED["p.dcm"][0])
    with pytest.raises(UserError, match="in/ill/1: this is DICOM: convert the images to PNG"):
        opened(None, Reading(), "in", "image-folder")


def photo(k):
    data = io.BytesIO()
    Image.new("RGB", (8, 8), (k, 0, 200 * (k % 2))).save(data, "PNG")
    return data.getvalue()


@pytest.mark.parametrize("named", ["{:03}.png", "eyes/{:03}.png", "{:03}", "/data/eyes/{:03}.png"])
def test_images_are_read_by_the_table_beside_them(tmp_path, init, named):
    (tmp_path / "in" / "eyes").mkdir(parents=True)
    for k in range(40):
        (tmp_path / "in" / "eyes" / f"{k:03}.png").write_bytes(photo(k))
    rows = [(named.format(k), k // 2, "ab"[k % 4 // 2], ("ok", "ill")[k % 2]) for k in range(1, 39)]
    lines = [("photo", "patient_id", "clinic", "label"), *rows, ("gone.png", 1, "a", "ok")]
    pd.DataFrame(lines).to_csv(tmp_path / "in" / "labels.csv", index=False, header=False)
    config, printed = init("in")
    assert "1 rows name no image that is there: gone.png" in printed
    assert "2 images are in no row that is used: eyes/000.png, eyes/039.png" in printed
    assert (config.dataset, config.image, config.target) == ("image-folder", "photo", "label")
    assert config.site == ("clinic",) and config.group == ("patient_id",)
    data = load_dataset(config)
    assert data.labels.tolist() == [k % 2 == 0 for k in range(1, 39)]
    assert data.examples[:, 0, 0, 0].tolist() == list(range(1, 39)) and data.grouped


@pytest.mark.parametrize("words", [[], ["image=photo"]])
def test_a_table_most_of_whose_images_are_elsewhere_still_lists_images(tmp_path, init, words):
    for k in range(100, 140):
        (tmp_path / f"{k:03}.png").write_bytes(photo(k))
    rows = "".join(f"{k:03}.png,{k % 7},{('ok', 'ill')[k % 2]}\n" for k in range(140))
    config, printed = init("p.csv", *words, text="photo,age,label\n" + rows)
    assert "100 rows name no image that is there: 000.png" in printed
    assert (config.dataset, config.image) == ("image-folder", "photo")
    assert len(load_dataset(config).labels) == 40


@pytest.mark.parametrize("cell", [bytes, lambda data: {"bytes": data, "path": "x.png"}])
def test_images_inside_parquet_are_decoded(tmp_path, opened, cell):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"image": [cell(photo(k)) for k in range(20)], "label": [0, 1] * 10})
    frame.to_parquet(tmp_path / "train-00000-of-00001.parquet")
    reading = Reading(target="label")
    data = opened(None, reading, "train-00000-of-00001.parquet", "image-folder", image_size=8)
    assert data.examples[:, 0, 0, 0].tolist() == list(range(20)) and len(data.classes) == 2
    with pytest.raises(UserError, match="bytes or lists: image .*dataset=image-folder image=image"):
        open_dataset("table", data_path=str(next(tmp_path.glob("*.parquet"))), reading=reading)


def test_parts_of_one_data_set_are_no_sites(tmp_path, opened):
    (tmp_path / "in").mkdir()
    for name in ("train.csv", "test.csv", "readme.txt"):
        (tmp_path / "in" / name).write_bytes(CSV)
    data = opened(None, Reading(target="ill", ignore=("site",)), "in")
    assert len(data.labels) == 120 and not data.site_names
    notes = " ".join(data.notes)
    assert "parts of one data set, pooled: test.csv, train.csv" in notes
    assert "in the folder and not read: readme.txt" in notes
