"""Draws a message as its receiver shows it, as HTML, for pictures. Pure: the body that arrived at a stand-in goes in.

Slack, Teams and mail programs draw these in their own fonts and frames. Drawn here is only what the body says: Slack's
Block Kit, the text blocks of an Adaptive Card, the HTML part of an e-mail, the colours of a terminal (ECMA-48 SGR).
"""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_SIGNS = {
    ":red_circle:": "#dd2e44",
    ":large_orange_circle:": "#f4900c",
    ":large_green_circle:": "#78b159",
    ":white_circle:": "#e6e7e8",
}
"""Slack's names of the signs that healthd sends, and their colours: no font here need have them."""
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_LINK = re.compile(r"&lt;(https?://[^|&]+)\|([^&]+)&gt;")
_BOLD = re.compile(r"\*([^*\n]+)\*")
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_STYLE = """
body { margin: 0; padding: 16px; background: #fff; color: #1d1c1d; font: 15px/1.45 sans-serif; }
.from { font-weight: bold; margin-bottom: 4px; }
h2 { font-size: 18px; margin: 4px 0 8px; }
.sign { display: inline-block; width: 14px; height: 14px; border-radius: 7px; }
.fields { display: grid; grid-template-columns: 1fr 1fr; gap: 8px 24px; margin-bottom: 8px; }
.text { white-space: pre-wrap; margin-bottom: 8px; }
.context { font-size: 13px; color: #616061; }
.card { border: 1px solid #ccc; border-radius: 6px; padding: 12px; }
pre { margin: 0; padding: 16px; background: #16181d; color: #e6e6e6; font: 13px/1.5 monospace; white-space: pre-wrap; }
.c1 { font-weight: bold } .c31 { color: #ff7b72 } .c33 { color: #e3b341 } .c35 { color: #d2a8ff }
.c36 { color: #79c0ff } .c32 { color: #7ee787 }
"""


def page(title: str, inner: str) -> str:
    """A whole document of what one receiver shows."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><body>{inner}</body></html>"
    )


def slack(body: Mapping[str, Any]) -> str:
    """The blocks of a message to Slack. Raises KeyError for a kind of block that healthd does not send."""
    return '<div class="from">healthd</div>' + "".join(_BLOCKS[each["type"]](each) for each in body["blocks"])


def card(body: Mapping[str, Any]) -> str:
    """The texts of the Adaptive Card of a message to Teams, in their order. Each is Markdown, whose escapes are not
    shown (CommonMark, "Backslash escapes")."""
    texts = [_ESCAPED.sub(r"\1", text) for each in body["attachments"] for text in _texts(each["content"])]
    first, *others = texts
    told = "".join(f'<div class="text">{escape(text)}</div>' for text in others)
    return f'<div class="card"><h2>{escape(first)}</h2>{told}</div>'


def mail(raw: str) -> str:
    """The subject and the body of an e-mail: its HTML part, else its text."""
    message = email.message_from_string(raw, policy=email.policy.default)
    part = message.get_body(preferencelist=("html", "plain"))
    text = part.get_content() if part is not None else ""
    shown = text if part is not None and part.get_content_subtype() == "html" else escape(text)
    about = f"{escape(str(message['From']))} to {escape(str(message['To']))}"
    return (
        f'<h2>{escape(str(message["Subject"]))}</h2><div class="context">{about}</div><div class="text">{shown}</div>'
    )


def terminal(text: str) -> str:
    """The output of a command in its colours."""
    parts, inner, at = [], "", 0
    for found in _SGR.finditer(text):
        parts.append((inner, text[at : found.start()]))
        inner, at = " ".join(f"c{code}" for code in found[1].split(";") if code not in ("", "0")), found.end()
    parts.append((inner, text[at:]))
    shown = (f'<span class="{style}">{escape(words)}</span>' if style else escape(words) for style, words in parts)
    return f"<pre>{''.join(shown)}</pre>"


def _header(block: Mapping[str, Any]) -> str:
    text = escape(block["text"]["text"])
    for name, colour in _SIGNS.items():
        text = text.replace(name, f'<span class="sign" style="background: {colour}"></span>')
    return f"<h2>{text}</h2>"


def _section(block: Mapping[str, Any]) -> str:
    fields = "".join(f"<div>{_marked(each['text'])}</div>" for each in block.get("fields", ()))
    text = f'<div class="text">{escape(block["text"]["text"])}</div>' if "text" in block else ""
    return (f'<div class="fields">{fields}</div>' if fields else "") + text


def _context(block: Mapping[str, Any]) -> str:
    return f'<div class="context">{"".join(_marked(each["text"]) for each in block["elements"])}</div>'


_BLOCKS = {"header": _header, "section": _section, "context": _context}


def _marked(text: str) -> str:
    """Slack's mrkdwn: bold, links, line breaks; its three escapes are those of HTML."""
    whole = _LINK.sub(r'<a href="\1">\2</a>', re.sub("<(https?://[^>]+)>", r"&lt;\1&gt;", text))
    return _BOLD.sub(r"<b>\1</b>", whole).replace("\n", "<br>")


def _texts(node: Any) -> Iterator[str]:
    """Each text of a card, from the top."""
    if isinstance(node, Mapping):
        if node.get("type") == "TextBlock":
            yield str(node["text"])
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _texts(each)
