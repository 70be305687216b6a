"""The page: one HTML document with its style and script inline, which its content security policy allows by hash."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

from fastapi import Response

from elmokit.analysis.word_map import page_part


@cache
def page() -> str:
    """The document. It shares the map of a word with the pages that `elmokit senses` writes."""
    text = resources.files("elmokit.serve").joinpath("page.html").read_text(encoding="utf-8")
    return text.replace("{map style}", page_part("word_map.css")).replace("{map script}", page_part("word_map.js"))


def _source(element: str) -> str:
    """The hash source of a policy that allows the page's own inline element, and no other."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", page(), flags=re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


@cache
def content_security_policy() -> str:
    """The page's policy: it may load its own style and script, its empty icon, and answers of this server."""
    directives = {
        "default-src": "'none'",
        "script-src": _source("script"),
        "style-src": _source("style"),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {source}" for name, source in directives.items())


def page_response() -> Response:
    """The page with its headers."""
    headers = {
        "content-security-policy": content_security_policy(),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }
    return Response(page(), headers=headers, media_type="text/html")
