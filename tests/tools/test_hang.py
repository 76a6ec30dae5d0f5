# timeout: 120
"""nanotron_report --hang: the reports of ranks, merged and drawn."""

from conftest import needs
import pytest

from nanotron_tools import hang

TEXT = """nanotron hang report 1
rank\t{rank}
host\tnode{rank}
time\t2026-11-21T04:06:35Z
idle\t{idle}\t30.000\t{late}
where\tstep 12 > backward > layer 3 mlp
{waits}network\teth0 is down
group\ttp group 0\t{entered}\t0\t0-1
group\tworld\t40\t0\t0-3
"""
OPERATION = "operation\t{}\t{}\t{}\t64\t{:.6f}\t{:.6f}\t12\tbackward, layer 3 mlp\n"


@pytest.fixture
def reports(tmp_path):
    """Rank 0 waits for rank 1, which wrote its report 2.5 s later; 2 and 3 wrote none."""
    folder = tmp_path / "run" / "hang"
    folder.mkdir(parents=True)
    for rank, later in ((0, 0.0), (1, 2.5)):
        waits = "waits\ttp group 0\t9\tall_reduce\t31.000\n" if rank == 0 else ""
        text = TEXT.format(rank=rank, idle=31 + later, late="late" if rank == 0 else "in time", waits=waits,
                           entered=9 - rank)
        for number in range(5, 9):
            ago = 40 + later - number + 0.001 * (number % 2)
            text += OPERATION.format("tp group 0", number, "all_reduce", ago + 0.5, ago)
        if rank == 0:
            text += OPERATION.format("tp group 0", 9, "all_reduce", 31, -1)
        (folder / f"rank_{rank:05}.txt").write_text(text)
    (folder / "verdict.txt").write_text("error: the run hangs: rank 1 on node1 is late\n")
    return folder


def test_text(reports, tool):
    for folder in (reports, reports.parent):
        text = tool("report", "--hang", folder).stdout
        assert "rank 1 on node1 is late" in text and "all_reduce 9 of tp group 0" in text
        assert "layer 3 mlp; eth0 is down" in text and "33.5, in time" in text and text.count("no report") == 2
    (reports / "verdict.txt").unlink()
    assert "no verdict" in tool("report", "--hang", reports).stdout


def test_clocks_are_aligned(reports):
    found = hang.read_reports(reports)
    assert hang.offsets_of(found) == {0: 0.0, 1: pytest.approx(2.5)}
    bars = list(hang.bars_of(found[1], 2.5))
    assert bars[0][0] == pytest.approx(-35.5 + 0.001 * -1, abs=0.01) and bars[0][1] == pytest.approx(0.5)
    assert hang.silent_ranks(found) == [2, 3]


def test_ranks():
    assert hang.ranks_from("0-3, 1-13/4, 20") == [0, 1, 2, 3, 1, 5, 9, 13, 20] and hang.ranks_from("") == []


def test_figure(reports, tool, tmp_path):
    needs("matplotlib")
    for name in ("hang.png", "hang.svg"):
        assert "written" in tool("report", "--hang", reports, "--figure", tmp_path / name).stdout
        assert (tmp_path / name).stat().st_size > 5000
    assert (tmp_path / "hang.svg").read_text().count("<path") > 10


def test_mistakes(reports, tool, tmp_path):
    assert "expected the folder hang" in tool("report", "--hang", tmp_path, rc=65).stderr
    assert "expected runs, or --hang DIR" in tool("report", rc=2).stderr
    (reports / "rank_00000.txt").write_text("something\n")
    assert "in its first line" in tool("report", "--hang", reports, rc=65).stderr
    (reports / "rank_00000.txt").write_text(hang.FIRST_LINE + "\nrank\tx\n")
    assert "invalid line" in tool("report", "--hang", reports, rc=65).stderr
