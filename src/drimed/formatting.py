"""How numbers are written for readers."""


def short(value: float) -> str:
    """Three figures, no exponent, and a minus sign instead of a hyphen.

    >>> [short(v) for v in (0.49732, -26.21, 1777.8)]
    ['0.497', '−26.2', '1,778']
    """
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}").replace("-", "−")
