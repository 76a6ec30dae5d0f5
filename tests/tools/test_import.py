# timeout: 300
"""nanotron_import: files of Megatron-LM, datatrove and nanoGPT, written here from their formats, and token files."""

import itertools
import struct

import conftest  # noqa: F401, puts tools/ on the path
import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers

from nanotron_tools import foreign, id_rows, join, megatron

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
RANDOM = np.random.default_rng(7)


def documents_of(lengths, limit=250):
    return [RANDOM.integers(0, limit, length) for length in lengths]


def write_megatron(prefix, documents, dtype="uint16", split=1, order=None, modes=None, gap=0, code=None):
    """Each document in `split` sequences; `order`: of the sequences in .bin."""
    sequences = [part for document in documents for part in np.array_split(document, split)]
    places, data = {}, b""
    for number in order if order is not None else range(len(sequences)):
        data += b"\xff" * gap
        places[number] = len(data)
        data += sequences[number].astype(dtype).tobytes()
    prefix.with_name(prefix.name + ".bin").write_bytes(data)
    first = np.arange(0, len(sequences) + 1, split)
    prefix.with_name(prefix.name + ".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code or CODES[dtype], len(sequences), len(first))
        + np.array([len(part) for part in sequences], "<i4").tobytes()
        + np.array([places[i] for i in range(len(sequences))], "<i8").tobytes() + first.astype("<i8").tobytes()
        + (b"" if modes is None else np.array(modes, "i1").tobytes()))
    return prefix


def write_ds(path, documents, dtype="<u2", index=True, metadata=None, loss=None):
    path.write_bytes(np.concatenate([np.zeros(0), *documents]).astype(dtype).tobytes())
    ends = np.cumsum([len(document) for document in documents])
    if index:
        path.with_name(path.name + ".index").write_bytes(ends.astype("<u8").tobytes())
    if metadata:
        total = int(ends[-1]) if len(ends) else 0
        path.with_name(path.name + ".metadata").write_text(f"{metadata}\n{total}\n{total / 1e12} T")
    if loss is not None:
        path.with_name(path.name + ".loss").write_bytes(loss.astype(bool).tobytes())
    return path


def check(path, documents, vocab_size=None):
    """The file has these documents, those without tokens left out."""
    with h5py.File(path, "r") as file:
        assert file["tokens"].chunks is None
        assert np.array_equal(file["tokens"][:], np.concatenate([np.zeros(0, int), *documents]))
        ends = np.cumsum([0] + [len(document) for document in documents])
        assert file["documents"][:].tolist() == [int(a) for a, b in itertools.pairwise(ends) if b > a]
        assert file["documents"].dtype == np.uint64
        attributes = dict(file.attrs)
    assert vocab_size is None or attributes["vocab_size"] == vocab_size
    return attributes


LENGTHS = ([5], [0, 0, 3, 0, 1, 0], [1] * 17, [7, 13, 0, 1009, 2], [4097])


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "int64"])
def test_megatron_round_trip(lengths, dtype, tmp_path, tool, monkeypatch):
    documents = documents_of(lengths)
    prefix = write_megatron(tmp_path / "data_text_document", documents, dtype)
    tool("import", prefix, "-o", tmp_path / "t.h5", "--vocab-size", 300)
    attributes = check(tmp_path / "t.h5", documents, 300)
    assert "eos_token_id" not in attributes and "tokenizer_sha256" not in attributes
    monkeypatch.setattr(megatron, "SEQUENCES", 2)  # pieces that end anywhere
    monkeypatch.setattr(megatron, "PIECE", 3)
    monkeypatch.setattr(foreign, "PIECE", 5)
    for name in (f"{prefix}.bin", f"{prefix}.idx"):
        tool("import", name, "-o", tmp_path / "t.h5", "--vocab-size", 300)
        check(tmp_path / "t.h5", documents, 300)


