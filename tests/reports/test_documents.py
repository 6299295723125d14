"""Documents beside the records: the committed ones are what the records give."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from written_runs import make_run

from fedhet.cli.app import execute
from fedhet.errors import UserError
from fedhet.reports.documents import BEGIN, END, page_name, stale, written
from fedhet.reports.report import BEGIN as TABLES
from fedhet.reports.report import END as TABLES_END
from fedhet.reports.report import report
from fedhet.reports.sections import Report, build

ROOT = Path(__file__).resolve().parents[2]
# A source distribution has the documents and not the records that they are made of.
checked = pytest.mark.skipif(
    not (ROOT / "docs" / "data").is_dir(), reason="docs/data is not in a source distribution"
)
AGAIN = "run: fedhet report docs/data --docs docs"


@pytest.fixture(scope="module")
def committed() -> Report:
    return build([ROOT / "docs" / "data"], models=False)


@checked
def test_what_is_committed_is_what_the_records_give(committed):
    content = written(committed, ROOT / "docs")
    assert len(content) > 10 and ROOT / "README.md" in content
    for path, text in content.items():
        assert path.exists(), f"{path.name} is missing; {AGAIN}"
        assert path.read_text() == text, f"{path.name} is not what docs/data gives; {AGAIN}"
    assert not stale(content, ROOT / "docs"), AGAIN


@checked
def test_the_results_page_is_short_and_its_links_lead_somewhere(committed):
    page = (ROOT / "docs" / "results.md").read_text()
    assert len(page.splitlines()) <= 150
    assert "run_sha256" not in page
    for one in committed.comparisons:
        name = f"results/{page_name(one.setting.title)}.md"
        assert f"]({name})" in page and (ROOT / "docs" / name).exists()
    for path in (ROOT / "docs" / "results").glob("*.svg"):
        assert path.stat().st_size < 100_000, path


def test_marked_parts_are_written_anew_and_the_rest_stays(sweep, tmp_path):
    docs = tmp_path / "site" / "docs"
    docs.mkdir(parents=True)
    (docs / "results.md").write_text(f"# Ours\n\n{BEGIN}\nOLD\n{END}\n\nwhy\n")
    (tmp_path / "site" / "README.md").write_text(f"# R\n{BEGIN}{END}\nmore\n")
    assert execute(["report", str(sweep), "--docs", str(docs), "--no-models"]) == 0
    page = (docs / "results.md").read_text()
    assert page.startswith(f"# Ours\n\n{BEGIN}\n\n- 10 runs") and page.endswith(f"{END}\n\nwhy\n")
    assert "OLD" not in page and "(results/cifar-100-n-4-c-50.md)" in page
    readme = (tmp_path / "site" / "README.md").read_text()
    assert "(docs/results/differences.svg)" in readme
    assert "\n- Above Standalone (each client alone): FedSSA +3.0.\n" in readme
    assert readme.endswith(f"{END}\nmore\n")
    details = docs / "results" / "cifar-100-n-4-c-50.md"
    details.write_text(details.read_text() + "own words\n")
    report([sweep], docs=docs, models=False)
    assert details.read_text().endswith("own words\n")
    assert details.with_suffix(".svg").read_text().startswith("<svg")


def test_the_readme_shows_settings_of_three_blocks_and_more_and_the_page_all(sweep, tmp_path):
    for method in ("standalone", "fd"):
        make_run(sweep, method, 0, [[1.0] * 4], lr=0.2, name=f"{method}-one")
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "README.md").write_text(f"{BEGIN}{END}\n")
    report([sweep], docs=docs, models=False)
    readme = (tmp_path / "README.md").read_text()
    assert "(docs/results/at-a-glance.svg)" in readme and "has no interval: CIFAR" in readme
    assert "lr = 0.2" not in (docs / "results" / "at-a-glance.svg").read_text()
    assert "lr = 0.2" in (docs / "results" / "differences.svg").read_text()
    shutil.rmtree(sweep / "fd-one")
    shutil.rmtree(sweep / "standalone-one")
    report([sweep], docs=docs, models=False)
    assert not (docs / "results" / "at-a-glance.svg").exists()


def test_documents_of_settings_that_are_no_more_go_unless_somebody_wrote_in_them(sweep, tmp_path):
    docs = tmp_path / "docs"
    make_run(sweep, "fd", 0, [[1.0] * 4], lr=0.1)
    report([sweep], docs=docs, models=False)
    names = {path.name for path in (docs / "results").glob("*.md")}
    assert len(names) == 2
    (gone,) = [name for name in names if "lr-0-1" in name]
    shutil.rmtree(sweep / "fd-s0")
    report([sweep], docs=docs, models=False)
    assert not (docs / "results" / gone).exists()
    kept = docs / "results" / "old.md"
    kept.write_text(f"# Old\n\n{BEGIN}\n{END}\n\nown words\n")
    report([sweep], docs=docs, models=False)
    assert kept.exists()


def test_a_page_without_marks_is_nobody_elses_to_write(sweep, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.md").write_text("mine\n")
    with pytest.raises(UserError, match="results.md' has no part between"):
        report([sweep], docs=tmp_path / "docs", models=False)
    assert (tmp_path / "docs" / "results.md").read_text() == "mine\n"
    assert not (tmp_path / "docs" / "results").exists()


def test_pictures_that_are_somebodys_own_stay_and_ours_go(sweep, tmp_path):
    results = tmp_path / "docs" / "results"
    make_run(sweep, "fd", 0, [[1.0] * 4], lr=0.1)
    report([sweep], docs=tmp_path / "docs", models=False)
    (gone,) = results.glob("*lr-0-1.svg")
    (results / "mine.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    (results / "theirs.svg").write_bytes("<svg>\u00e9</svg>".encode("latin-1"))
    (results / "traffic.svg").write_text("<svg>of an earlier fedhet</svg>")
    shutil.rmtree(sweep / "fd-s0")
    report([sweep], docs=tmp_path / "docs", models=False)
    assert not gone.exists()
    assert (results / "mine.svg").exists() and (results / "theirs.svg").exists()
    drawn = (results / "traffic.svg").read_text()
    assert drawn.startswith("<svg xmlns") and drawn.endswith(f"</svg>\n{BEGIN}\n")


def test_a_setting_called_like_a_picture_of_all_has_another_file(sweep, tmp_path):
    made = build([sweep], models=False)
    of_all = set(written(made, tmp_path / "docs"))
    for title in ("Traffic", "Differences", "At a glance"):
        section = replace(made.sections[0], title=title)
        content = written(replace(made, sections=[section]), tmp_path / "docs")
        pages = [path.stem for path in set(content) - of_all if path.suffix == ".md"]
        assert pages == [section.name]
        assert len(content) == len(of_all)


def test_a_file_keeps_its_line_ends_and_what_is_no_text_is_said(sweep, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_bytes(f"# Ours\r\n{TABLES}old{TABLES_END}\r\nkept\r\n".encode())
    words = ["report", str(sweep), "--out", str(tmp_path / "out"), "--no-models", "--into"]
    assert execute([*words, str(page)]) == 0
    data = page.read_bytes()
    assert data.startswith(b"# Ours\r\n<!--") and data.endswith(b"-->\r\nkept\r\n")
    assert data.count(b"\n") == data.count(b"\r\n") > 20
    assert execute([*words, str(page)]) == 0 and page.read_bytes() == data
    page.write_bytes(f"one\n{TABLES}{TABLES_END}\u00e9\n".encode("latin-1"))
    capsys.readouterr()
    assert execute([*words, str(page)]) == 2
    error = capsys.readouterr().err
    assert "page.md' cannot be read: not UTF-8 in line 2" in error and error.count("\n") == 1
