"""Logarithm and exponential with the same bits on every processor.

Those of libm, MKL, SLEEF and numpy differ in the last bit with the instruction set. These use nothing but what IEEE
754 rounds exactly: additions, multiplications and divisions, one at a time.
"""

import numpy as np

LN2 = 0.6931471805599453
ROOT_HALF = 0x3FE6A09E667F3BCD  # sqrt(1/2) as the bits of a float64


def log(x: np.ndarray) -> np.ndarray:
    """Of positive float64, to 1e-15; 0 and what is smaller than 1e-307 give about -709."""
    bits = x.view(np.int64)
    exponent = (bits - ROOT_HALF) >> 52
    mantissa = (bits - (exponent << 52)).view(np.float64)  # in sqrt(1/2)..sqrt(2)
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = np.zeros_like(s)  # log m = 2 artanh s = 2 (s + s^3 / 3 + s^5 / 5 + ...)
    for n in range(21, 0, -2):
        series *= square
        series += 1 / n
    series *= 2 * s
    return series + exponent * LN2


def exp(x: np.ndarray) -> np.ndarray:
    """Of float64 up to 0, to 1e-15 where that is in the result's reach: x itself is rounded."""
    twos = np.rint(x / LN2)
    rest = x - twos * LN2
    series = np.ones_like(x)  # 1 + r (1 + r / 2 (1 + r / 3 (...)))
    for n in range(14, 0, -1):
        series *= rest / n
        series += 1
    return np.ldexp(series, twos.astype(np.int64))
