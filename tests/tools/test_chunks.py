# timeout: 300
"""A document's tokens do not depend on how it is cut into chunks, for every kind of tokenizer."""

import random

import conftest  # puts tools/ on the path
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from nanotron_tools import common, corpus, encode, stitch
from nanotron_tools.tokenizers import ByteTokenizer, HuggingFaceTokenizer

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "Grüße", "naïve", "你好", "мир", "1234567", "3.14159", "don't",
         "e\u0301te\u0301", "😀😀", "int main() {", "}", "</s>", "\t\treturn 0;", "www.example.org/a/b?c=d", "      "]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def prose(count, seed=1, line_ends=True):
    draw = random.Random(seed)
    gaps = [" ", " ", " ", "  ", ""] + (["\n", "\r\n", "\n\n"] if line_ends else [])
    return "".join(draw.choice(WORDS) + draw.choice(gaps) for _ in range(count))


def trained(model, trainer, normalizer=None, pre_tokenizer=None, decoder=None, processor=None):
    made = Tokenizer(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)):
        if part is not None:
            setattr(made, name, part)
    made.train_from_iterator([prose(400, seed) for seed in range(20, 26)], trainer=trainer)
    if processor:
        made.post_processor = processor(made)
    return made


def template(made):
    """As Llama's: a beginning-of-text token in front, and an end."""
    return processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[(n, made.token_to_id(n))
                                                                               for n in ("<s>", "</s>")])


def bpe(**options):
    return trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, **options)


def alphabet():
    return bpe(initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))


def metaspace(scheme, split):
    space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=split)
    return trained(models.BPE(unk_token="<unk>", fuse_unk=True), bpe(), None, space,
                   decoders.Metaspace(prepend_scheme=scheme), template)


def legacy_llama():
    """No pre-tokenizer: merges go over the whole text, which begins with a mark."""
    marks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made = trained(models.BPE(unk_token="<unk>"), bpe(), None, pre_tokenizers.Metaspace(prepend_scheme="first"),
                   None, template)
    made.pre_tokenizer = None
    made.normalizer = marks
    return made


def byte_level(prefix, trim=True):
    return trained(models.BPE(), alphabet(), None, pre_tokenizers.ByteLevel(add_prefix_space=prefix), None,
                   lambda _: processors.ByteLevel(trim_offsets=trim))


def llama3():
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return trained(models.BPE(), alphabet(), normalizers.NFC(), split, decoders.ByteLevel(), template)


def unigram():
    special = ["<unk>", "<s>", "</s>"]
    return trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>",
                                                             show_progress=False),
                   normalizers.NFKC(), pre_tokenizers.Metaspace(prepend_scheme="always"), None, template)


def word_piece():
    special = ["[UNK]", "[CLS]", "[SEP]"]
    return trained(models.WordPiece(unk_token="[UNK]"),
                   trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False),
                   normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer(), None,
                   lambda made: processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)))


KINDS = {
    "metaspace first": lambda: metaspace("first", True), "metaspace always": lambda: metaspace("always", True),
    "metaspace never": lambda: metaspace("never", True), "metaspace unsplit": lambda: metaspace("first", False),
    "legacy llama": legacy_llama, "byte level": lambda: byte_level(False),
    "byte level with prefix space": lambda: byte_level(True), "untrimmed": lambda: byte_level(True, False),
    "llama 3": llama3, "unigram": unigram, "word piece": word_piece,
}


def remade(tokenizer):
    """As read from a file: its scores are rounded in writing."""
    return Tokenizer.from_str(tokenizer.to_str())


def encode_in_chunks(made, path, chunk_bytes, max_bytes=None):
    found = []
    encoder = encode.Encoder(made, encode.Settings("text", None, True, chunk_bytes))
    for chunk in corpus.make_chunks(conftest.spans_of(path), chunk_bytes, max_bytes, "text"):
        found += encoder.encode(chunk).tokens.tolist()
    return found


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(stitch, "NEAR", 128)
    monkeypatch.setattr(stitch, "CONTEXT", 256)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_the_whole(kind, tmp_path, small_windows):
    tokenizer = remade(KINDS[kind]())
    made = HuggingFaceTokenizer(kind, tokenizer.to_str(), "none")
    for line_ends in (True, False):
        text = prose(1500, 7, line_ends)
        (tmp_path / "x.txt").write_bytes(text.encode())
        whole = made.plain.encode((tmp_path / "x.txt").read_bytes().decode(), add_special_tokens=False).ids
        assert len(whole) > 1000
        for chunk_bytes in (997, 2500, 1 << 20):
            assert encode_in_chunks(made, tmp_path / "x.txt", chunk_bytes) == whole, (kind, chunk_bytes)


def word_level():
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


