"""torch_file, torch_save: what is written is read, what is hostile or damaged is refused and never run."""

import io
import os
import pickle
import random
import struct
import zipfile

import numpy as np
import pytest

from nanotron_tools import common, taken_over, torch_file, torch_pickle, torch_save
from nanotron_tools import safetensors as st


def archive(path, pickled, storages=(), compression=zipfile.ZIP_STORED, byteorder=b"little"):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("x/data.pkl", pickled)
        file.writestr("x/byteorder", byteorder)
        for key, data in enumerate(storages):
            file.writestr(f"x/data/{key}", data)
    return path


def refusal(path, **options):
    with pytest.raises(common.ToolError) as caught:
        torch_file.load(path, **options)
    assert caught.value.exit_code == 65
    return str(caught.value)


VALUE = {"state": {0: {"step": 3, "rate": 2.5, "name": "né"}}, "groups": [(1, 2), None, True, [], {}, -(1 << 70), ()],
         "many": list(range(5000))}


def test_round_trip(tmp_path):
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    written = VALUE | {"w": torch_save.New.of(weight), "s": torch_save.New.of(np.array(7.0)),
                       "b": torch_save.New("BF16", (3, 4), lambda: iter([weight[:1], weight[1:]]))}
    torch_save.save(written, tmp_path / "a.pt")
    read = torch_file.load(tmp_path / "a.pt")
    assert {key: read.object[key] for key in VALUE} == VALUE
    assert np.array_equal(taken_over.elements(read.stored(read.object["w"], "w")), weight)
    assert taken_over.elements(read.stored(read.object["s"], "s"))[0] == 7.0
    halves = read.stored(read.object["b"], "b")
    assert halves.dtype == "BF16"
    assert np.array_equal(taken_over.as_floats(halves, taken_over.elements(halves)), weight)


def test_a_part_of_a_file(tmp_path):
    torch_save.save({"w": torch_save.New.of(np.arange(4.0))}, tmp_path / "a.pt")
    inner = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "b").write_bytes(b"before" + inner + b"after")
    read = torch_file.load(tmp_path / "b", begin=6, size=len(inner))
    assert np.array_equal(taken_over.elements(read.stored(read.object["w"], "w")), np.arange(4.0))


class Runs:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("call, name", [
    ((os.system, ("touch HERE",)), "system"), ((eval, ("open('HERE', 'w')",)), "builtins.eval"),
    ((exec, ("open('HERE', 'w')",)), "builtins.exec"), ((getattr, (1, "real")), "builtins.getattr"),
    ((io.open, ("HERE", "w")), "open"), ((__import__, ("os",)), "__import__")])
def test_nothing_is_run(call, name, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refusal(archive(tmp_path / "a.pt", pickle.dumps({"a": Runs(*call)}, protocol=protocol)))
    assert name in said or "instruction" in said
    assert "nothing of the file was run" in said or protocol == 4
    assert not (tmp_path / "HERE").exists()
    assert not torch_pickle.ALLOWED.keys() & {"os.system", "builtins.eval", "builtins.getattr"}


@pytest.mark.parametrize("body, words", [
    (b"cos\nsystem\n(X\x02\x00\x00\x00idtR", "os.system"),
    (b"(dc__builtin__\neval\n", "instruction"), (b"c__builtin__\neval\n", "builtins.eval"),
    (b"ctorch.hub\nload\n)R", "torch.hub.load"), (b"c" + b"a" * 5000, "4096"),
    (b"}(K\x01K\x02K\x03u", "without a value"), (b"K\x05(K\x01e", "element of a int"), (b"NK\x01b", "state of an object"),
    (b"ctorch\nfloat32\n)R", "a call of"), (b"K\x01)R", "a call of 1"), (b"h\x07", "damaged"), (b"", "damaged"),
    (b"X\xff\xff\xff\x7f", "bytes"), (b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R", "bytes that are not"),
    (b"(X\x05\x00\x00\x00otherctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ", "not a storage"),
    (b"ctorch._utils\n_rebuild_sparse_tensor\n)R", "not read here"),
    (b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00)))tR", "without a storage"),
    (b"X\x09\x00\x00\x00ab", "too early"),
    (b"c_codecs\nencode\nX\x03\x00\x00\x00\xed\xa0\x80X\x05\x00\x00\x00utf-8\x86R", "damaged (UnicodeEncodeError")])
