"""Pickles of PyTorch, read without PyTorch and without running anything.

The rules are those of torch.load(weights_only=True), torch/_weights_only_unpickler.py of PyTorch 2.15.0: the same
instructions, the same names. A name is never looked up in a module: what stands for it here is a row of a table. A
name that is not in the table is an error, and so is a call with other arguments than torch.save writes. What the rules
allow and no checkpoint needs (sparse or quantised tensors) is an error as well.

A reader of other files may name further classes (`foreign`), or with a dot at the end the modules below a name. Their
objects become Foreign: the arguments and the state, as data. With them the instructions of protocols 3 to 5 are read,
since such files are of pickle.dump.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from . import common

DTYPES = {"float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "float16": "F16", "half": "F16",
          "bfloat16": "BF16", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
          "long": "I64", "bool": "BOOL"}
STORAGES = {"torch.DoubleStorage": "F64", "torch.FloatStorage": "F32", "torch.HalfStorage": "F16",
            "torch.BFloat16Storage": "BF16", "torch.ByteStorage": "U8", "torch.CharStorage": "I8",
            "torch.ShortStorage": "I16", "torch.IntStorage": "I32", "torch.LongStorage": "I64",
            "torch.BoolStorage": "BOOL", "torch.storage.UntypedStorage": "U8"}
MAX_TEXT = 1 << 24


class BadPickle(ValueError):
    """What is wrong with a pickle."""


@dataclass(frozen=True)
class Storage:
    dtype: str
    key: str
    numel: int


@dataclass(frozen=True)
class Tensor:
    """A view of a storage; lengths in elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class Name:
    """What stands for a class, a function, a type of numbers."""

    path: str
    call: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return self.path


@dataclass(eq=False)
class Foreign:
    """An object of a class that the reader named."""

    path: str
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    def get(self, key: str, default: Any = None) -> Any:
        return self.state.get(key, default) if isinstance(self.state, dict) else default


def _is_key(value: Any) -> bool:
    """Whether hashing takes no longer than reading: a tuple within tuples may take exponential time."""
    if isinstance(value, tuple):
        return all(isinstance(each, (str, int, float, Name)) for each in value)
    return value is None or isinstance(value, (str, bytes, int, float, Foreign, Name))


def _shown(value: Any) -> str:
    """For messages; the text of a tuple within tuples may take exponential time."""
    if value is None or isinstance(value, (str, int, float, Name)):
        return f"{value!r:.80}"
    return f"a {type(value).__name__}"


def _entry(key: Any) -> Any:
    if not _is_key(key):
        raise BadPickle(f"a key of type {type(key).__name__}")
    return key


def _whole(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise BadPickle(f"{what} is {_shown(value)}")
    return value


def _lengths(value: Any, what: str) -> tuple[int, ...]:
    if type(value) is not tuple or len(value) > 64:
        raise BadPickle(f"{what} is {_shown(value)}")
    return tuple(_whole(each, what) for each in value)


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any, dtype: str = "") -> Tensor:
    if not isinstance(storage, Storage):
        raise BadPickle("a tensor without a storage")
    shape, stride = _lengths(shape, "a shape"), _lengths(stride, "a stride")
    if len(shape) != len(stride):
        raise BadPickle(f"shape {shape} and stride {stride}")
    return Tensor(storage, dtype or storage.dtype, _whole(offset, "an offset"), shape, stride)


def _tensor_v3(storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any,
               *_: Any) -> Tensor:
    name = getattr(dtype, "path", "").removeprefix("torch.")
    if name not in DTYPES:
        raise BadPickle(f"a tensor of type {_shown(dtype)}")
    return _tensor(storage, offset, shape, stride, dtype=DTYPES[name])


def _parameter(data: Any, *_: Any) -> Tensor:
    if not isinstance(data, Tensor):
        raise BadPickle("a parameter without a tensor")
    return data


def _pairs(items: Any = ()) -> dict[Any, Any]:
    if isinstance(items, dict):
        return dict(items)
    if not isinstance(items, (list, tuple)) or any(not isinstance(each, (list, tuple)) or len(each) != 2
                                                   for each in items):
        raise BadPickle("a dictionary that is not made of pairs")
    return {_entry(key): value for key, value in items}


def _set(items: Any = ()) -> set[Any]:
    if not isinstance(items, (list, tuple, set)):
        raise BadPickle("a set that is not made of a list")
    return {_entry(each) for each in items}


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8"):
        raise BadPickle("bytes that are not made of a text")
    return text.encode(encoding)


def _bytearray(data: Any = b"", *encoding: Any) -> bytes:
    return bytes(data) if isinstance(data, bytes) else _encoded(data, *encoding)


def _complex(real: Any = 0.0, imaginary: Any = 0.0) -> complex:
    if not isinstance(real, (int, float)) or not isinstance(imaginary, (int, float)):
        raise BadPickle("a complex number that is not made of two numbers")
    return complex(real, imaginary)


