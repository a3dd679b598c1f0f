"""Texts that are installed beside the modules: tables, policies, pages, templates."""

from __future__ import annotations

from importlib import import_module


def shipped_text(package: str, path: str) -> str:
    """The text of a file in a package's folder. Raises OSError where it is missing: the installation is not whole.

    Not by importlib.resources, which loads tempfile, random and zipfile.
    """
    with open(f"{import_module(package).__path__[0]}/{path}", encoding="utf-8") as file:
        return file.read()
