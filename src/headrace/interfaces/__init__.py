"""The outside: what people and programs use. Interfaces translate, and nothing more."""
