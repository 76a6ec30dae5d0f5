"""The random numbers of base/random.hpp, for scripts that make golden values."""

WORD = (1 << 32) - 1


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high, low = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(low >> 32) ^ c[1] ^ k[0], low & WORD, (high >> 32) ^ c[3] ^ k[1], high & WORD]
        k = [(k[0] + 0x9E3779B9) & WORD, (k[1] + 0xBB67AE85) & WORD]
    return c


def fnv1a(name):
    value = 2166136261
    for byte in name.encode():
        value = (value ^ byte) * 16777619 & WORD
    return value
