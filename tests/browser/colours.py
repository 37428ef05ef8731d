"""How far two colours are apart, and what those see of them who lack a kind of cone.

CIEDE2000: Sharma, Wu, Dalal 2005. Deuteranopia and protanopia: the matrices of Machado, Oliveira, Fernandes 2009 for severity 1, on linear
RGB. Grey: luminance alone. Contrast: WCAG 2.2.
"""

from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt

Triple = tuple[float, float, float]
SIGHTS = {
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "grey": ((0.2126, 0.7152, 0.0722),) * 3,
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
}


def linear(colour: str) -> Triple:
    """Return the linear red, green and blue of `#rrggbb`, each from 0 to 1."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return _decoded(red), _decoded(green), _decoded(blue)


def _decoded(value: float) -> float:
    """Return a channel of sRGB as a linear value."""
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, as WCAG defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def lab(colour: str, sight: str) -> Triple:
    """Return CIE L*a*b* under D65 of a colour as somebody with the given `sight` sees it."""
    rgb = linear(colour)
    seen = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, rgb, strict=True)))) for row in SIGHTS[sight]]
    to_xyz = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.072175), (0.0193339, 0.119192, 0.9503041))
    xyz = (sum(a * b for a, b in zip(row, seen, strict=True)) for row in to_xyz)
    x, y, z = (
        t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116
        for t in (value / white for value, white in zip(xyz, (0.95047, 1.0, 1.08883), strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one: Triple, other: Triple) -> float:
    """Return the CIEDE2000 difference of two colours in L*a*b*, with kL = kC = kH = 1."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    middle = (hypot(a1, b1) + hypot(a2, b2)) / 2
    grey = 0.5 * (1 - sqrt(middle**7 / (middle**7 + 25.0**7)))
    a1, a2 = (1 + grey) * a1, (1 + grey) * a2
    c1, c2 = hypot(a1, b1), hypot(a2, b2)
    h1, h2 = (degrees(atan2(b, a)) % 360 if a or b else 0.0 for a, b in ((a1, b1), (a2, b2)))
    turn = 0.0 if not c1 * c2 else (h2 - h1 + 180) % 360 - 180
    lightness, chroma, hue = l2 - l1, c2 - c1, 2 * sqrt(c1 * c2) * sin(radians(turn / 2))
    mean_l, mean_c = (l1 + l2) / 2, (c1 + c2) / 2
    mean_h = h1 + h2 if not c1 * c2 else (h1 + turn / 2) % 360
    t = (
        1
        - 0.17 * cos(radians(mean_h - 30))
        + 0.24 * cos(radians(2 * mean_h))
        + 0.32 * cos(radians(3 * mean_h + 6))
        - 0.20 * cos(radians(4 * mean_h - 63))
    )
    s_l = 1 + 0.015 * (mean_l - 50) ** 2 / sqrt(20 + (mean_l - 50) ** 2)
    s_c, s_h = 1 + 0.045 * mean_c, 1 + 0.015 * mean_c * t
    rotation = 2 * sqrt(mean_c**7 / (mean_c**7 + 25.0**7)) * sin(radians(60 * exp(-(((mean_h - 275) / 25) ** 2))))
    dl, dc, dh = lightness / s_l, chroma / s_c, hue / s_h
    return sqrt(dl**2 + dc**2 + dh**2 - rotation * dc * dh)


def apart(one: str, other: str, sight: str) -> float:
    """Return the CIEDE2000 difference of two colours `#rrggbb` as somebody with the given `sight` sees them."""
    return ciede2000(lab(one, sight), lab(other, sight))