def _size(items: Any = ()) -> tuple[int, ...]:
    return _lengths(tuple(items) if isinstance(items, (list, tuple)) else items, "a torch.Size")


def _device(*arguments: Any) -> str:
    return ":".join(str(each) for each in arguments if isinstance(each, (str, int)))


def _refusal(path: str) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise BadPickle(f"{path}, which is not read here")
    return call


CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _pairs, "collections.Counter": _pairs, "builtins.set": _set,
    "builtins.bytearray": _bytearray, "builtins.complex": _complex, "_codecs.encode": _encoded, "torch.Size": _size,
    "torch.device": _device, "torch._utils._rebuild_tensor": _tensor, "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3, "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter, "torch.nn.parameter.Parameter": _parameter}
REFUSED = ("torch.Tensor", "torch.serialization._get_layout", "torch._tensor._rebuild_from_type_v2", *(
    "torch._utils._rebuild_" + name for name in (
        "qtensor", "sparse_tensor", "meta_tensor_no_storage", "wrapper_subclass", "device_tensor_from_numpy",
        "device_tensor_from_cpu_tensor")))
ALLOWED = {path: Name(path, call) for path, call in CALLS.items()} | \
    {path: Name(path, _refusal(path)) for path in REFUSED} | \
    {path: Name(path) for path in (*STORAGES, "torch.storage.TypedStorage", *("torch." + name for name in DTYPES))}
RENAMED = {"__builtin__": "builtins"}  # of protocol 2, by Python 3


class Unpickler:
    """load() gives dicts, lists, tuples, sets, numbers, texts, Tensor and Foreign; BadPickle for everything else."""

    def __init__(self, file: BinaryIO, size: int, foreign: Collection[str] = ()):
        self.file, self.left, self.foreign = file, size, frozenset(foreign)
        self.modules = tuple(name for name in foreign if name.endswith("."))
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.copies = 1024 + 8 * size  # elements that calls may still make: a short one can copy a long object

    def load(self) -> Any:
        try:
            while True:
                code = self.read(1)
                if code == b".":
                    return self.stack.pop()
                found = INSTRUCTIONS.get(code) or (INSTRUCTIONS_OF_PICKLE.get(code) if self.foreign else None)
                if found is None:
                    raise BadPickle(f"the instruction {code!r}")
                found(self)
        except BadPickle:
            raise
        except (IndexError, KeyError, struct.error, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise BadPickle(f"damaged ({type(error).__name__}: {error})") from None

    def read(self, count: int) -> bytes:
        if count > self.left:
            raise BadPickle("it ends too early")
        data = self.file.read(count)
        self.left -= count
        if len(data) != count:
            raise BadPickle("it ends too early")
        return data

    def skip(self, count: int) -> None:
        self.read(count)

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.read(struct.calcsize(form)))[0]

    def line(self) -> str:
        data = bytearray()
        while (byte := self.read(1)) != b"\n":
            data += byte
            if len(data) > 4096:
                raise BadPickle("a name of more than 4096 bytes")
        return data.decode("utf-8")

    def text(self, form: str) -> None:
        length = self.number(form)
        if length > MAX_TEXT:
            raise BadPickle(f"a text of {length} bytes")
        self.stack.append(self.read(length).decode("utf-8", "surrogatepass"))

    def data(self, form: str) -> None:
        self.stack.append(self.read(self.number(form)))

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def collect(self, made: Callable[[list[Any]], Any]) -> None:
        items = self.since_mark()
        self.stack.append(made(items))

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def gather(self, count: int) -> None:
        if len(self.stack) < count:
            raise BadPickle("a tuple of what is not there")
        self.stack[len(self.stack) - count:] = [tuple(self.stack[len(self.stack) - count:])]

    def name(self, module: Any, attribute: Any) -> None:
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise BadPickle("a name that is not a text")
        path = f"{RENAMED.get(module, module)}.{attribute}"
        if path in self.foreign or path.startswith(self.modules):
            self.stack.append(Name(path, lambda *arguments: Foreign(path, arguments)))
        elif path in ALLOWED:
            self.stack.append(ALLOWED[path])
        else:
            raise BadPickle(f"the name {path!r:.200}, which torch.load(weights_only=True) does not allow either; "
                            "nothing of the file was run")

    def reduce(self) -> None:
        arguments, what = self.stack.pop(), self.stack.pop()
        if not isinstance(what, Name) or what.call is None or type(arguments) is not tuple:
            raise BadPickle(f"a call of {_shown(what)}")
        made = what.call(*arguments)
        self.copies -= len(made) if isinstance(made, (bytes, dict, set, tuple)) else 0
        if self.copies < 0:
            raise BadPickle("calls that copy one object many times")
        self.stack.append(made)

    def build(self) -> None:
        state, what = self.stack.pop(), self.stack[-1]
        if isinstance(what, Foreign):
            what.state = state
        elif type(what) is not dict:  # attributes of an OrderedDict, as _metadata, are left out
            raise BadPickle(f"the state of an object of type {type(what).__name__}")

    def put(self, key: Any, value: Any) -> None:
        target = self.stack[-1]
        if isinstance(target, Foreign):
            target.items.append((key, value))
        elif type(target) is dict:
            target[_entry(key)] = value
        else:
            raise BadPickle(f"an entry of a {type(target).__name__}")

    def put_all(self) -> None:
        items = self.since_mark()
        if len(items) % 2:
            raise BadPickle("an entry without a value")
        for key, value in zip(items[::2], items[1::2]):
            self.put(key, value)

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Foreign):
            target.items.extend(items)
        elif type(target) is list:
            target.extend(items)
        else:
            raise BadPickle(f"an element of a {type(target).__name__}")

    def add_all(self) -> None:
        items = self.since_mark()
        if type(self.stack[-1]) is not set:
            raise BadPickle(f"an element of a {type(self.stack[-1]).__name__}")
        self.stack[-1].update(_entry(item) for item in items)

    def dictionary(self) -> None:
        items = self.since_mark()
        self.stack.append(_pairs(list(zip(items[::2], items[1::2]))))

    def persistent(self) -> None:
        found = self.stack.pop()
        if type(found) is not tuple or len(found) != 5 or found[0] != "storage" or not isinstance(found[1], Name) or \
                found[1].path not in STORAGES or not isinstance(found[2], str):
            raise BadPickle("a reference to what is not a storage")
        self.stack.append(Storage(STORAGES[found[1].path], found[2], _whole(found[4], "the length of a storage")))

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


