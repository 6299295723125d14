"""The readers: what is not allowed is one kind of error with file and place, soon and cheaply."""

import csv
import io
import json
import os
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from fedhet.errors import ReadError, UserError, VerifyError
from fedhet.files import csv_text, quoted, unquoted
from fedhet.reading import structured, tables
from fedhet.reading.bounds import DEPTH, read_bytes
from fedhet.reading.tensors import read_tensors
from fedhet.records.formats import parse_evaluations, read_partition

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
YAML = {
    "nested aliases": (ALIASES, "line 1"),
    "an alias alone": ("a: *b", "line 1"),
    "an anchor": ("x: 1\na: &b 1", "line 2"),
    "a merge of nothing": ("<<: 3", "YAML"),
    "a tag": ("a: !!python/object:os.system x", "line 1"),
    "a tag of YAML's own": ("a: 1\nb: !!int x", "line 2"),
    "ten thousand digits": ("a: " + "9" * 10_000, "digits"),
    "hexadecimal ones": ("a: 0x" + "f" * 10_000, "a"),
    "infinity": ("a: [1, .inf]", "inf"),
    "no number": ("a: {b: .nan}", "a.b"),
    "a day of no month": ("a: 2024-13-45", "month"),
    "a date": ("a: 2024-01-01", "date"),
    "a depth": ("a: " + "[" * 5_000, "deeper"),
    "a depth of blocks": ("".join(f"{' ' * i}a:\n" for i in range(200)), "deeper"),
    "a key twice": ("a: 1\nb: 2\na: 3", "line 3"),
    "a key that is a list": ("? [a]\n: 1", "YAML"),
    "a key that is a number": ("a: {1: 2}", "'1'"),
    "two documents": ("a: 1\n---\nb: 2", "YAML"),
    "half a character": ('a: "\\ud800"', "character"),
    "a control character": ("a: \x01", "YAML"),
}


@pytest.mark.parametrize("kind", YAML)
def test_yaml(tmp_path, kind):
    text, named = YAML[kind]
    path = tmp_path / "x.yaml"
    path.write_text(text)
    begun = time.process_time()  # of a hang: others may have the processor
    tracemalloc.start()
    with pytest.raises(UserError) as error:
        structured.read_yaml(path)
    assert tracemalloc.get_traced_memory()[1] < 20e6 and time.process_time() - begun < 5
    tracemalloc.stop()
    said = str(error.value)
    assert named in said and str(path) in said and len(said) < 1_000 and "\n" not in said


@pytest.mark.parametrize("text", ["6:2:2", "8:1:1", "190:20:30.15", "1" + ":59" * 40_000])
def test_what_yaml_1_1_counts_by_sixties_is_a_text(tmp_path, text):
    """`split: 6:2:2` without quotes; Python's own arithmetic would take minutes for the last."""
    (tmp_path / "x.yaml").write_text(f"a: {text}")
    begun = time.process_time()
    assert structured.read_yaml(tmp_path / "x.yaml") == {"a": text}
    assert time.process_time() - begun < 5


JSON = {
    "a depth": "[" * 100_000,
    "a depth that jiter takes": "[" * 100 + "]" * 100,
    "ten thousand digits": '{"a": ' + "9" * 10_000 + "}",
    "twenty-one digits": '{"a": ' + "9" * 21 + "}",
    "NaN": '{"a": NaN}',
    "infinity": '{"a": [Infinity]}',
    "infinity by digits": '{"a": 1e999}',
    "half a character": '{"a": "\\ud800"}',
    "no end": '{"a": 1',
    "more": '{"a": 1} x',
    "nothing": "",
    "a list": "[1]",
    "null": "null",
    "a number": "1",
}


@pytest.mark.parametrize("kind", JSON)
def test_json_and_lines(tmp_path, kind):
    path = tmp_path / "x.json"
    path.write_text(JSON[kind])
    with pytest.raises(ReadError, match="x.json") as error:
        structured.read_json(path)
    assert isinstance(error.value, VerifyError) and isinstance(error.value, ValueError)
    if JSON[kind]:
        path.write_text('{"b": 1}\n' + JSON[kind] + "\n")
        with pytest.raises(ReadError, match="line 2") as error:
            structured.read_jsonl(path)
        assert len(str(error.value)) < 1_000


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b'{"a": 1,\n"\xff": 2}')
    with pytest.raises(ReadError):
        structured.read_json(path)
    (tmp_path / "table").write_bytes(b"client,a\n\xff,1\n")
    for read, file in ((structured.read_toml, path), (read_partition, tmp_path / "table")):
        with pytest.raises(ReadError, match="line 2 is damaged: not UTF-8"):
            read(file)
    with pytest.raises(UserError, match="line 2: not UTF-8"):
        structured.read_yaml(path)


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(), one, max_size=4),
    max_leaves=20,
))  # fmt: skip
def test_what_is_written_comes_back(value):
    assert structured.parse_json(json.dumps(value)) == value


def test_a_file_is_never_longer_than_its_bound_nor_a_pipe(tmp_path):
    with (tmp_path / "long").open("wb") as file:
        file.truncate(10 * structured.MOST_JSON)  # sparse: no byte of it is on the disk
    with pytest.raises(ReadError, match="longer than"):
        structured.read_json(tmp_path / "long")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ReadError, match="no regular file"):
            read_bytes(path, 10)
    (tmp_path / "short").write_bytes(b"x" * 10)
    assert read_bytes(tmp_path / "short", 10) == b"x" * 10
    assert read_bytes(tmp_path / "short", 2**50, most=3) == b"xxx"  # room for what is there alone
    assert len(read_bytes(tmp_path / "short", 2**50)) == 10
    with pytest.raises(ReadError, match="longer than"):
        read_bytes(tmp_path / "short", 9)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none", 10)


