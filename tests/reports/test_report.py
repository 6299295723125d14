"""What a report says and writes: verdict, tables, page; all or nothing; names of strangers."""

import errno
import re
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
from cli.refusals import refused
from helpers.browsers import dark_phone, needed
from helpers.written_runs import CLIENTS, edit, make_run, rows_of

from fedhet import load_sweep
from fedhet.cli.app import execute
from fedhet.errors import UserError
from fedhet.reports.tables import ReportTable, escaped, to_csv, to_latex, to_markdown


def test_a_verdict_of_at_most_five_sentences(sweep):
    for seed in range(5):
        make_run(sweep, "fml", seed, [[0.0] * CLIENTS, [0.0, 10.0, 20.0, 30.0 + seed]])
        make_run(sweep, "lg_fedavg", seed, [[0.0] * CLIENTS, [10.0, 20.0, 30.0, 40.0 + seed]])
    counts, above, below, traffic = load_sweep(sweep).verdict
    assert counts.startswith("20 runs of 4 methods in 1 setting, 5 blocks")
    assert above.startswith("Above Standalone") and above.endswith("excludes zero: FedSSA +3.0.")
    assert below.startswith("Below Standalone, likewise: FML −10.0; no difference from")
    assert below.endswith(": LG-FedAvg.") and traffic.endswith("LG-FedAvg = 1: FedSSA 1.")


def test_the_verdict_counts_settings_and_says_its_limits(sweep):
    for method, values in (("standalone", 1.0), ("fedssa", 0.5), ("fd", 1.0)):
        for seed in range(3):
            tests = [[values + seed / 100 * (method == "fd")] * CLIENTS]
            make_run(sweep, method, seed, tests, lr=0.2, name=f"{method}-{seed}-two")
        make_run(sweep, method, 0, [[values] * CLIENTS], lr=0.3, name=f"{method}-one")
    said = load_sweep(sweep).verdict
    assert "FedSSA in 1 of 2 settings (+3.0; below in 1)" in said[2]
    assert "no method in CIFAR-100, N = 4, C = 50 %, T = 1, lr = 0.2." in said[2]
    single, few = said[-1].split("; ")[:2]
    assert "one block and so no interval" in single and single.endswith("lr = 0.3")
    assert "fewer than 5 blocks" in few and "lr = 0.2" in few


def test_one_block_or_no_baseline_makes_no_winner(tmp_path):
    make_run(tmp_path, "fd", 0, [[50.0] * CLIENTS])
    _, figure, limits = load_sweep(tmp_path).verdict
    assert figure == "FD 50.00 (one repetition, no interval)."
    assert limits.startswith("Limits: gains are unknown") and "one block and so no" in limits
    make_run(tmp_path, "standalone", 0, [[1.0] * CLIENTS])
    _, figure, _ = load_sweep(tmp_path).verdict
    assert figure.startswith("FD 50.00, Standalone 1.00: 49.00 points above (one repetition")


def test_the_beginning_of_a_longer_setting_counts_for_nothing(tmp_path):
    for number in (1, 3):
        for seed in range(5):
            for method, height in (("standalone", 10.0), ("fd", 10.0 + 30 / number + seed)):
                tests = [[0.0] * CLIENTS] * (number - 1) + [[height] * CLIENTS]
                make_run(tmp_path, method, seed, tests, name=f"{method}-{seed}-{number}")
    said = " ".join(load_sweep(tmp_path).verdict)
    assert "zero: FD +12.0." in said and "first rounds of longer settings: CIFAR-100" in said


def test_tables_of_a_setting(reported):
    out = reported[0] / "out"
    row = rows_of(out, "paired")["FedSSA"]
    assert float(row["difference [95 %], low"]) == pytest.approx(1.036756838)
    text = (out / "tables.md").read_text()
    assert "| FedSSA | **28.50 ± 2.45** |" in text and "| Standalone | 25.50 ± 0.49 |" in text
    assert "| FedSSA | 5 | +3.00 [+1.04, +4.96] | 100.0 | 0.0 | 0.062 | 0.062 |" in text
    assert len((out / "runs.csv").read_text().splitlines()) == 1 + 10


def test_hostile_names_are_text_in_every_format():
    name = "<img src=x onerror=alert(1)> | `a` $b$ & \\input{/etc/passwd} =1+1"
    table = ReportTable("name", name, name, [name])
    table.add(name + "2", "", [1.0])
    markdown = to_markdown(table)
    assert "<img" not in markdown and r"\| \`a\`" in markdown
    tex = to_latex(table)
    assert r"\input" not in tex and r"\$b\$ \& \textbackslash{}input\{" in tex
    assert to_csv(ReportTable("t", "", "", ["=1+1"]).data).splitlines()[1] == "'=1+1"
    assert escaped("a_b *c* [x](y) < 0.001") == r"a_b \*c\* [x]\(y) < 0.001"


