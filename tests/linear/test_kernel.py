from __future__ import annotations

from typing import Any

import numpy as np

from drimed.linear.kernel import kernel


def test_a_kernel_treats_each_member_alone() -> None:
    scope: dict[str, Any] = {}
    # Code without a file cannot be cached on disk: it is compiled in memory instead.
    exec("def body(x, total):\n    total[0] = 0.0\n    for v in x:\n        total[0] += v\n", scope)
    total = kernel("void(f8[:], f8[:])", "(k)->()")(scope["body"])
    assert float(total(np.array([1.0, 2.0, 3.0]))) == 6.0
    assert total(np.ones((2, 3, 4))).tolist() == [[4.0] * 3] * 2
