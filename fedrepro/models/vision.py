"""torchvision, importable: `from fedrepro.models.vision import torchvision`.

With a CPU torch, the CUDA build of torchvision cannot load its compiled detection operators and fails to import
because two operator names are missing. We use neither, so declaring the names is enough.
"""

import sys

import torch

try:
    import torchvision
except RuntimeError as error:
    if "torchvision::" not in str(error):
        raise
    for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    _operators = torch.library.Library("torchvision", "FRAGMENT")  # the names live as long as this object
    for name in ("nms", "qnms"):
        _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

__all__ = ["torchvision"]
