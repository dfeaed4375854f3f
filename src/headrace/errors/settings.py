"""
Errors of what a configuration says, value by value.

A message begins with the place of the value, `headrace.conf:3:8`, and never repeats the
value itself: it may be a password that slipped into the wrong line.
"""

from __future__ import annotations

from headrace.errors.base import HeadraceError


class SettingError(HeadraceError):
    """A value of a configuration."""

    code = "config.failed"
    exit_code = 2
    remedy = "Correct it; docs/reference/configuration.md describes every key."


class UnknownKey(SettingError):
    """A key that nothing reads: a typing error would otherwise pass unnoticed."""

    code = "config.unknown_key"
    remedy = "Correct the key, or take it out; the reference lists every key there is."


class MissingKey(SettingError):
    """A key that must be there."""

    code = "config.missing_key"
    remedy = "Add it; the reference says what it takes."


class WrongType(SettingError):
    """A value of another kind than its key takes."""

    code = "config.wrong_type"
    remedy = "Write a value of the kind that is named; the reference has examples."


class WrongValue(SettingError):
    """A value of the right kind that its key does not allow."""

    code = "config.wrong_value"
    remedy = "Choose one of those that are named."


class UnknownPart(SettingError):
    """A type of source, target, filter or transform that nobody provides."""

    code = "config.unknown_part"
    remedy = "Correct the type, or install the package that provides it."


class BadPart(SettingError):
    """A part from another package, or a function of yours, that cannot be used."""

    code = "config.bad_part"
    remedy = "Mend or upgrade the package that provides it; its error is named."


class Unused(SettingError):
    """A part of a configuration that nothing uses; a warning."""

    code = "config.unused"
    remedy = "Use it, or take it out."


class InlineSecret(SettingError):
    """A password written out where it is read by everyone who reads the configuration."""

    code = "config.inline_secret"
    remedy = (
        'Take it out of the value, and say where it is: password_ref = "env:NAME" or'
        ' "file:/path/of/a/file".'
    )


class NoSecret(SettingError):
    """There is nothing where a reference to a secret points."""

    code = "config.no_secret"
    remedy = "Put the secret there, or let the reference point elsewhere."
