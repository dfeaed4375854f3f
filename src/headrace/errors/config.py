"""Errors of a configuration's text: of files, of what is written in them, of what it refers to."""

from __future__ import annotations

from headrace.errors.settings import SettingError


class ConfigText(SettingError):
    """The text of a configuration."""

    code = "config.text"

    excerpt: tuple[str, ...] = ()
    """The line it is about, and a caret under the place; without passwords in it."""

    def __str__(self) -> str:
        return "\n".join((super().__str__(), *self.excerpt))


class ConfigSyntax(ConfigText):
    """Text that is not what a configuration is written in."""

    code = "config.syntax"
    remedy = "Correct it at the place that is named; docs/guides/configuration.md has the syntax."


class ConfigUnresolved(ConfigText):
    """A substitution that leads nowhere, or in a circle."""

    code = "config.unresolved"
    remedy = "Define what is named, or write ${?…} where it may be missing."


class ConfigUnreadable(ConfigText):
    """A file of a configuration that is not there or cannot be read."""

    code = "config.unreadable"
    remedy = "Check the path, and that the file may be read."
