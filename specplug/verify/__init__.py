"""Readable verification maths: which drafts the target keeps, and with what law."""