@pytest.mark.parametrize("sequences", [1, 2, 3, 100])
def test_megatron_sequences_of_a_document_and_gaps(sequences, tmp_path, tool, monkeypatch):
    monkeypatch.setattr(megatron, "SEQUENCES", sequences)
    documents = documents_of([9, 0, 31, 4, 2])
    order = RANDOM.permutation(15)
    prefix = write_megatron(tmp_path / "a", documents, "int32", split=3, order=order, gap=8, modes=[0] * 15)
    tool("import", prefix, "-o", tmp_path / "t.h5", "--vocab-size", 250)
    check(tmp_path / "t.h5", documents)


def test_megatron_prefixes_follow_one_another(tmp_path, tool):
    first, second = documents_of([3, 0, 5]), documents_of([0, 2, 7])
    write_megatron(tmp_path / "a", first)
    write_megatron(tmp_path / "b", second, "int32")
    printed = tool("import", tmp_path / "b", tmp_path / "a", "-o", tmp_path / "t.h5").stdout
    largest = max(int(document.max()) for document in [*first, *second] if len(document))
    check(tmp_path / "t.h5", [*second, *first], largest + 1)
    assert "17 tokens, 4 documents" in printed


def broken(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


@pytest.mark.parametrize("name, change, expected, found", [
    ("idx", lambda d: d.__setitem__(slice(0, 9), b"TNTIDX\0\0\0"), "MMIDIDX", "TNTIDX"),
    ("idx", lambda d: d.__delitem__(slice(20, None)), "34 bytes of header", "in a file of 20 bytes"),
    ("idx", lambda d: d.__setitem__(9, 2), "byte 9: expected the version 1", "2"),
    ("idx", lambda d: d.__setitem__(17, 6), "byte 17: expected a type of integers", "found:  6"),
    ("idx", lambda d: d.__delitem__(slice(-5, None)), "102 bytes for 3 sequences and 4", "found:  97"),
    ("idx", lambda d: d.extend(b"abcd"), "102 bytes for 3", "found:  106"),
    ("idx", lambda d: d.__setitem__(slice(-8, None), struct.pack("<q", 2)), "documents up to sequence 3", "up to 2"),
    ("idx", lambda d: d.__setitem__(slice(-16, -8), struct.pack("<q", 9)), "from 0 on and rising", "found:  3"),
    ("idx", lambda d: d.__setitem__(slice(-32, -24), struct.pack("<q", 1)), "byte 70: expected first sequences", "1"),
    ("idx", lambda d: d.__setitem__(slice(34, 38), struct.pack("<i", -1)), "sequence 0: expected tokens", "-1 tokens"),
    ("bin", lambda d: d.__delitem__(slice(-1, None)), "sequence 2: expected tokens inside of a.bin", "from byte 16"),
    ("bin", lambda d: d.__setitem__(slice(2, 4), b"\xff\xff"), "expected an id from 0 to 299", "found:  65535"),
])
def test_megatron_damage(name, change, expected, found, tmp_path, tool):
    write_megatron(tmp_path / "a", documents_of([5, 3, 2]))
    path = tmp_path / f"a.{name}"
    broken(path, change)
    told = tool("import", tmp_path / "a", "-o", tmp_path / "t.h5", "--vocab-size", 300, rc=65).stderr
    assert str(tmp_path / "a.") in told and expected in told and found in told and "change: " in told, told
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.bin", "a.idx"]


def test_megatron_of_images_is_refused(tmp_path, tool):
    write_megatron(tmp_path / "a", documents_of([5, 3]), modes=[0, 1])
    told = tool("import", tmp_path / "a", "-o", tmp_path / "t.h5", rc=65).stderr
    assert "the mode 1 of sequence 1" in told


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@pytest.mark.parametrize("metadata", [None, "gpt2", "org/name|{}"])
def test_ds_round_trip(lengths, dtype, metadata, tmp_path, tool):
    documents = documents_of(lengths, 60000)
    metadata = metadata and metadata.format(dtype[-1])
    path = write_ds(tmp_path / "00000_shuffled.ds", documents, dtype, metadata=metadata)
    tool("import", path, "-o", tmp_path / "t.h5", "--vocab-size", 60001 if dtype == "<u2" else 100_000)
    check(tmp_path / "t.h5", documents)
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file["tokens"].dtype == np.dtype(dtype)


def test_ds_folder_and_documents_without_an_index(tmp_path, tool):
    folder, eos = tmp_path / "data", 9
    (folder / "sub").mkdir(parents=True)
    parts = [[np.array([*RANDOM.integers(10, 99, n), eos]) for n in lengths] for lengths in ([3, 0, 8], [1, 1], [40])]
    for name, documents in zip(("a.ds", "b.ds", "sub/c.ds"), parts, strict=True):
        write_ds(folder / name, documents, index=False)
    told = tool("import", folder, "-o", tmp_path / "t.h5", rc=65).stderr
    assert "neither a.ds.index nor a.ds.metadata" in told and "--token-type" in told
    tool("import", folder, "--token-type", "uint16", "--eos-id", eos, "-o", tmp_path / "t.h5")
    attributes = check(tmp_path / "t.h5", sum(parts, []))
    assert attributes["eos_token_id"] == eos
    assert "documents unknown" in tool("import", folder, "--token-type", "uint16", "-o", tmp_path / "t.h5").stdout
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert "documents" not in file
    write_ds(folder / "b.ds", parts[1])
    told = tool("import", folder, "--token-type", "uint16", "-o", tmp_path / "t.h5", rc=65).stderr
    assert f"{folder / 'a.ds'}: expected /documents, as {folder / 'b.ds'} has" in told and "--eos-id" in told
    (tmp_path / "nothing").mkdir()
    assert "none in it" in tool("import", tmp_path / "nothing", "-o", tmp_path / "t.h5", rc=65).stderr


def test_ds_loss_becomes_the_mask(tmp_path, tool, monkeypatch):
    monkeypatch.setattr(foreign, "PIECE", 6)
    documents = documents_of([11, 0, 6, 1])
    loss = RANDOM.integers(0, 2, 18)
    path = write_ds(tmp_path / "a.ds", documents, loss=loss)
    tool("import", path, "-o", tmp_path / "t.h5", "--vocab-size", 300)
    check(tmp_path / "t.h5", documents)
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file["loss_mask"].dtype == np.uint8 and np.array_equal(file["loss_mask"][:], loss)
        assert b"loss of predicting this token" in file["loss_mask"].attrs["meaning"]
    (tmp_path / "a.ds.loss").write_bytes(b"\1" * 17)
    assert "18 bytes, one for each token" in tool("import", path, "-o", tmp_path / "t.h5", rc=65).stderr


@pytest.mark.parametrize("change, expected", [
    (lambda p: p.write_bytes(p.read_bytes()[:-1]), "20 tokens of 2 or 4 bytes"),
    (lambda p: p.write_bytes(p.read_bytes()[:-2]), "20 tokens of 2 or 4 bytes"),
    (lambda p: p.with_name("a.ds.index").write_bytes(struct.pack("<3Q", 8, 7, 20)), "rise"),
    (lambda p: p.with_name("a.ds.index").write_bytes(struct.pack("<2Q", 8, 21)), "20 tokens, as a.ds.metadata"),
    (lambda p: p.with_name("a.ds.index").write_bytes(b"12345"), "of 8 bytes"),
    (lambda p: p.with_name("a.ds.metadata").write_text("gpt2\nmany"), "line 2: expected the number of tokens"),
    (lambda p: p.with_name("a.ds.metadata").write_text("gpt2|4\n20"), "20 tokens, as the files beside it say"),
])
def test_ds_damage(change, expected, tmp_path, tool):
    path = write_ds(tmp_path / "a.ds", documents_of([8, 12]), metadata="gpt2")
    change(path)
    before = sorted(each.name for each in tmp_path.iterdir())
    told = tool("import", path, "-o", tmp_path / "t.h5", "--vocab-size", 300, rc=65).stderr
    assert expected in told and str(tmp_path / "a.ds") in told and "change: " in told, told
    assert sorted(each.name for each in tmp_path.iterdir()) == before


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64"])
def test_bare_ids(dtype, tmp_path, tool, monkeypatch):
    monkeypatch.setattr(foreign, "PIECE", 7)
    ids = np.array([5, 6, 0, 0, 7, 8, 9, 0, 1, 2, 3, 4, 5, 0, 6], dtype)
    (tmp_path / "train.bin").write_bytes(ids.tobytes())
    call = [tmp_path / "train.bin", "--format", "bare", "-o", tmp_path / "t.h5"]
    assert "--token-type" in tool("import", *call, rc=64).stderr
    tool("import", *call, "--token-type", dtype, "--eos-id", 0)
    check(tmp_path / "t.h5", [ids[:3], ids[3:4], ids[4:8], ids[8:14], ids[14:]], 10)
    (tmp_path / "train.bin").write_bytes(ids.tobytes() + b"x")
    assert "does not divide" in tool("import", *call, "--token-type", dtype, rc=65).stderr
    (tmp_path / "train.bin").write_bytes(b"")
    assert "no tokens" in tool("import", *call, "--token-type", dtype, "--vocab-size", 5, rc=65).stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.h5", "train.bin"]


def test_ids_outside_the_vocabulary(tmp_path, tool):
    ids = np.array([1, 2, -1, 3], "<i4")
    (tmp_path / "a.bin").write_bytes(ids.tobytes())
    call = [tmp_path / "a.bin", "--format", "bare", "-o", tmp_path / "t.h5", "--token-type"]
    told = tool("import", *call, "int32", "--vocab-size", 10, rc=65).stderr
    assert "a.bin, byte 8 (token 2): expected an id from 0 to 9" in told and "found:  -1" in told
    told = tool("import", *call, "uint32", rc=65).stderr  # without a vocabulary's size: taken for damage
    assert f"expected an id from 0 to {join.MAX_IDS - 1}" in told and "4294967295" in told
    assert "an id below 4" in tool("import", *call, "uint16", "--vocab-size", 4, "--eos-id", 4, rc=64).stderr
    assert not (tmp_path / "t.h5").exists()


@pytest.fixture
def tokenizer_json(tmp_path):
    words = {"<unk>": 0, "<|endoftext|>": 1, **{f"w{i}": i + 2 for i in range(50)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<unk>", "<|endoftext|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_tokenizer_gives_text_and_hash(tmp_path, tool, tokenizer_json):
    """As the same text, tokenized here."""
    (tmp_path / "t.txt").write_text("w1 w2 w3")
    tool("tokenize", tmp_path / "t.txt", "--tokenizer", tokenizer_json, "-o", tmp_path / "own.h5")
    write_megatron(tmp_path / "a", [np.array([3, 4, 5, 1])])
    tool("import", tmp_path / "a", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5")
    with h5py.File(tmp_path / "own.h5", "r") as own, h5py.File(tmp_path / "t.h5", "r") as file:
        for name in ("tokens", "documents", "vocabulary/bytes", "vocabulary/offsets"):
            assert np.array_equal(own[name][:], file[name][:]) and own[name].dtype == file[name].dtype
        for name in ("vocab_size", "eos_token_id", "tokenizer", "tokenizer_sha256", "unigram_entropy"):
            assert own.attrs[name] == file.attrs[name]
    tool("import", tmp_path / "own.h5", tmp_path / "t.h5", "-o", tmp_path / "both.h5")
    attributes = check(tmp_path / "both.h5", [np.array([3, 4, 5, 1])] * 2, 52)
    assert attributes["eos_token_id"] == 1 and len(attributes["tokenizer_sha256"]) == 64
    write_megatron(tmp_path / "a", [np.array([52])])
    told = tool("import", tmp_path / "a", "--tokenizer", tokenizer_json, "-o", tmp_path / "t.h5", rc=65).stderr
    assert "expected an id from 0 to 51" in told
    tool("import", tmp_path / "a", "--tokenizer", tokenizer_json, "--vocab-size", 64, "-o", tmp_path / "t.h5")
    check(tmp_path / "t.h5", [np.array([52])], 64)
    told = tool("import", tmp_path / "own.h5", tmp_path / "t.h5", "-o", tmp_path / "both.h5", rc=65).stderr
    assert "vocab_size 52" in told and str(tmp_path / "t.h5") in told
    assert "leave it out" in tool("import", tmp_path / "t.h5", "--vocab-size", 9, "-o", tmp_path / "x.h5", rc=64).stderr


def test_headers_are_known_by_their_numbers(tmp_path, tool):
    """Of NumPy and of llm.c: they hold no tokens, and say the type."""
    ids = np.arange(1000)
    for dtype in ("<u2", "<i4", "<u4"):
        np.save(tmp_path / "ids.npy", ids.reshape(10, 100).astype(dtype))
        for extra in ([], ["--format", "bare"], ["--format", "bare", "--token-type", np.dtype(dtype).name]):
            tool("import", tmp_path / "ids.npy", *extra, "-o", tmp_path / "t.h5", "--eos-id", 999)
            check(tmp_path / "t.h5", [ids], 1000)
    told = tool("import", tmp_path / "ids.npy", "--token-type", "uint16", "-o", tmp_path / "x.h5", rc=64).stderr
    assert "expected uint32, as the header of" in told
    for magic, version, dtype in ((20240520, 1, "<u2"), (20240801, 7, "<u4")):
        header = np.zeros(256, np.int32)
        header[:3] = magic, version, 1000
        data = header.tobytes() + ids.astype(dtype).tobytes()
        (tmp_path / "llmc.bin").write_bytes(data)
        for extra in ([], ["--format", "bare"]):
            tool("import", tmp_path / "llmc.bin", *extra, "-o", tmp_path / "t.h5")
            check_tokens(tmp_path / "t.h5", ids)
        (tmp_path / "llmc.bin").write_bytes(data[:-4])
        assert "1000 tokens, as its header says" in tool("import", tmp_path / "llmc.bin", "-o", tmp_path / "x.h5",
                                                         rc=65).stderr
    for data in ((tmp_path / "ids.npy").read_bytes() + b"more", (tmp_path / "ids.npy").read_bytes()[:-4]):
        (tmp_path / "size.npy").write_bytes(data)
        assert "size.npy: expected " in tool("import", tmp_path / "size.npy", "-o", tmp_path / "x.h5", rc=65).stderr
    np.save(tmp_path / "bad.npy", ids / 2)
    assert "float64" in tool("import", tmp_path / "bad.npy", "-o", tmp_path / "x.h5", rc=65).stderr
    (tmp_path / "x.bin").write_bytes(b"\x89HDF\r\n\x1a\n")
    told = tool("import", tmp_path / "x.bin", "--format", "bare", "--token-type", "uint16", "-o", tmp_path / "x.h5", rc=65)
    assert "HDF5 file" in told.stderr and not (tmp_path / "x.h5").exists()


def check_tokens(path, ids):
    with h5py.File(path, "r") as file:
        assert np.array_equal(file["tokens"][:], ids)


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_rows_of_ids(kind, tmp_path, tool, monkeypatch):
    monkeypatch.setattr(id_rows, "ROWS", 3)
    documents = [*documents_of([3, 0, 8, 1, 40, 2]), np.array([7, 8, 9])]
    path = tmp_path / f"ids.{'parquet' if kind == 'parquet' else 'arrow'}"

    def write(columns):
        table = pyarrow.table(columns)
        if kind == "parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=2)
            return
        opener = pyarrow.ipc.new_file if kind == "file" else pyarrow.ipc.new_stream
        with opener(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)

    lists = [document.tolist() for document in documents]
    write({"text": ["x"] * 7, "input_ids": lists})
    tool("import", path, "-o", tmp_path / "t.h5", "--vocab-size", 300)
    check(tmp_path / "t.h5", documents, 300)
    told = tool("tokenize", path, "--field", "content", "-o", tmp_path / "x.h5", rc=65).stderr
    assert "nanotron-import" in told
    write({"input_ids": [[*ids, 0, 0] for ids in lists], "attention_mask": [[1] * len(ids) + [0, 0] for ids in lists],
           "labels": [[-100] * (len(ids) // 2) + ids[len(ids) // 2:] + [-100] * 2 for ids in lists]})
    tool("import", path, "-o", tmp_path / "t.h5", "--vocab-size", 300)
    check(tmp_path / "t.h5", documents, 300)
    with h5py.File(tmp_path / "t.h5", "r") as file:
        assert file["loss_mask"][:].tolist() == sum(([0] * (n // 2) + [1] * (n - n // 2) for n in map(len, lists)), [])
    for columns, expected in (({"ids": lists}, "a column input_ids"), ({"input_ids": ["a"]}, "lists of integers"),
                              ({"input_ids": [[1], None]}, "without nulls"), ({"input_ids": [[1, None]]}, "without nulls"),
                              ({"input_ids": [[1, 2]], "labels": [[1]]}, "labels as long as input_ids")):
        write(columns)
        told = tool("import", path, "-o", tmp_path / "x.h5", "--vocab-size", 300, rc=65).stderr
        assert expected in told and str(path) in told and not (tmp_path / "x.h5").exists(), told


def test_a_folder_of_rows_is_its_files(tmp_path, tool):
    """As save_to_disk of datasets writes it; lists of one length, and large ones."""
    documents, folder = [np.arange(i, i + 4) for i in range(6)], tmp_path / "saved"
    folder.mkdir()
    for part, kind in enumerate((pyarrow.list_(pyarrow.int32(), 4), pyarrow.large_list(pyarrow.int64()))):
        table = pyarrow.table({"input_ids": pyarrow.array([ids.tolist() for ids in documents[3 * part:3 * part + 3]], kind)})
        with pyarrow.ipc.new_stream(folder / f"data-{part:05}-of-00002.arrow", table.schema) as writer:
            writer.write_table(table)
    (folder / "state.json").write_text('{"_data_files": []}')
    tool("import", folder, "-o", tmp_path / "t.h5", "--vocab-size", 30)
    check(tmp_path / "t.h5", documents, 30)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["saved", "test"]}')
    told = tool("import", tmp_path, "-o", tmp_path / "x.h5", "--vocab-size", 30, rc=65).stderr
    assert "index of splits" in told and "name the folder of one split" in told
    assert "index of splits" in tool("tokenize", tmp_path, "-o", tmp_path / "x.h5", rc=65).stderr


def test_command_lines(tmp_path, tool):
    (tmp_path / "x.bin").write_bytes(b"12")
    assert "give --format" in tool("import", tmp_path / "x.bin", "-o", tmp_path / "t.h5", rc=65).stderr
    assert "no such file" in tool("import", tmp_path / "y", "-o", tmp_path / "t.h5", rc=65).stderr
    told = tool("import", tmp_path / "x.bin", "--format", "megatron", "-o", tmp_path / "t.h5", rc=65).stderr
    assert f"{tmp_path / 'x.idx'}: expected" in told and "no such file" in told
    write_ds(tmp_path / "a.ds", documents_of([3]))
    write_megatron(tmp_path / "m", documents_of([3]))
    told = tool("import", tmp_path / "a.ds", tmp_path / "m", "-o", tmp_path / "t.h5", rc=64).stderr
    assert "one format, found ds, megatron" in told
    assert "--tokenizer" in tool("import", tmp_path / "m", "--eos", "x", "-o", tmp_path / "t.h5", rc=2).stderr
    (tmp_path / "bad.h5").write_bytes(b"no HDF5")
    assert "an HDF5 file" in tool("import", tmp_path / "bad.h5", "-o", tmp_path / "t.h5", rc=65).stderr
    assert not (tmp_path / "t.h5").exists()