@pytest.mark.parametrize("kind", [*KINDS, "word level"])
def test_names_of_special_tokens_are_text(kind, tmp_path, small_windows):
    """No special token comes of a text, but the unknown; other texts have the tokens of the tokenizer as it is."""
    tokenizer = remade((KINDS | {"word level": word_level})[kind]())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    assert len(special) == 3
    unknown = {tokenizer.token_to_id("<unk>"), tokenizer.token_to_id("[UNK]")}
    ids = {tokenizer.token_to_id(name) for name in special} - unknown
    made = HuggingFaceTokenizer(kind, tokenizer.to_str(), "none")
    parsing = HuggingFaceTokenizer(kind, tokenizer.to_str(), "none", None, True)
    plain = prose(1500, 9).replace("</s>", "s")
    assert made.encode(plain.encode()).tolist() == tokenizer.encode(plain, add_special_tokens=False).ids
    text = plain[:700] + f" {special[1]} and{special[2]}the {special[0]}{special[1]} " + plain[700:]
    assert ids <= set(parsing.encode(text.encode()).tolist())
    found = made.encode(text.encode()).tolist()
    assert not ids & set(found)
    (tmp_path / "x.txt").write_bytes(text.encode())
    assert encode_in_chunks(made, tmp_path / "x.txt", 997) == found
    words = made.vocabulary()
    if kind in ("byte level", "llama 3"):
        assert b"".join(words[i] for i in found).decode() == text or kind == "llama 3"  # NFC


def test_marks_of_a_document_are_written_once(tmp_path, small_windows):
    """No prefix mark or special token at the borders of chunks; --bos and --eos at the ends alone."""
    tokenizer = metaspace("always", True)
    made = HuggingFaceTokenizer("m", tokenizer.to_str(), "</s>", "<s>")
    (tmp_path / "x.txt").write_text("fox" * 1000)
    assert encode_in_chunks(made, tmp_path / "x.txt", 500) == [
        made.bos, *tokenizer.encode("fox" * 1000, add_special_tokens=False).ids, made.eos]


def test_runs_longer_than_windows(tmp_path, small_windows):
    """Where tokens depend on where a run begins, the chunk continues to the end of the run."""
    for kind in ("legacy llama", "byte level", "llama 3"):
        tokenizer = remade(KINDS[kind]())
        made = HuggingFaceTokenizer(kind, tokenizer.to_str(), "none")
        for run in (" " * 5001, "7" * 4999, "na" * 2501, "ï" * 2000):
            text = prose(200, 3) + run + prose(300, 4)
            (tmp_path / "x.txt").write_bytes(text.encode())
            whole = made.plain.encode(text, add_special_tokens=False).ids
            for chunk_bytes in (1000, 1024):
                assert encode_in_chunks(made, tmp_path / "x.txt", chunk_bytes) == whole, (kind, run[:4])


def test_damaged_text_is_refused_at_its_byte(tmp_path, small_windows):
    """Wherever chunks and their windows begin; what comes before it is told of no other byte."""
    made = HuggingFaceTokenizer("b", byte_level(False).to_str(), "none")
    text = prose(1500, 7).encode()
    for place in (0, 1, 1000, 2001, len(text) - 1):
        while corpus.character_start(text, place) != place:
            place += 1
        for damage in (b"\xfc", b"\x80\x80\x80", b"\xe4\xbd"):
            data = text[:place] + damage + text[place:]
            (tmp_path / "x.txt").write_bytes(data)
            for chunk_bytes in (400, 1001, 1 << 20):
                with pytest.raises(common.BadRecord, match=f"x.txt, byte {place}: expected text in UTF-8\n.*0x{damage[0]:02x}"):
                    encode_in_chunks(made, tmp_path / "x.txt", chunk_bytes)
            assert encode_in_chunks(ByteTokenizer(False), tmp_path / "x.txt", 400) == list(data)


def test_a_byte_order_mark_is_no_text(tmp_path, small_windows):
    made = HuggingFaceTokenizer("b", metaspace("first", True).to_str(), "none")
    for text in (prose(300, 5), "the", ""):
        (tmp_path / "x.txt").write_bytes(text.encode("utf-8-sig"))
        expected = made.encode(text.encode()).tolist()
        for chunk_bytes in (*range(1, 5 if len(text) < 9 else 1), 400, 1 << 20):
            assert encode_in_chunks(made, tmp_path / "x.txt", chunk_bytes) == expected
            assert encode_in_chunks(ByteTokenizer(False), tmp_path / "x.txt", chunk_bytes) == list(text.encode())
        for limit in (1, 2, 3):
            assert encode_in_chunks(made, tmp_path / "x.txt", 400, limit) == []
    assert encode_in_chunks(made, tmp_path / "x.txt", 400) == []  # the mark alone


def test_a_character_that_max_bytes_cuts_is_left_out(tmp_path, small_windows):
    made = HuggingFaceTokenizer("b", byte_level(False).to_str(), "none")
    (tmp_path / "y.txt").write_bytes("你好".encode() * 500)
    for limit in (1000, 1001, 1002):
        expected = made.encode(("你好" * 500).encode()[:limit // 3 * 3]).tolist()
        assert encode_in_chunks(made, tmp_path / "y.txt", 300, limit) == expected
        spans = conftest.spans_of(tmp_path / "y.txt")
        assert "".join(map(corpus.read_text, corpus.make_chunks(spans, 300, limit, ""))) == ("你好" * 500)[:limit // 3]


def test_characters_are_found():
    data = "aé你😀".encode()
    starts = [0, 1, 1, 3, 3, 3, 6, 6, 6, 6]
    assert [corpus.character_start(data, i) for i in range(len(data))] == starts
    assert corpus.character_start(b"\x80" * 8, 6) == 6
