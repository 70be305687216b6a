"""CRC-32C (Castagnoli), the checksum that TensorFlow keeps of every tensor, vectorised with NumPy.

A CRC is linear, so data is cut into chunks of equal length whose CRCs are computed side by side and combined in pairs:
crc(a + b) is crc(b) xor crc(a) advanced by the length of b, as long as both start from zero.
"""

import numpy as np

POLYNOMIAL = 0x82F63B78
CHUNK_WORDS = 256
_ONES = 0xFFFFFFFF


def _table() -> np.ndarray:
    """(2, 65536): the CRC of a 32-bit word with each lower half, and with each upper half, the other half zero."""
    entry = np.arange(65536, dtype=np.uint32)
    for _ in range(16):
        entry = (entry >> 1) ^ np.where(entry & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    # Another 16 bits pass after the lower half.
    return np.stack([(entry >> 16) ^ entry[entry & 0xFFFF], entry])


TABLE = _table()


def _pass_words(crc: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Advance each crc (N,) by its column of words (T, N)."""
    for row in words:
        crc = crc ^ row
        crc = TABLE[0][crc & 0xFFFF] ^ TABLE[1][crc >> 16]
    return crc


def _multiply(crc: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Multiply crc (N,) by a matrix over bits, given by the images (32,) of single bits."""
    product = np.zeros_like(crc)
    for bit, image in enumerate(images):
        product ^= np.where((crc >> np.uint32(bit)) & 1, image, np.uint32(0))
    return product


def _pass_bytes(crc: int, rest: bytes) -> int:
    for byte in rest:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
    return crc


def _pass_chunks(crc: int, words: np.ndarray) -> int:
    """Advance crc by words (2^k * CHUNK_WORDS,)."""
    # Starting from `crc` equals starting from zero with `crc` xored into the first word.
    words = words.copy()
    words[0] ^= np.uint32(crc)
    chunks = _pass_words(np.zeros(len(words) // CHUNK_WORDS, np.uint32), words.reshape(-1, CHUNK_WORDS).T)
    images = _pass_words(np.uint32(1) << np.arange(32, dtype=np.uint32), np.zeros((CHUNK_WORDS, 1), np.uint32))
    while len(chunks) > 1:
        chunks = _multiply(chunks[0::2], images) ^ chunks[1::2]
        images = _multiply(images, images)
    return int(chunks[0])


def crc32c(data: bytes | np.ndarray) -> int:
    """The CRC-32C of bytes, or of those of a contiguous array."""
    view = np.frombuffer(data, np.uint8)
    words = view[: len(view) // 4 * 4].view("<u4")
    crc, begin = _ONES, 0
    while (chunks := (len(words) - begin) // CHUNK_WORDS) > 0:
        # Powers of two, so that chunks combine in pairs.
        end = begin + CHUNK_WORDS * (1 << (chunks.bit_length() - 1))
        crc, begin = _pass_chunks(crc, words[begin:end]), end
    crc = int(_pass_words(np.array([crc], np.uint32), words[begin:, None])[0])
    return _pass_bytes(crc, view[len(words) * 4 :].tobytes()) ^ _ONES


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """The CRC-32C as TensorFlow and LevelDB store it: rotated and offset, so that data may contain CRCs."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ONES
