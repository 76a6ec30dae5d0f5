# timeout: 300
"""nanotron_tokenize: what a file is, by its content; nothing is taken for prose that is none, nothing is lost unsaid."""

import bz2
import csv
import gzip
import json
import lzma
import os
import re

import conftest  # noqa: F401, puts tools/ on the path
import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from nanotron_tools import inputs, kinds, streams

TEXTS = [f"document {i}: a few words\nGrüße {i}" for i in range(60)]
LINES = "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS))
ARRAY = json.dumps([{"text": text} for text in TEXTS], indent=1)


def documents_of(path):
    with h5py.File(path, "r") as file:
        tokens, starts = file["tokens"][:], file["documents"][:].astype(int)
    return [bytes(tokens[a:b - 1].astype(np.uint8)).decode() for a, b in zip(starts, [*starts[1:], tokens.size], strict=True)]


def write_csv(path):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(TEXTS)])


def write_arrow(path, stream):
    table = pyarrow.table({"id": range(len(TEXTS)), "text": TEXTS})
    opener = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with opener(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


WRITERS = {
    "lines.json": lambda path: path.write_text(LINES), "lines.ndjson": lambda path: path.write_text(LINES),
    "lines.txt": lambda path: path.write_text(LINES), "bom.json": lambda path: path.write_text("\ufeff" + LINES),
    "array.json": lambda path: path.write_text(ARRAY), "array.jsonl": lambda path: path.write_text(ARRAY),
    "flat.json": lambda path: path.write_text(ARRAY.replace("\n", "")),
    "table.csv": write_csv, "t.csv.gz": lambda path: (write_csv(path), path.write_bytes(gzip.compress(path.read_bytes()))),
    "t.jsonl.bz2": lambda path: path.write_bytes(bz2.compress(LINES.encode())),
    "t.jsonl.xz": lambda path: path.write_bytes(lzma.compress(LINES.encode())),
    "a.json.xz": lambda path: path.write_bytes(lzma.compress(ARRAY.encode())),
    "unnamed": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "file.arrow": lambda path: write_arrow(path, False), "stream.arrow": lambda path: write_arrow(path, True),
    "noname": lambda path: pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_documents_are_found_whatever_the_name(name, tmp_path, tool):
    path = tmp_path / name
    WRITERS[name](path)
    told = tool("tokenize", path, "-o", tmp_path / "t.h5", "--chunk-mb", "0.0005").stdout
    assert documents_of(tmp_path / "t.h5") == TEXTS
    assert re.search(r" +1 +60 +[\d,]+$", told, re.MULTILINE), told
    assert "documents    60\n" in tool("tokenize", path, "--count").stdout


REFUSED = {
    "object.json": (b'{"a": 1}', "JSON without records"), "object.json.gz": (gzip.compress(b'{"version": 1}'), "JSON without records, gzip"),
    "empty.txt": (b"", "empty.txt"),
    "utf32.txt": ("text".encode("utf-32"), "UTF-32 text"), "le32.txt": ("Grüße\n".encode("utf-32-le"), "iconv -f UTF-32LE"),
    "le16.txt": ("some Grüße\n".encode("utf-16-le"), "iconv -f UTF-16LE"), "be16.jsonl": ('{"text": "x"}\n'.encode("utf-16-be"), "iconv -f UTF-16BE"),
    "pretty.jsonl": (b'{\n "text": "a"\n}\n{\n "text": "b"\n}\n', "jq -c"),
    "index.json.gz": (gzip.compress(b'{"splits": ["train"]}'), "name the folder of one split"),
    "twice.csv": (b"text,text\na,b\n", "one column 'text'\n  found:  2 of this name"),
    "quote.tsv": (b'id\ttext\n1\t"hello\n2\tmore\n3\tend"\n', "quote.tsv, lines 2 to 4: expected a quote"),
    "open.tsv": (b'id\ttext\n1\t"hello\n2\tmore\n', "open.tsv, after line 1"), "pretty.json": (b'{\n "a": 1\n}\n', "JSON without records"),
    "two.json": (b'{\n "text": "a"\n}\n{\n "text": "b"\n}\n', "JSON objects that are not lines"),
    "names.json": (b'["a", "b"]', "JSON without records"),
    "utf16.jsonl": ('{"text": "x"}\n'.encode("utf-16"), "UTF-16"), "utf16.txt": ("text".encode("utf-16"), "UTF-16"),
    "nul.txt": (b"one \0 byte\n" + b"a good line\n" * 1000, "a NUL byte in line 1, byte 4"),
    "x.npy": (b"\x93NUMPY\1\0" + bytes(90), "NumPy array"), "x.bin": (np.int32([20240520, 1, 0]).tobytes(), "llm.c"),
    "x.zip": (b"PK\3\4abc", "zip"), "x.pdf": (b"%PDF-1.5\ntext", "PDF"), "x.h5": (b"\x89HDF\r\n\x1a\n", "HDF5"),
    "x.txt.gz": (gzip.compress(b"prose"), "text, gzip"), "x.gz": (b"no gzip", "a gzip file, as its name says"),
    "x.parquet": (b"no such thing", "a Parquet file, as its name says"),
    "bad.arrow": (b"ARROW1\0\0" + bytes(200), "an Arrow file"),
    "table.csv": (b"id,content\n1,hello\n", "the columns id, content"),
    "bad.csv": (b'text\n"a" b\n', "bad.csv, after line 1: expected a row of CSV"),
    "short.json": (b'[{"text": "a"}, {"text": "b"', "record 1 (counted from 0)"),
    "more.json": (b'[{"text": "a"}] [', "record 0 (counted from 0)"), "gap.json": (b'[{"text": "a"} {}]', "record 0"),
    "other.json": (b'[{"text": "a"}, {"content": "b"}]', "row 1 (counted from 0): expected an object with a text"),
    "nul.jsonl": (b'{"text": "sec\0ond"}\n{"text": "good"}\n', "nul.jsonl, line 1, byte 0: expected a line of JSON"),
    "more.csv": (b"id,text\n1,a\n2,b, c\n", "line 3: expected 2 fields, as the first line names\n  found:  3"),
    "fewer.csv": (b"text,id\na,1\nb\n", "line 3: expected 2 fields, as the first line names\n  found:  1"),
    "bom.csv": (b"\xef\xbb\xbf", "an empty file"),
    "latin.csv": ("text\nGr\xfc\xdfe\n".encode("latin-1"), "text in UTF-8"),
    "latin.json": ('[{"text": "Gr\xfc\xdfe"}]'.encode("latin-1"), "text in UTF-8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_named_file_is_read_or_refused(name, tmp_path, tool):
    content, found = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    beside = [tmp_path / "good.txt"] if content else []
    (tmp_path / "good.txt").write_text("a text beside it")
    told = tool("tokenize", tmp_path / name, *beside, "-o", tmp_path / "t.h5", rc=65).stderr
    assert name in told and found in told and ("change: " in told or not content), told
    assert not (tmp_path / "t.h5").exists()


def test_rows_of_other_lengths_may_be_left_out(tmp_path, tool):
    (tmp_path / "t.csv").write_text("id,text\n1,a\n2,b, c\n\n3\n4,d\n")
    told = tool("tokenize", tmp_path / "t.csv", "-o", tmp_path / "t.h5", "--skip-bad", 2).stderr
    assert documents_of(tmp_path / "t.h5") == ["a", "d"] and "line 3" in told and "line 5" in told


def test_a_byte_order_mark_is_no_part_of_the_first_name_alone(tmp_path, tool):
    (tmp_path / "t.csv").write_bytes("text\na\n\ufeffb\n".encode("utf-8-sig"))
    tool("tokenize", tmp_path / "t.csv", "-o", tmp_path / "t.h5")
    assert documents_of(tmp_path / "t.h5") == ["a", "\ufeffb"]
    assert "".join(streams.csv_texts(iter(["\ufeffa\n".encode(), "\ufeffb\n".encode()]))) == "a\n\ufeffb\n"


def test_a_column_of_bytes_is_text(tmp_path, tool):
    table = pyarrow.table({"text": pyarrow.array(["Grüße".encode(), "Gr\xfc\xdfe".encode("latin-1")], pyarrow.binary())})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert "row 1 (counted from 0): expected text in UTF-8" in tool("tokenize", tmp_path / "t.parquet", "-o", tmp_path / "t.h5", rc=65).stderr
    tool("tokenize", tmp_path / "t.parquet", "-o", tmp_path / "t.h5", "--skip-bad", 1)
    assert documents_of(tmp_path / "t.h5") == ["Grüße"]


def test_the_snapshot_of_a_dataset_is_its_records(tmp_path, tool):
    folder = tmp_path / "snapshot"
    for name, content in {"data/a.jsonl": LINES, ".gitattributes": "*.parquet filter=lfs\n", ".git/config": "[core]\n",
                          "README.md": "---\nlicense: other\n---\n# a card\n", "dataset_infos.json": "{}",
                          "data/LICENSE": "a licence", "image.png": "\x89PNG\0\0", "notes.txt": "prose"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    result = tool("tokenize", folder, "-o", tmp_path / "t.h5")
    assert documents_of(tmp_path / "t.h5") == [*TEXTS, "prose"]
    for name in (".gitattributes", ".git", "README.md", "dataset_infos.json", "LICENSE", "image.png"):
        assert re.search(rf"^skipped: .*{re.escape(name)}\b", result.stderr, re.MULTILINE), (name, result.stderr)
    table = result.stdout.splitlines()[:7]
    assert table[0].split() == ["kind", "files", "documents", "bytes"]
    assert [line.split()[:3] for line in table[1:3]] == [["JSON", "lines", "1"], ["text", "1", "1"]]
    assert sum(line.startswith("skipped") for line in table) == 4
    assert "2" in table[3] and "hidden" in table[3] and "--as-text" in "".join(table)
    tool("tokenize", folder, "--glob", "*.md", "-o", tmp_path / "t.h5")  # asked for
    assert documents_of(tmp_path / "t.h5") == ["---\nlicense: other\n---\n# a card\n"]
    tool("tokenize", folder, folder / "README.md", "-o", tmp_path / "t.h5")  # named
    assert len(documents_of(tmp_path / "t.h5")) == 62


def test_a_dataset_saved_to_disk_is_its_rows(tmp_path, tool):
    folder = tmp_path / "saved"
    folder.mkdir()
    write_arrow(folder / "data-00000-of-00001.arrow", True)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    (folder / "dataset_info.json").write_text('{\n  "citation": ""\n}')
    tool("tokenize", folder, "-o", tmp_path / "t.h5")
    assert documents_of(tmp_path / "t.h5") == TEXTS
    (folder / "data-00000-of-00001.arrow").write_bytes(b"ARROW1\0\0" + bytes(200))
    assert "an Arrow file" in tool("tokenize", folder, "-o", tmp_path / "t.h5", rc=65).stderr


@pytest.mark.parametrize("index, name", [
    ({"shards": [{"column_names": ["text"], "format": "mds", "samples": 1}], "version": 2}, "MosaicML"),
    ({"chunks": [{"filename": "chunk-0-0.bin"}], "config": {"data_format": ["str"]}}, "litdata")])
def test_data_that_need_their_own_library_are_refused_by_name(index, name, tmp_path, tool):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "shard.00000.mds").write_bytes(bytes(100))
    (folder / "notes.txt").write_text("prose")
    told = tool("tokenize", folder, "-o", tmp_path / "t.h5", rc=65).stderr
    assert name in told and "index.json" in told and "JSON lines or Parquet" in told


def test_source_code_is_text_where_one_says_so(tmp_path, tool):
    folder = tmp_path / "code"
    folder.mkdir()
    for name, content in {"a.json": '{"name": "x"}', "b.csv": "id,text\n1,hello\n", "c.py": "print()\n"}.items():
        (folder / name).write_text(content)
    result = tool("tokenize", folder, "-o", tmp_path / "t.h5")
    assert documents_of(tmp_path / "t.h5") == ["hello", "print()\n"] and "a.json" in result.stderr
    tool("tokenize", folder, "--as-text", "-o", tmp_path / "t.h5")
    assert documents_of(tmp_path / "t.h5") == ['{"name": "x"}', "id,text\n1,hello\n", "print()\n"]


def test_prose_stays_prose(tmp_path):
    for content in ("plain", "[a list of words] and more", "{ not json }", "[1] a footnote\n[2] another\n", "{\n  int x;\n}\n",
                    'BZh9 is the beginning of bzip2', "PAR1 begins Parquet", "%PDF-1.5 is the head of a PDF\n",
                    '{\n "name": a word\n}\nand more', '{\n "a": 1\n}\nis pretty JSON', '[{"a": 1}] is a list', '[{"a": 1}, and more',
                    '[{"a": of}]', " " * 257 + "ustar", "{} is an object\n",
                    '{"a": 1} is JSON.\nThat was an example.\n', "a,b\n1,2\n", "[\n", "{", '["quoted"] words'):
        path = tmp_path / "x.txt"
        path.write_text(content)
        assert kinds.sniff(path, len(content)) == kinds.TEXT, content


def test_long_prose_that_begins_as_json(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "JSON_HEAD", 1 << 12)
    monkeypatch.setattr(kinds, "HEAD", 1 << 10)
    for begin in ('{"a": some words\n', '[{"a": some words\n', '{\n"a": b\n}\n', '{"a": 1} and\n'):
        (tmp_path / "x.txt").write_text(begin + "prose " * 1000)
        assert kinds.sniff(tmp_path / "x.txt", 6000) == kinds.TEXT, begin


def test_a_record_may_be_a_file(tmp_path, tool):
    """One object in each .json, on one line or not; those without the field are metadata, packed or not."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, text in enumerate(TEXTS[:6]):
        data = json.dumps({"id": number, "text": text}, indent=number % 2 or None).encode()
        name = f"{number}.json" + ".gz" * (number > 3)
        (folder / name).write_bytes(gzip.compress(data) if number > 3 else data)
    (folder / "info.json").write_text('{"version": 1}')
    (folder / "info.json.gz").write_bytes(gzip.compress(b'{"version": 1}'))
    for chunk in ("0.0005", "4"):
        told = tool("tokenize", folder, "-o", tmp_path / "t.h5", "--chunk-mb", chunk)
        assert documents_of(tmp_path / "t.h5") == TEXTS[:6]
        assert "documents    6\n" in tool("tokenize", folder, "--count", "--sample", "0.5", "--chunk-mb", chunk).stdout
        assert "info.json" in told.stderr and "info.json.gz" in told.stderr and re.search(r"JSON object +2 +2 ", told.stdout)
    tool("tokenize", folder / "1.json", "-o", tmp_path / "t.h5")
    assert documents_of(tmp_path / "t.h5") == [TEXTS[1]]
    assert "0.json" in tool("tokenize", folder, "-o", tmp_path / "t.h5", "--field", "content", rc=65).stderr
    (folder / "chat.json").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
                                                 indent=1))
    told = tool("tokenize", folder, "--chat", "{role}: {content}", "-o", tmp_path / "t.h5").stderr
    assert documents_of(tmp_path / "t.h5") == ["user: aassistant: b"] and "1.json" in told


def test_a_table_by_tabs_with_quotes(tmp_path, tool):
    """Around a field, over several lines of other lengths too; in the middle a quote is a character."""
    (tmp_path / "t.tsv").write_text('id\ttext\n1\t"two\nlines"\n2\t5" wide\n3\t"a\tb"\n')
    tool("tokenize", tmp_path / "t.tsv", "-o", tmp_path / "t.h5")
    assert documents_of(tmp_path / "t.h5") == ["two\nlines", '5" wide', "a\tb"]


def test_quiet_and_an_empty_field(tmp_path, tool):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("text")
    (tmp_path / "in/empty").touch()
    (tmp_path / "in/.hidden").touch()
    told = tool("tokenize", tmp_path / "in", "-o", tmp_path / "t.h5").stderr
    assert f"skipped: {tmp_path}/in/empty (empty)" in told and ".hidden" in told
    told = tool("tokenize", tmp_path / "in", "-o", tmp_path / "t.h5", "--quiet")
    assert not told.stderr and not told.stdout
    assert "--field: expected a name" in tool("tokenize", tmp_path / "in", "-o", tmp_path / "t.h5", "--field", "", rc=2).stderr


def test_a_long_first_record_is_no_object(tmp_path, monkeypatch):
    """Longer than what is looked at."""
    monkeypatch.setattr(kinds, "JSON_HEAD", 1 << 12)
    monkeypatch.setattr(kinds, "HEAD", 1 << 10)
    long = json.dumps({"text": "x" * 9000})
    for name, content, kind in (("a.json", long + "\n" + long, kinds.LINES), ("b.json", f"[{long}, {long}]", kinds.ARRAY),
                                ("c.jsonl", long, kinds.LINES), ("d.json", '{\n"a": "' + "x" * 9000 + '"}', kinds.OBJECT)):
        (tmp_path / name).write_text(content)
        assert kinds.sniff(tmp_path / name, len(content)) == kind, name


def test_elements_of_an_array_wherever_it_is_cut(tmp_path):
    values = [{"text": "a, ] [ \\ \" é \U0001f642"}, {"n": [1, -2.5e-3, True, None]}, {}, {"x": {"y": [{}]}}, {"k": "v" * 50}]
    data = ("\ufeff" + json.dumps(values, indent=1) + "\n").encode()
    for size in (1, 2, 3, 7, 1000):
        pieces = iter([data[i:i + size] for i in range(0, len(data), size)])
        assert [value for value, _ in streams.array_records(tmp_path / "a.json", pieces)] == values
    blocks = streams.record_blocks(tmp_path / "a", streams.array_records(tmp_path / "a", iter([data])), 40)
    assert [(block.first, len(block.rows)) for block in blocks] == [(0, 1), (1, 1), (2, 2), (4, 1)]


def test_links_to_folders_and_names_like_those_of_cards(tmp_path, tool):
    folder = tmp_path / "in"
    for name in ("in/a.jsonl", "in/copying_machines.txt", "in/licenses_corpus.txt", "in/LICENSE", "in/Readme.zh.md", "other/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "a"}\n' if name.endswith("l") else name)
    (folder / "link").symlink_to(tmp_path / "other")
    told = tool("tokenize", folder, "-o", tmp_path / "t.h5").stderr
    assert documents_of(tmp_path / "t.h5") == ["a", "in/copying_machines.txt", "in/licenses_corpus.txt"]
    assert f"skipped: {folder / 'link'} (a link to a folder" in told and "LICENSE" in told and "Readme.zh.md" in told


def test_a_pipe_is_refused(tmp_path, tool):
    os.mkfifo(tmp_path / "pipe")
    told = tool("tokenize", tmp_path / "pipe", "-o", tmp_path / "t.h5", rc=65).stderr
    assert "a pipe or a device" in told and "write it to a file" in told
    (tmp_path / "x.txt").write_text("text")
    tool("tokenize", tmp_path, "-o", tmp_path / "t.h5", "--glob", "*[et]")
    assert documents_of(tmp_path / "t.h5") == ["text"]


def test_shards_know_the_kinds_of_their_texts(tmp_path, tool):
    (tmp_path / "a.jsonl").write_text(LINES)
    for extra, count in (([], 60), (["--as-text"], 1), (["--as-text"], 1)):
        tool("tokenize", tmp_path / "a.jsonl", "--shards", tmp_path / "parts", *extra)
        tool("tokenize", "--merge", tmp_path / "parts", "-o", tmp_path / "t.h5")
        assert len(documents_of(tmp_path / "t.h5")) == count


def test_what_cannot_be_looked_at_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x.txt").write_text("text")
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (_ for _ in ()).throw(PermissionError(13, "denied", str(path)))
                        if str(path).endswith("b") else scandir(path))
    with pytest.raises(PermissionError):
        inputs.find_files([str(tmp_path / "a")])
