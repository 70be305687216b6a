"""CRC-32C (Castagnoli), the checksum that TensorFlow keeps of every tensor, at the speed of NumPy.

A CRC is linear, so a long text is cut into pieces of equal length, the CRCs of all pieces are made side by side, and
neighbours are joined: crc(a + b) is crc(a), moved on by the length of b, xor crc(b), as long as both start from zero.
"""

import numpy as np

POLYNOMIAL = 0x82F63B78
WORDS_A_PIECE = 256
_ONES = 0xFFFFFFFF


def _table() -> np.ndarray:
    """(2, 65536): what the lower and the upper half of a 32-bit word become after its four bytes have passed."""
    entry = np.arange(65536, dtype=np.uint32)
    for _ in range(16):
        entry = (entry >> 1) ^ np.where(entry & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    # The lower half has another 16 bits to go.
    return np.stack([(entry >> 16) ^ entry[entry & 0xFFFF], entry])


TABLE = _table()


def _pass_words(crc: np.ndarray, words: np.ndarray) -> np.ndarray:
    """crc (N,) after words (T, N) have passed, a column for each."""
    for row in words:
        crc = crc ^ row
        crc = TABLE[0][crc & 0xFFFF] ^ TABLE[1][crc >> 16]
    return crc


def _moved_on(crc: np.ndarray, images: np.ndarray) -> np.ndarray:
    """crc (N,) times a matrix over bits, given as the images (32,) of single bits."""
    moved = np.zeros_like(crc)
    for bit, image in enumerate(images):
        moved ^= np.where((crc >> np.uint32(bit)) & 1, image, np.uint32(0))
    return moved


def _pass_bytes(crc: int, rest: bytes) -> int:
    for byte in rest:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
    return crc


def _pass_pieces(crc: int, words: np.ndarray) -> int:
    """crc after words (2^k * WORDS_A_PIECE,) have passed."""
    # A CRC that starts from `crc` is one that starts from zero and finds `crc` added to its first word.
    words = words.copy()
    words[0] ^= np.uint32(crc)
    pieces = _pass_words(np.zeros(len(words) // WORDS_A_PIECE, np.uint32), words.reshape(-1, WORDS_A_PIECE).T)
    images = _pass_words(np.uint32(1) << np.arange(32, dtype=np.uint32), np.zeros((WORDS_A_PIECE, 1), np.uint32))
    while len(pieces) > 1:
        pieces = _moved_on(pieces[0::2], images) ^ pieces[1::2]
        images = _moved_on(images, images)
    return int(pieces[0])


def crc32c(data: bytes | np.ndarray) -> int:
    """The CRC-32C of bytes, or of the bytes of a contiguous array."""
    view = np.frombuffer(data, np.uint8)
    words = view[: len(view) // 4 * 4].view("<u4")
    crc, begin = _ONES, 0
    while (pieces := (len(words) - begin) // WORDS_A_PIECE) > 0:
        # Powers of two, so that the pieces can be joined in pairs.
        end = begin + WORDS_A_PIECE * (1 << (pieces.bit_length() - 1))
        crc, begin = _pass_pieces(crc, words[begin:end]), end
    crc = int(_pass_words(np.array([crc], np.uint32), words[begin:, None])[0])
    return _pass_bytes(crc, view[len(words) * 4 :].tobytes()) ^ _ONES


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """The CRC-32C as TensorFlow and LevelDB store it: turned and shifted, so that a CRC of CRCs stays of use."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ONES
