"""Completions for bash, zsh and fish: verbs, options, and the words that an argument takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from healthd.api.grammar import _grammar
from healthd.api.usage import shown, takes_value
from healthd.checklib.xids import xid_table
from healthd.core.check import discover

_FILES = frozenset({"FILE", "PATH"})
_NOTE = "made of the grammar by packaging/manual/manual.py"
_OWN = {"help": "show the verbs, or the options of one", "version": "print the version"}
"""Verbs that the grammar answers itself."""


def bash() -> str:
    """For bash-completion, which loads it by the command's name."""
    lines = [
        f"# bash completion of healthd; {_NOTE}.",
        "_healthd() {",
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]}",
        "    local words='' files=''",
        "    COMPREPLY=()",
        "    if ((COMP_CWORD == 1)); then",
        f'        words="{" ".join([*_verbs(), "--help", "--version"])}"',
        "    else",
        "        case $verb:$prev in",
    ]
    for verb, parser in _grammar().verbs().items():
        for action in filter(takes_value, shown(parser)):
            cases = "|".join(f"{verb}:{each}" for each in action.option_strings)
            lines.append(f"        {cases}) {_bash_values(_words(verb, action), is_file=_is_file(action))} ;;")
    lines += ["        *)", "            case $verb in", f'            help) words="{" ".join(_verbs())}" ;;']
    for verb, parser in _grammar().verbs().items():
        words = [*_options(parser), *_positional(verb, parser)]
        files = " files=1" if any(_is_file(each) for each in shown(parser) if not each.option_strings) else ""
        lines.append(f'            {verb}) words="{" ".join(words)}"{files} ;;')
    lines += [
        "            esac",
        "            ;;",
        "        esac",
        "    fi",
        '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")',
        "    if [[ $files ]]; then",
        "        compopt -o filenames 2>/dev/null",
        '        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$cur")',
        "    fi",
        "}",
        "complete -F _healthd healthd",
    ]
    return "\n".join(lines) + "\n"


def zsh() -> str:
    """For a folder of $fpath."""
    verbs = [f"    {_quoted(f'{name}:{about}')}" for name, about in _verbs().items()]
    lines = [
        "#compdef healthd",
        f"# {_NOTE}",
        "_healthd() {",
        "  local -a verbs=(",
        *verbs,
        "  )",
        "  if (( CURRENT == 2 )); then",
        "    _describe -t verbs verb verbs",
        "    return",
        "  fi",
        "  (( CURRENT -= 1 ))",
        "  shift words",
        "  case $words[1] in",
        "  help) _describe -t verbs verb verbs ;;",
    ]
    for verb, parser in _grammar().verbs().items():
        lines += [f"  {verb})", "    _arguments \\", "      '(-h --help)'{-h,--help}'[show the options]' \\"]
        lines += [f"      {_zsh_argument(verb, each)} \\" for each in shown(parser)]
        lines[-1] = lines[-1].removesuffix(" \\")
        lines += ["    ;;"]
    lines += ["  esac", "}", '_healthd "$@"']
    return "\n".join(lines) + "\n"


def fish() -> str:
    """For a folder of $fish_complete_path."""
    lines = [f"# {_NOTE}", "complete -c healthd -f"]
    for name, about in _verbs().items():
        lines.append(f"complete -c healthd -n __fish_use_subcommand -a {name} -d {_quoted(about)}")
    lines.append(f"complete -c healthd -n '__fish_seen_subcommand_from help' -a {_quoted(' '.join(_verbs()))}")
    for verb, parser in _grammar().verbs().items():
        of_verb = f"complete -c healthd -n '__fish_seen_subcommand_from {verb}'"
        for action in shown(parser):
            words = " ".join(_words(verb, action))
            given = f" -a {_quoted(words)}" if words else ""
            about = f" -d {_quoted(_about(action))}"
            if not action.option_strings:
                files = " -F" if _is_file(action) else ""
                lines += [f"{of_verb}{files}{given}"] if files or given else []
                continue
            flags = "".join(
                f" -l {each[2:]}" if each[:2] == "--" else f" -s {each[1:]}" for each in action.option_strings
            )
            value = (" -r -F" if _is_file(action) else " -x") if takes_value(action) else ""
            lines.append(f"{of_verb}{flags}{value}{given}{about}")
    return "\n".join(lines) + "\n"


def _verbs() -> Mapping[str, str]:
    return {**_grammar().abouts(), **_OWN}


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield "--help"
    for action in shown(parser):
        yield from action.option_strings


def _positional(verb: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in shown(parser):
        if not action.option_strings:
            yield from _words(verb, action)


def _words(verb: str, action: argparse.Action) -> Sequence[str]:
    """The words that an argument takes, as far as they are known before: choices, checks, codes."""
    if action.choices is not None:
        return [str(each) for each in action.choices]
    checks = discover().values()
    if verb in ("check", "relearn") and action.dest == "names":
        return [check.name for check in checks]
    if "CODE" in str(action.metavar).split("|") or action.dest == "fault":
        declared = {code.code for check in checks for code in check.codes if not code.code.endswith("*")}
        return sorted(declared | {f"gpu.xid.{xid}" for xid in xid_table()})
    return [each for each in str(action.metavar or "").split("|") if each.islower()]


def _is_file(action: argparse.Action) -> bool:
    return bool(_FILES & set(str(action.metavar).split("|")))


def _about(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


def _bash_values(words: Sequence[str], *, is_file: bool) -> str:
    return " ".join([f'words="{" ".join(words)}"', *(["files=1"] if is_file else [])])


def _zsh_argument(verb: str, action: argparse.Action) -> str:
    words = _words(verb, action)
    values = "_files" if _is_file(action) and not words else f"({' '.join(words)})" if words else " "
    name = str(action.metavar or action.dest).replace(":", r"\:")
    about = _about(action).replace("\\", "\\\\").replace("[", r"\[").replace("]", r"\]").replace(":", r"\:")
    if not action.option_strings:
        place = {"*": "*:", "+": "*:", "?": ":"}.get(str(action.nargs), "")
        return _quoted(f"{place or ':'}{':' if place == ':' else ''}{name}:{values}")
    behind = f":{name}:{values}" if takes_value(action) else ""
    spelling = action.option_strings
    if len(spelling) == 1:
        again = "*" if isinstance(action, argparse._AppendAction) else ""
        return _quoted(f"{again}{spelling[0]}[{about}]{behind}")
    return f"'({' '.join(spelling)})'{{{','.join(spelling)}}}{_quoted(f'[{about}]{behind}')}"


def _quoted(text: str) -> str:
    """As one word of a shell that has no escapes inside of single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"
