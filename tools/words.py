"""
Words that a reader would not search for: how often they are left in names and in what users read.

A name is split into its words (`_set_aside`, `SetAside`: set, aside). What users read are the texts
in the source that are not docstrings (errors, help, output), the docstrings of commands, the README
and the users' pages. Stable names that contain such a word are listed in `STABLE`, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PAGES = (
    "README.md",
    "docs/*.md",
    "docs/guides/*.md",
    "docs/reference/*.md",
    "examples/*/README.md",
)

NAMES = {
    "told|tell|tells|telling|teller": "reported, emitted, status, change rows",
    "letter|letters": "dead letter (after dead_)",
    "place|places": "position, location, row reference",
    "aside": "parked (a row), released (a pipeline)",
    "anew": "again, restarted, reloaded, recreated",
    "owed|owes|owe|owing": "rebaseline_required, needs a new baseline",
    "care|cares|caring|tend|tends": "retention, maintain, prune",
    "hear|hears|heard|news|wish|wishes": "notified, notices, requests",
    "beside": "staged, in parallel",
    "behind": "blocked by, lag",
    "life|lives": "run, process",
    "lend|lent|surroundings|around": "attach, context",
    "home": "context, folder",
    "gather|gathers|gathered|gathering": "collect",
    "mend|mends|mended": "repair, fix",
    "unwind": "close in reverse",
    "misfit|misfits": "unrepresentable value",
    "marks": "markers",
    "beat|beats": "send_status, write_heartbeat",
    "standing": "table identity",
    "witness": "history check",
    "trees": "partitions",
    "keeper": "keep-alive",
    "yielding": "release",
    "whoever|somebody|nobody": "the part of the system that it is",
}
"""Words in names, with what to say."""

TEXTS = {
    r"anew": "again",
    r"mend(s|ed|ing)?": "fix, repair",
    r"whoever|somebody|(?<!`)nobody": "the part of the system that it is",
    r"so (many|much|long|often) ": "maximum, up to, every",
    r"(is|are|was|were|be|been|being) told": "reported",
    r"unless told": "by default",
    r"lets? go( of)?": "release, drop, disconnect",
    r"set(s|ting)? aside": "parked, released",
    r"ow(ed|es|ing)": "needs a new baseline",
    r"(care|cares|cared|caring) for": "maintain",
    r"beside": "in parallel, next to",
    r"hears?|heard": "notified",
    r"wish(es|ed)?": "request",
    r"misfits?": "value that the type cannot hold",
    r"(?<!dead[ -])(?<!dead[ -]\n)letters?(?! of the alphabet|, digits)": "dead letter",
    r"how (\w+ )?stands?": "status",
    r"at rest|rests": "paused",
    r"lends?|lent": "attach",
    r"blows?": "fault",
}
"""Phrases in what users read, with what to say."""

STABLE: dict[str, str] = {
    "JAVA_HOME": "the variable that Java's own programs read",
    "SPARK_HOME": "the variable that Spark's own programs read",
    "spark_home": "Spark's own word for its folder",
    "packaged_home": "Spark's own word for its folder",
    "home": "Java's own word for its folder, and a method of the standard library",
    "ascii_letters": "a name of the standard library",
    "letter": "the module headrace.deadletters.letter, a documented path",
    "dead_letters": "the module headrace.cli.dead_letters, named as its command",
    "read_letters": "a documented name of headrace.deadletters.store",
    "place": "a fact of errors, which --json prints",
    "set_aside": "an attribute of the public PipelineInfo, and its key in --json",
    "SetAside": "the name of an error",
    "FellBehind": "the name of an error",
    "CorruptLetters": "the name of an error",
    "beside": "an attribute of the public TargetContract",
    "behind": "a fact of FellBehind, and a key of --json",
}
"""Names that stay, with the reason."""


@dataclass(slots=True)
class Left:
    """What is left of one word."""

    say: str
    names: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)


def names_left() -> dict[str, Left]:
    """Return the names in the source that contain a word of the list."""
    left = {words: Left(say) for words, say in NAMES.items()}
    by_word = {word: left[words] for words in NAMES for word in words.split("|")}
    for path in sorted(SOURCE.rglob("*.py")):
        for word in words_of(path.stem):
            if word in by_word and path.stem not in STABLE:
                by_word[word].names[path.stem] += 1
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            stable = token.string in STABLE or token.string.startswith("test_")
            if token.type != tokenize.NAME or stable:
                continue
            words = words_of(token.string)
            for at, word in enumerate(words):
                of_dead = word in ("letter", "letters") and at and words[at - 1] == "dead"
                if word in by_word and not of_dead:
                    by_word[word].names[token.string] += 1
    return left


def texts_left() -> dict[str, Left]:
    """Return the places in texts for users that contain a phrase of the list."""
    left = {phrase: Left(say) for phrase, say in TEXTS.items()}
    found = [(each, re.compile(rf"\b(?:{each})\b", re.IGNORECASE)) for each in TEXTS]
    for where, text in texts():
        for phrase, pattern in found:
            if pattern.search(text):
                left[phrase].texts.append(f"{where}: {' '.join(text.split())[:100]}")
    return left


def words_of(name: str) -> list[str]:
    """Return the words of a name."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return [part.lower() for part in parts]


def texts() -> Iterator[tuple[str, str]]:
    """Yield what users read, piece by piece, with where it is."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield from _texts_of(path)
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            yield from _lines_of(path)


def _texts_of(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text())
    where = path.relative_to(ROOT)
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _is_command(node):
            text = ast.get_docstring(node)
            if text:
                yield f"{where}:{node.lineno}", text
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value.strip()
            and id(node) not in silent
        ):
            yield f"{where}:{node.lineno}", node.value


def _is_command(node: ast.FunctionDef) -> bool:
    return any(
        "command" in ast.unparse(each) or "group" in ast.unparse(each)
        for each in node.decorator_list
    )


def _lines_of(path: Path) -> Iterator[tuple[str, str]]:
    code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield f"{path.relative_to(ROOT)}:{number}", re.sub(r"`[^`]*`", "", line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is left; return 1 if anything is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--all", action="store_true", help="list every name and text")
    asked = parser.parse_args(arguments)
    names, phrases = names_left(), texts_left()
    print(f"{'word':44}{'names':>7}{'uses':>7}  say")
    for words, left in names.items():
        print(f"{words[:43]:44}{len(left.names):7}{left.names.total():7}  {left.say}")
        if asked.all:
            print(
                "".join(f"    {name} {count}\n" for name, count in left.names.most_common()), end=""
            )
    print(f"\n{'phrase in what users read':44}{'texts':>7}         say")
    for phrase, left in phrases.items():
        print(f"{phrase[:43]:44}{len(left.texts):7}         {left.say}")
        if asked.all:
            print("".join(f"    {text}\n" for text in left.texts), end="")
    total = sum(len(left.names) for left in names.values())
    told = sum(len(left.texts) for left in phrases.values())
    print(f"\n{total} names and {told} texts are left; {len(STABLE)} names are stable")
    return 1 if total or told else 0


if __name__ == "__main__":
    sys.exit(main())
