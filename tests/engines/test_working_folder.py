"""Nothing is imported from the working folder, which may be a stranger's, by our decoders."""

from functools import partial

from PIL import Image

from fedhet.data import images


def test_a_decoder_of_images_is_our_own(tmp_path, monkeypatch):
    folder, mark = tmp_path / "sent", tmp_path / "mark"
    folder.mkdir()
    for name in ("json", "multiprocessing", "signal", "yaml", "fedhet"):
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.chdir(folder)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    some = partial(images._decode_some, tmp_path, (4, 4, 3), False)
    ((image,),) = images._in_workers(some, [["a.png"]], 1)
    assert image.pixels is not None and not mark.exists()