def test_a_strangers_record_is_text_on_the_page_and_names_no_file(report, tmp_path):
    bad = "<script>alert(1)</script>"
    for seed, key in ((0, 1), (0, 2)):
        path = make_run(tmp_path / "runs", "fedssa", seed, [[1.0] * 4], name=f"r{key}")
        odd = f"method: fedssa\n../a/b: {key}\nx: '{bad} $\\frac$'"
        edit(path / "config.yaml", "method: fedssa", odd)
        edit(path / "partition.csv", "client,a,b", f"client,{bad},../b")
    report([tmp_path / "runs"], tmp_path / "out", models=False)
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "out"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert bad not in page and "&lt;script&gt;alert(1)" in page
    names = [path.name for path in (tmp_path / "out").rglob("*.*")]
    assert all(re.fullmatch(r"[\w-]+\.[a-z]+", name) for name in names)


def test_the_same_runs_give_the_same_bytes_from_folders_and_records(report, reported, tmp_path):
    one = reported[0] / "out"
    report([reported[0] / "records"], tmp_path, models=False)
    files = sorted(path.relative_to(one) for path in one.rglob("*.*"))
    assert len(files) > 15
    for file in files:
        assert (one / file).read_bytes() == (tmp_path / file).read_bytes(), file
    page = (one / "report.html").read_text()
    assert str(reported[0]) not in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)


def test_figures_are_svg_that_follows_the_page(reported):
    folder, made = reported
    files = {p.stem.split("-")[0]: p.read_text() for p in (folder / "out" / "figures").iterdir()}
    assert files.keys() == {"differences", "rounds", "partition"}
    for text in files.values():
        ElementTree.fromstring(text)
        assert "currentColor" in text and "prefers-color-scheme:dark" in text
    assert ">FedSSA</text>" in files["rounds"] and ">Standalone</text>" in files["rounds"]
    assert set(made.absent) == {"t-SNE of test representations"}
    ids = re.findall(r'id="([^"]+)"', (folder / "out" / "report.html").read_text())
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("undrawn")
def test_a_second_report_replaces_the_first_all_or_on_a_full_disk_none(
    report, tmp_path, monkeypatch
):
    out, runs = tmp_path / "out", tmp_path / "runs"
    make_run(runs, "standalone", 0, [[1.0] * 4])
    make_run(runs, "fd", 0, [[1.0] * 4], lr=0.5)
    report([runs], out, models=False)
    (out / "tables" / "notes.txt").write_text("mine")
    shutil.rmtree(runs / "fd-s0")
    made = report([runs], out, models=False)
    names = {path.stem for path in (out / "tables").glob("*.csv")}
    assert names == {table.name for table in made.tables}
    assert (out / "tables" / "notes.txt").exists()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    make_run(runs, "fedssa", 0, [[1.0] * 4])
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match="No space left on device"):
        report([runs], out, models=False)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("undrawn")
def test_the_command(reported, tmp_path, capsys):
    out, sweep = tmp_path / "out", reported[0] / "sweep"
    assert execute(["report", str(sweep), "--out", str(out), "--no-models"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == str(out / "report.html")
    assert "t-SNE of test representations is absent: left out by --no-models" in printed.err
    words = ["report", str(sweep), "--baseline", "fedavgg", "--out", str(tmp_path / "no")]
    assert "baseline: no run has method 'fedavgg'" in refused(capsys, *words)
    assert not (tmp_path / "no").exists()


@pytest.mark.usefixtures("undrawn")
def test_t_sne_is_drawn_from_states_and_says_why_not(report, tmp_path):
    from helpers.tiny import tiny  # noqa: PLC0415  (torch)

    from fedhet.testing import simulate  # noqa: PLC0415

    simulate(tiny(tmp_path, method="standalone", name="standalone"))
    made = report([tmp_path / "runs"], tmp_path / "out")
    (figure,) = [one for one in made.figures if one.name == "t-sne"]
    assert "3 clients" in figure.caption and figure.panels[0][1].count("silhouette") == 2
    shutil.rmtree(tmp_path / "runs" / "standalone" / "state")
    made = report([tmp_path / "runs"], tmp_path / "out")
    assert "'standalone': " in made.absent[figure.title] and "state" in made.absent[figure.title]


@pytest.mark.network
@needed
def test_in_a_browser_at_400_pixels_in_the_dark(reported, tmp_path):
    handler = partial(SimpleHTTPRequestHandler, directory=str(reported[0] / "out"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, dark_phone(tmp_path) as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.get(f"http://127.0.0.1:{server.server_port}/report.html")
        script = browser.execute_script
        assert script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
        ink = "return getComputedStyle(document.querySelector('figure svg text')).fill"
        assert script(ink) == "rgb(228, 232, 236)"
        assert script("return document.documentElement.scrollWidth") <= 400
        button = browser.find_element("css selector", "#overview th:nth-child(2) button")
        script("arguments[0].click()", button)
        first = "return document.querySelector('#overview tbody td').textContent"
        assert script(first) == "FedSSA"
        slug = load_sweep(reported[0] / "sweep").comparisons[0].setting.slug
        script("location.hash = arguments[0]", f"partition-{slug}")
        assert script("return document.querySelector('details.setting').open")
        assert not [one for one in browser.get_log("browser") if "favicon" not in one["message"]]
        server.shutdown()