def _push(value: Callable[[], Any]) -> Callable[[Unpickler], None]:
    return lambda u: u.stack.append(value())


INSTRUCTIONS: dict[bytes, Callable[[Unpickler], None]] = {
    b"\x80": lambda u: u.skip(1), b"c": lambda u: u.name(u.line(), u.line()),
    b"\x81": Unpickler.reduce, b"R": Unpickler.reduce, b"b": Unpickler.build,
    b"a": lambda u: u.extend([u.stack.pop()]), b"e": lambda u: u.extend(u.since_mark()),
    b"s": lambda u: (lambda value, key: u.put(key, value))(u.stack.pop(), u.stack.pop()), b"u": Unpickler.put_all,
    b"(": Unpickler.mark, b"t": lambda u: u.collect(tuple),
    b"\x85": lambda u: u.gather(1), b"\x86": lambda u: u.gather(2), b"\x87": lambda u: u.gather(3),
    b"N": _push(lambda: None), b"\x88": _push(lambda: True), b"\x89": _push(lambda: False), b")": _push(tuple),
    b"]": _push(list), b"}": _push(dict), b"\x8f": _push(set),
    b"J": lambda u: u.stack.append(u.number("<i")), b"K": lambda u: u.stack.append(u.number("<B")),
    b"M": lambda u: u.stack.append(u.number("<H")), b"G": lambda u: u.stack.append(u.number(">d")),
    b"\x8a": lambda u: u.stack.append(int.from_bytes(u.read(u.number("<B")), "little", signed=True)),
    b"X": lambda u: u.text("<I"), b"U": lambda u: u.data("<B"), b"Q": Unpickler.persistent,
    b"h": lambda u: u.stack.append(u.memo[u.number("<B")]), b"j": lambda u: u.stack.append(u.memo[u.number("<I")]),
    b"q": lambda u: u.remember(u.number("<B")), b"r": lambda u: u.remember(u.number("<I"))}
INSTRUCTIONS_OF_PICKLE: dict[bytes, Callable[[Unpickler], None]] = {
    b"\x8c": lambda u: u.text("<B"), b"\x8d": lambda u: u.text("<Q"), b"B": lambda u: u.data("<I"),
    b"C": lambda u: u.data("<B"), b"\x8e": lambda u: u.data("<Q"), b"\x96": lambda u: u.data("<Q"),
    b"\x93": lambda u: (lambda attribute, module: u.name(module, attribute))(u.stack.pop(), u.stack.pop()),
    b"\x94": lambda u: u.remember(len(u.memo)), b"\x95": lambda u: u.skip(8),
    b"\x90": Unpickler.add_all, b"\x91": lambda u: u.collect(_set),
    b"l": lambda u: u.collect(list), b"d": Unpickler.dictionary, b"0": lambda u: u.stack.pop() and None}


def load(file: BinaryIO, size: int, where: object, foreign: Collection[str] = ()) -> Any:
    """The object of a pickle of `size` bytes; common.ToolError names what cannot be read."""
    try:
        return Unpickler(file, size, foreign).load()
    except BadPickle as error:
        raise common.wrong(where, "a pickle of numbers, texts, lists, dictionaries and tensors", str(error),
                           "copy the file again; if it is whole, save it with torch.save and tensors alone") from None
