"""XXH3-64 with a seed: libxxhash if it is installed, otherwise the algorithm in plain Python.

Written from the published description of XXH3 (default secret, 64-bit result).
"""
import ctypes
import ctypes.util
import struct

MASK = (1 << 64) - 1
PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME64_4, PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
PRIME_MX1, PRIME_MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def read64(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")


def read32(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")


def fold(a: int, b: int) -> int:
    product = a * b
    return (product & MASK) ^ (product >> 64)


def rotate(value: int, count: int) -> int:
    return ((value << count) | (value >> (64 - count))) & MASK


def avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * PRIME_MX1 & MASK
    return value ^ (value >> 32)


def avalanche_short(value: int) -> int:
    value = (value ^ (value >> 33)) * PRIME64_2 & MASK
    value = (value ^ (value >> 29)) * PRIME64_3 & MASK
    return value ^ (value >> 32)


def mix16(data: bytes, offset: int, secret: int, seed: int) -> int:
    low = read64(data, offset) ^ (read64(SECRET, secret) + seed & MASK)
    high = read64(data, offset + 8) ^ (read64(SECRET, secret + 8) - seed & MASK)
    return fold(low, high)


def hash_up_to_16(data: bytes, seed: int) -> int:
    length = len(data)
    if length == 0:
        return avalanche_short(seed ^ read64(SECRET, 56) ^ read64(SECRET, 64))
    if length <= 3:
        combined = data[0] << 16 | data[length >> 1] << 24 | data[-1] | length << 8
        return avalanche_short(combined ^ ((read32(SECRET, 0) ^ read32(SECRET, 4)) + seed & MASK))
    if length <= 8:
        swapped = int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big")
        seed ^= swapped << 32
        words = read32(data, length - 4) + (read32(data, 0) << 32)
        value = words ^ ((read64(SECRET, 8) ^ read64(SECRET, 16)) - seed & MASK)
        value ^= rotate(value, 49) ^ rotate(value, 24)
        value = value * PRIME_MX2 & MASK
        value ^= (value >> 35) + length
        value = value * PRIME_MX2 & MASK
        return value ^ (value >> 28)
    low = read64(data, 0) ^ ((read64(SECRET, 24) ^ read64(SECRET, 32)) + seed & MASK)
    high = read64(data, length - 8) ^ ((read64(SECRET, 40) ^ read64(SECRET, 48)) - seed & MASK)
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    return avalanche(length + swapped + high + fold(low, high) & MASK)


def hash_up_to_240(data: bytes, seed: int) -> int:
    length = len(data)
    value = length * PRIME64_1 & MASK
    if length <= 128:
        for i in reversed(range((length - 1) // 32 + 1)):
            value += mix16(data, 16 * i, 32 * i, seed)
            value += mix16(data, length - 16 * (i + 1), 32 * i + 16, seed)
        return avalanche(value & MASK)
    for i in range(8):
        value += mix16(data, 16 * i, 16 * i, seed)
    value = avalanche(value & MASK)
    for i in range(8, length // 16):
        value += mix16(data, 16 * i, 16 * (i - 8) + 3, seed)
    return avalanche(value + mix16(data, length - 16, 136 - 17, seed) & MASK)


def accumulate(sums: list, data: bytes, offset: int, key: tuple) -> None:
    words = struct.unpack_from("<8Q", data, offset)
    for i, word in enumerate(words):
        keyed = word ^ key[i]
        sums[i ^ 1] += word
        sums[i] += (keyed & 0xFFFFFFFF) * (keyed >> 32)


def hash_long(data: bytes, seed: int) -> int:
    secret = b"".join(
        struct.pack("<QQ", read64(SECRET, 16 * i) + seed & MASK, read64(SECRET, 16 * i + 8) - seed & MASK)
        for i in range(12)
    )
    keys = [struct.unpack_from("<8Q", secret, 8 * i) for i in range(17)]
    sums = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1]
    blocks = (len(data) - 1) // 1024
    for block in range(blocks):
        for stripe in range(16):
            accumulate(sums, data, 1024 * block + 64 * stripe, keys[stripe])
        sums = [value & MASK for value in sums]
        sums = [((v ^ (v >> 47)) ^ keys[16][i]) * PRIME32_1 & MASK for i, v in enumerate(sums)]
    for stripe in range((len(data) - 1 - 1024 * blocks) // 64):
        accumulate(sums, data, 1024 * blocks + 64 * stripe, keys[stripe])
    accumulate(sums, data, len(data) - 64, struct.unpack_from("<8Q", secret, 192 - 64 - 7))
    value = len(data) * PRIME64_1
    for i in range(4):
        low = (sums[2 * i] & MASK) ^ read64(secret, 11 + 16 * i)
        high = (sums[2 * i + 1] & MASK) ^ read64(secret, 19 + 16 * i)
        value += fold(low, high)
    return avalanche(value & MASK)


def python_hash(data: bytes, seed: int) -> int:
    if len(data) <= 16:
        return hash_up_to_16(data, seed)
    return hash_up_to_240(data, seed) if len(data) <= 240 else hash_long(data, seed)


def load_library():
    name = ctypes.util.find_library("xxhash")
    if name is None:
        return None
    try:
        function = ctypes.CDLL(name).XXH3_64bits_withSeed
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    return lambda data, seed: function(data, len(data), seed)


library_hash = load_library()
xxh3_64 = library_hash or python_hash
