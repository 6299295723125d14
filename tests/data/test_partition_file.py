"""Partition ``file``: somebody else's clients, and errors that name file, line and value."""

import numpy as np
import pytest
from helpers.partitions import partition as made

from fedhet.errors import UserError

PATHS = ["cat/1.png", "cat/2.png", "cat/3.png", "dog/1.png", "dog/2.png"]
LABELS = np.array([0, 0, 0, 1, 1])
GOOD = "path,client,split\n"


def _make(tmp_path, text, clients=0, paths=PATHS):
    file = tmp_path / "clients.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return made(LABELS, "file", clients, split=(8, 0, 2), partition_file=str(file), paths=paths)


def test_clients_and_splits_are_those_of_the_file(tmp_path):
    text = GOOD + "dog/2.png,b,train\ncat/3.png,a,test\ncat/1.png,a,train\ndog/1.png,b,val\n"
    partition = _make(tmp_path, text)
    assert partition.ids == ("a", "b")
    a, b = partition.clients
    assert (a.train.tolist(), a.val.tolist(), a.test.tolist()) == ([0], [], [2])
    assert (b.train.tolist(), b.val.tolist(), b.test.tolist()) == ([4], [3], [])
    assert partition.counts(LABELS, 2).tolist() == [[2, 0], [0, 2]]
    assert partition.seen(0, LABELS).tolist() == [0]
    assert any(line.startswith("1 of 5 images") for line in partition.warnings)
    assert any("no test image: b" in line for line in partition.warnings)


def test_numbers_sort_as_numbers_and_other_ids_as_text(tmp_path):
    rows = [f"{path},{{}},train\n" for path in PATHS[:3]]
    numbers = _make(tmp_path, GOOD + "".join(rows).format("10", "9", "1"))
    assert numbers.ids == ("1", "9", "10")
    assert [c.train.tolist() for c in numbers.clients] == [[2], [1], [0]]
    texts = _make(tmp_path, GOOD + "".join(rows).format("10", "9", "x"))
    assert texts.ids == ("10", "9", "x")


def test_spreadsheets_and_index_paths(tmp_path):
    text = b'\xef\xbb\xbfpath,client,split\r\n4,x,train\r\n\r\n"0",x,test\r\n'
    partition = _make(tmp_path, text, clients=1, paths=())
    assert partition.clients[0].train.tolist() == [4]
    assert partition.clients[0].test.tolist() == [0]


BAD = [
    (GOOD + "cat/1.png,a,train\ncat/9.png,a,train\n", "line 3: path 'cat/9.png' is not an image"),
    (GOOD + "cat/1.png,a,train\ncat/1.png,b,test\n", "line 3: path 'cat/1.png' .* line 2"),
    (GOOD + "cat/1.png,a,training\n", "line 2: split 'training' is not one of train, val, test"),
    (GOOD + "cat/1.png,a\n", "line 2: 2 fields"),
    (GOOD + "cat/1.png,../a,train\n", "line 2: client '../a' is not allowed"),
    (GOOD + 'cat/1.png,"a\n",train\n', "client .* is not allowed"),
    (GOOD + "cat/1.png,a,train\ncat/2.png,b,test\n", "client 'b' has no train image"),
    ("file,client,split\ncat/1.png,a,train\n", "line 1: header 'file,client,split' must be"),
    (GOOD, "the file has no line"),
    (b"\xff\xfe\x00path", "not a CSV text file"),
]


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_errors_name_file_line_and_value(tmp_path, text, reason):
    with pytest.raises(UserError, match=reason) as caught:
        _make(tmp_path, text)
    assert str(caught.value).startswith(f"partition-file {tmp_path}/clients.csv")
    assert "\n" not in str(caught.value)


def test_no_file_and_another_number_of_clients_are_refused(tmp_path):
    for file, reason in ((tmp_path / "none.csv", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UserError, match=reason):
            made(LABELS, "file", partition_file=str(file), paths=PATHS)
    with pytest.raises(UserError, match="clients 3 is not allowed: .* has 2"):
        _make(tmp_path, GOOD + "cat/1.png,a,train\ncat/2.png,b,train\n", clients=3)
