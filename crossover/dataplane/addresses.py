"""Addresses in messages: who mistypes one may have put a password into it, and messages end up in logs."""

import re

_HARMLESS = re.compile(r"(?:(\w+)://)?(?:[\w.-]+(?::\d+)?)?(?:/[\w./-]*)?")
_SCHEME = re.compile(r"(\w+://)?")


def shown(url: str) -> str:
    """`url` if it is no more than scheme, host, port and path; else its scheme alone."""
    if _HARMLESS.fullmatch(url):
        return url
    scheme = _SCHEME.match(url)
    return f"{scheme[0] if scheme else ''}***"
