"""What the numbers of a run are multiplied by to be in a unit: bytes in MiB, operations in TFLOP."""

UNITS = {
    "": 1.0,
    "s": 1.0,
    "rounds": 1.0,
    "blocks": 1.0,
    "layers": 1.0,
    "kB": 1e-3,
    "MiB": 2.0**-20,
    "GiB": 2.0**-30,
    "GFLOP per round": 1e-9,
    "TFLOP": 1e-12,
    "percent²": 1.0,  # metrics.stability takes values for fractions and counts in percent²
    "variance": 1e-4,
    "layers²": 1e-4,
}