def test_pickles_that_torch_does_not_write(body, words, tmp_path):
    assert words in refusal(archive(tmp_path / "a.pt", b"\x80\x02" + body + b"."))


def test_sharing_costs_no_time(tmp_path):
    """Tuples of the same tuple, 60 deep: their text or hash would take 2^60 steps."""
    deep = b"K\x01q\x00" + b"".join(b"h\x00h\x00\x86q\x00" for _ in range(60))
    for end in (b"K\x01s", b"R"):
        refusal(archive(tmp_path / "a.pt", b"\x80\x02}" + deep + end + b"."))


def test_a_short_call_copies_no_long_object(tmp_path):
    """A dictionary of 20,000 entries, copied 20,000 times by four bytes each."""
    long = b"}q\x00(" + b"".join(b"J" + struct.pack("<i", key) + b"N" for key in range(20000)) + b"u0"
    copies = b"ccollections\nOrderedDict\nq\x010](" + 20000 * b"h\x01h\x00\x85R" + b"e"
    assert "copy one object many times" in refusal(archive(tmp_path / "a.pt", b"\x80\x02" + long + copies + b"."),
                                                   foreign=["a.b"])


def test_other_classes_are_data(tmp_path):
    from argparse import Namespace

    path = archive(tmp_path / "a.pt", pickle.dumps({"args": Namespace(rate=0.5)}, protocol=4))
    found = torch_file.load(path, foreign=["argparse.Namespace"]).object["args"]
    assert isinstance(found, torch_pickle.Foreign) and found.get("rate") == 0.5
    assert "argparse.Namespace" in refusal(path, foreign=["argparse.Other"])


def test_damaged_files(tmp_path):
    path = tmp_path / "a.pt"
    torch_save.save({"w": torch_save.New.of(np.ones(100))}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "zip archive" in refusal(path)
    place = whole.index(np.ones(100).tobytes())
    path.write_bytes(whole[:place + 8] + b"\x01" + whole[place + 9:])
    assert "CRC" in refusal(path)
    assert "no such file" in refusal(tmp_path / "b.pt")
    assert "without compression" in refusal(archive(path, b"\x80\x02N." + b" " * 999, compression=zipfile.ZIP_DEFLATED))
    assert "little-endian" in refusal(archive(path, b"\x80\x02N.", byteorder=b"big"))
    path.write_bytes(pickle.dumps({"a": 1}, protocol=2))
    assert "PyTorch 1.6" in refusal(path)
    path.write_bytes(whole[17:])
    assert "zip archive" in refusal(path)


def test_tensors_beyond_their_storage(tmp_path):
    def saved(offset, shape, stride, data=bytes(40)):
        text = [b"".join((b"(", *(b"J" + struct.pack("<i", each) for each in lengths), b"t")) for lengths in (shape, stride)]
        storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x0atQ"
        body = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"J" + struct.pack("<i", offset) + text[0] + text[1]
        return torch_file.load(archive(tmp_path / "a.pt", body + b"\x89NtR.", [data]))

    read = saved(2, (2, 4), (4, 1))
    assert read.stored(read.object, "w").shape == (2, 4)
    for arguments, words in (((3, (2, 4), (4, 1)), "bytes of storage"), ((0, (2, 4), (1, 2)), "contiguous"),
                             ((0, (2, 4), (4, 1), bytes(8)), "bytes of storage")):
        read = saved(*arguments)
        with pytest.raises(common.ToolError, match=words):
            read.stored(read.object, "w")
    with pytest.raises(common.ToolError, match="an offset is -1"):
        saved(-1, (2, 4), (4, 1))


def test_random_damage_of_a_pickle(tmp_path):
    """Whatever bytes change: an object of known types, or an error that names what is wrong."""
    torch_save.save(VALUE | {"many": 0, "w": torch_save.New.of(np.ones(10))}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as file:
        good = file.read("a/data.pkl")
    draw = random.Random(20261126)
    refused = 0
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        try:
            torch_pickle.load(io.BytesIO(bytes(bad)), len(bad), "here", draw.choice([(), ("a.b",)]))
        except common.ToolError:
            refused += 1
    assert 500 < refused < 3000


def test_types_that_are_no_floats(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(8))
    with pytest.raises(common.ToolError, match="F32, BF16, F16, F64\n  found:  I64"):
        taken_over.elements(st.StoredTensor(path, "I64", (1,), 0))