@pytest.mark.parametrize("limit", [131_072, 4 << 20])
def test_a_long_field_is_refused_whatever_python_allows(limit):
    """Whose bound is the process's: a reader of long texts may have raised it."""
    before = csv.field_size_limit(limit)
    try:
        with pytest.raises(ReadError, match="not CSV: .*field"):
            list(tables.rows(["a,b\n", "x" * 200_000 + ",1\n"], "here"))
    finally:
        csv.field_size_limit(before)


HEAD = b"round,client,model,generation,test_accuracy,val_accuracy,other\n"
CLIENTS = {
    "no number": HEAD + b"1,0,cnn-1,1,nan,1.0,\n",
    "infinity": HEAD + b"1,0,cnn-1,1,inf,1.0,\n",
    "ten thousand digits": HEAD + b"9" * 10_000 + b",0,cnn-1,1,1.0,1.0,\n",
    "other digits": HEAD + "٣,0,cnn-1,1,1.0,1.0,\n".encode(),
    "a path as a client": HEAD + b"1,../x,cnn-1,1,1.0,1.0,\n",
    "a field too few": HEAD + b"1,0,cnn-1,1,1.0,1.0\n",
    "JSON that is none": HEAD + b"1,0,cnn-1,1,1.0,1.0,{\n",
    "a long field": HEAD + b"1,0," + b"x" * 200_000 + b",1,1.0,1.0,\n",
    "an open quote": HEAD + b'1,0,"cnn-1,1,1.0,1.0,\n',
    "nulls": HEAD + b"\0" * 20_000 + b"\n",
    "other columns": b"a,b\n1,2\n",
    "bytes": HEAD + b"\xff\n",
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_table(tmp_path, kind):
    with pytest.raises(ReadError, match="line [12]") as error:
        list(parse_evaluations(tmp_path / "clients.csv", CLIENTS[kind]))
    assert "clients.csv" in str(error.value) and len(str(error.value)) < 500


@given(st.text(), st.text())
def test_no_text_in_a_table_of_ours_is_a_formula_and_each_comes_back(one, two):
    for text in (one, f"={one}", f"'{one}", f"@{one}", f"-{one}", "+1", "-1,000.5", "\t="):
        assert unquoted(quoted(text)) == text
        assert quoted(text)[:1] not in {"=", "@", "\t", "\r"}
    assert quoted("-1.5") == "-1.5" and quoted("-2+3") == "'-2+3" and quoted("+cmd|x") == "'+cmd|x"
    _, rows = (
        tables.parse_table(("a,b\n" + csv_text([[one, f"={two}"]])).encode("utf-8"), "x")
        if one.isprintable() and two.isprintable()
        else ([], iter([]))
    )
    for _, row in rows:
        assert row == [one, f"={two}"]


def test_rows_of_a_file_of_a_person_are_as_they_are():
    assert [row for _, row in tables.rows(io.StringIO("'=a,b\n"), "x")] == [["'=a", "b"]]


def header(value, *, length=None, tail=b"") -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + tail


TENSORS = {
    "nothing": b"",
    "a length alone": struct.pack("<Q", 10),
    "a length beyond the file": header({}, length=2**60),
    "no JSON": header(b"x" * 100),
    "a depth": header(b'{"a":' * 200),
    "a tensor beyond the file": header(
        {"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}
    ),
    "a shape of another size": header(
        {"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}}, tail=b"x" * 8
    ),
    "a shape that wraps round": header(
        {"a": {"dtype": "F32", "shape": [2**63, 2, 0], "data_offsets": [0, 0]}}
    ),
    "an unknown dtype": header(
        {"a": {"dtype": "X", "shape": [1], "data_offsets": [0, 1]}}, tail=b"x"
    ),
    "a dtype that numpy has not": header(
        {"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, tail=b"x"
    ),
    "metadata of numbers": header({"__metadata__": {"a": 1}}),
    "overlapping tensors": header(
        {n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in "ab"}, tail=b"x" * 4
    ),
    "too many": header(
        {f"{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(100_001)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors(tmp_path, kind):
    path = tmp_path / "x.safetensors"
    path.write_bytes(TENSORS[kind])
    with pytest.raises(ReadError, match="x.safetensors"):
        read_tensors(path, "numpy")


def test_tensors_that_are_sound(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": np.arange(6.0).reshape(2, 3)}, path, metadata={"b": "c"})
    found, said = read_tensors(path, "numpy")
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and said == {"b": "c"}
    assert DEPTH > 4


@pytest.mark.parametrize("text", [b"0,", b"[],", b'"a":'])
def test_json_of_many_small_values_is_not_unpacked(text):
    data = b"[" + text * structured.MOST_VALUES + b"0]"
    tracemalloc.start()
    if text.endswith(b","):
        with pytest.raises(ReadError, match="more than 4000000 values"):
            structured.parse_json(data)
    else:
        with pytest.raises(ReadError, match="not JSON"):
            structured.parse_json(data)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_lines_of_nothing_take_no_room():
    tracemalloc.start()
    with pytest.raises(ReadError, match="line 1"):
        structured.parse_jsonl(Path("x"), b"\n" * 10_000_000)
    assert tracemalloc.get_traced_memory()[1] < 30e6
    tracemalloc.stop()


def test_a_table_is_read_line_by_line_and_a_line_has_an_end():
    data = b"\0" * (tables.LINE + 2)
    tracemalloc.start()
    with pytest.raises(ReadError, match="longer than"):
        tables.parse_table(data, "x")
    assert tracemalloc.get_traced_memory()[1] < 8 * tables.LINE
    tracemalloc.stop()


def test_no_pipe_is_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(ReadError, match="no regular file"):
        read_tensors(tmp_path / "x.safetensors", "pt")
